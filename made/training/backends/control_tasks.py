"""`made train` on DeepMind Control: one environment a seed in processes of their own, and learning beside them.

    t:   act on what is seen  ->  send  ->  learn from step t - 1  ->  receive step t

The update overlaps physics and drawing, and the order of events is the same whoever is done first; seeds from pixels
have turns of their own (`made.training.backends.async_stepper`). So the agent that acts at step t has learnt from the
steps up to t - 2.
What came last and is not learnt from yet belongs to the state, as do the replay and the environments, so that a run
goes on from a checkpoint to the bit.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int64, PyTree

from made.core import Metrics, Spec, Transition, trees
from made.envs.control import rendering
from made.envs.control.snapshot import Arrays
from made.envs.control.worker_pool import WorkerError, WorkerPool
from made.training import checkpoint, memory
from made.training.backends import compiled_envs
from made.training.backends.async_stepper import AsyncStepper, evaluate_episodes
from made.training.backends.control_learner import ControlLearner
from made.training.backends.host_envs import seed_for
from made.training.control_config import ControlConfig, DreamerConfig
from made.training.off_policy import ReplayLearnerState
from made.training.replay import available_memory
from made.training.train_loop import Backend
from made.training.train_plan import TrainPlan

_JUDGED = 0x6A756467  # sets the seeds of evaluations apart from those of training


class ControlState(NamedTuple):
    """All that changes in a run: what learns is on the device, all else in NumPy, at whatever width."""

    learners: tuple[
        ReplayLearnerState, ...
    ]  # one of all seeds, leaves [L, ...], or one a seed; the replay may be in NumPy
    workers: Arrays
    came: Transition  # [L, ...] the last step, not learnt from yet; pictures are single frames
    age: Int64[np.ndarray, " L"]  # actions in the episode so far
    k: Int64[np.ndarray, ""]  # actions so far
    carries: tuple[PyTree, ...] = ()  # what agents remember of their episodes, as `learners` are divided


def prepare(plan: TrainPlan, count: int = 1) -> Backend:
    """What `session.train` runs. The programs are compiled at the first action and the first update."""
    if count != 1:
        raise ValueError(f"--devices {count} spreads compiled environments; control tasks take --devices 1.")
    plan.run.demand()  # its length is known now
    return _programs(_backend(plan))


@contextlib.contextmanager
def prepared(plan: TrainPlan) -> Iterator[Backend]:
    """The same for a while: the processes end with the block."""
    backend = _backend(plan)
    try:
        yield _programs(backend)
    finally:
        backend.close()


def restored(plan: TrainPlan, saved: checkpoint.Checkpoint) -> tuple[Spec, ControlState]:
    """What the environments look like, and the state of a checkpoint. The processes end before it returns."""
    backend = _backend(plan)
    try:
        return backend.workers.spec, backend.place(checkpoint.restore(saved, backend.like()))
    finally:
        backend.close()


def learner_of(state: ControlState, lane: int, seeds: int, pixels: bool) -> ReplayLearnerState:
    """What learns of one of so many seeds, whether they share a state or have one each."""
    shared = len(state.learners) < seeds or not pixels
    return trees.index(state.learners[0], lane) if shared else state.learners[lane]


def _backend(plan: TrainPlan) -> "ControlBackend":
    """The environments and the learner of a run that fits on this machine."""
    run: ControlConfig = plan.run  # type: ignore[assignment]
    if run.task.pixels:
        rendering.choose()  # a sentence where nothing can be drawn, before anything is started
    return ControlBackend(plan)


def _programs(backend: "ControlBackend") -> Backend:
    plan = backend.plan
    return Backend(plan.run, plan.seeds, backend.like(), backend.begin, backend.advance, backend.examine, backend.place)  # type: ignore


def memory_outside_replay(run: ControlConfig, spec: Spec) -> int:
    """Bytes that a seed takes on the device without its replay: networks, optimisers, and what the bonus keeps."""
    return memory.size_of(jax.eval_shape(functools.partial(run.learner(spec).start, on_host=True), jax.random.key(0)))


def keeps_replay_on_host(run: ControlConfig, size: int, seeds: int, rest: int = 0) -> bool:
    """Whether replays of that size a seed are kept on the host: said where nobody asked, refused if they fit nowhere.

    `rest` is what a seed takes beside its replay, on the device wherever that is.
    `MADE_REPLAY=host` and `MADE_REPLAY=device` ask for one of the two. It is no setting of a run, which may go on in
    the other place.
    """
    asked, dreams = os.environ.get("MADE_REPLAY", ""), isinstance(run, DreamerConfig)
    if asked not in ("", "host", "device"):
        raise ValueError(f"MADE_REPLAY is {asked!r}: set it to host or device, or leave it unset.")
    if asked == "host" and dreams:
        raise ValueError("MADE_REPLAY=host is for rad and sac: Dreamer's replay of sequences is kept on the device.")
    if asked == "host":
        require_memory(run, size, seeds, rest, on_host=True)
        return True
    try:
        require_memory(run, size, seeds, rest)
    except ValueError:
        if dreams or asked or _lacks(size, seeds, rest, on_host=True):
            raise
        why = "does not fit on the device and stays on the host"
        if _lacks(size, seeds, rest)[0][2] != _ON_DEVICE:
            why = "stays on the host, which has no room for the copies that a checkpoint makes of one on the device"
        print(f"made: the replay, {memory.in_words(size)} a seed, {why}.", file=sys.stderr, flush=True)
        return True
    return False


_ON_DEVICE = "are needed on the device"


def _lacks(size: int, seeds: int, rest: int, on_host: bool = False) -> list[tuple[int, int, str]]:
    """(bytes needed, bytes free, where and what for) of the places that have too little room.

    A replay on the host is written to a checkpoint from where it is, and what is read from one is the replay.
    """
    free, share = available_memory(on_host=True), memory.left_of_share()
    free = min(free, share) if free is not None and share is not None else free
    copies = 2 + (jax.default_backend() == "cpu")  # those of a checkpoint, and where device and host are one the first
    places = (
        (seeds * (size + rest), available_memory(), _ON_DEVICE),
        (copies * seeds * (size + rest), free, "are needed on the host, for a checkpoint is a copy"),
    )
    if on_host:
        places = ((seeds * size, free, "are needed on the host"), (seeds * rest, available_memory(), _ON_DEVICE))
    return [(needed, free, where) for needed, free, where in places if free is not None and needed > free]


def require_memory(run: ControlConfig, size: int, seeds: int, rest: int = 0, on_host: bool = False) -> None:
    """Refuse replays of that size a seed that do not fit on the device, or on the host while they are written.

    With `on_host` they are kept there, and the device needs room for `rest` alone.
    """
    more = f", and what learns beside it {memory.in_words(rest)}," if rest else ""
    dreams = isinstance(run, DreamerConfig)  # of pictures that have one size
    size_of_pictures = " or a smaller --set task.size=..." if run.task.pixels and not dreams else ""
    path = f"replay{'.steps' * dreams}.capacity"
    for needed, free, where in _lacks(size, seeds, rest, on_host):
        raise ValueError(
            f"A replay of {run.replay.capacity:,} steps takes {memory.in_words(size)}{more} for each of {seeds} "
            f"seed{'s' * (seeds > 1)}; {memory.in_words(needed)} {where}, and {memory.in_words(free)} are free: "
            f"take fewer --seeds, a smaller --set {path}=...{size_of_pictures}."
        )


class ControlBackend:
    """The environments of every seed, where they stand, and the learner beside them.

    `on_host` says where the replays are kept; without it that is found out, and a run that fits nowhere is refused.
    """

    def __init__(self, plan: TrainPlan, on_host: bool | None = None):
        run: ControlConfig = plan.run  # type: ignore[assignment]
        self.plan, self.run, self.task, self.at = plan, run, run.task, -1
        self._training: WorkerPool | None = None
        self._judge: WorkerPool | None = None
        try:
            spec = self.workers.spec
            if on_host is None:
                on_host = keeps_replay_on_host(
                    run, run.replay.size_of(spec), len(plan.seeds), memory_outside_replay(run, spec)
                )
            self.learning = ControlLearner(run, spec, plan.seeds, on_host=on_host)
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> WorkerPool:
        """One environment for each seed, begun where there are none."""
        if self._training is None:
            with _shorten_worker_errors():
                parts = len(self.plan.seeds) if self.task.pixels else 1
                self._training = WorkerPool(self.task, self.plan.seeds, parts=parts)
        return self._training  # type: ignore

    def close(self) -> None:
        """End all processes; they are begun anew where they are needed again."""
        for workers in (self._training, self._judge):
            if workers is not None:
                workers.close()
        self._training = self._judge = None
        self.at = -1

    def like(self) -> ControlState:
        """The shapes of a state, and where it has numbers those of the start."""
        workers, n = self.workers, len(self.plan.seeds)
        blank, action = np.zeros_like(workers.seen), np.zeros((n, *workers.spec.action.shape), np.float32)
        came = Transition(blank, action, np.zeros(n, np.float32), blank, np.zeros(n, bool), np.zeros(n, bool))  # type: ignore
        age, k, carries = np.zeros(n, np.int64), np.asarray(0, np.int64), self.learning.carries(1)
        return ControlState(self.learning.like(), workers.save(), came, age, k, carries)

    def begin(self, run: Any = None, seeds: Any = None) -> ControlState:
        """The state before the first action."""
        del run, seeds
        self.workers.reset(self.plan.seeds)
        self.at = 0
        return self.like()._replace(learners=self.learning.start())

    def place(self, state: ControlState) -> ControlState:
        """What learns on the device, as it was read from a checkpoint."""
        return state._replace(learners=self.learning.placed(state.learners), carries=jax.device_put(state.carries))

    def advance(self, run: Any, state: ControlState, n: Any) -> tuple[ControlState, compiled_envs.LogRecord]:
        """n actions of every seed, and what they measured: `lanes.advance` for control tasks."""
        del run
        with self._close_on_error():
            return self._advance(state, int(n))

    @contextlib.contextmanager
    def _close_on_error(self) -> Iterator[None]:
        """Where the block fails, environments may be in the middle of a step: whoever goes on begins with new ones."""
        try:
            with _shorten_worker_errors():
                yield
        except BaseException:
            self.close()
            raise

    def _advance(self, state: ControlState, n: int) -> tuple[ControlState, compiled_envs.LogRecord]:
        begins, workers, learning = int(state.k), self.workers, self.learning
        if begins != self.at:
            workers.load(state.workers)
        walk = AsyncStepper(
            self.plan, learning, workers, learning.opened(state.learners), state.came, state.age, state.carries
        )
        walk.go(begins, n)
        self.at = begins + n
        scalars, bad = learning.row(walk.learners, walk.sums, self.at)
        learnt, carries = learning.closed(walk.learners), tuple(walk.carries)
        after = ControlState(learnt, workers.save(), walk.transitions, walk.age, np.asarray(self.at, np.int64), carries)
        return after, compiled_envs.LogRecord({**walk.tally.means(), **scalars}, bad)  # type: ignore

    def examine(self, run: Any, state: ControlState, seeds: PyTree) -> Metrics:
        """Whole episodes of each seed by the mean action, in environments of their own: `lanes.examine` for control."""
        del run, seeds
        k, each = int(state.k), range(self.plan.episodes)
        resets_per_update = [seed_for(seed, k, _JUDGED, i) for seed in self.plan.seeds for i in each]
        with self._close_on_error():
            self._judge = judge = self._judge or WorkerPool(self.task, resets_per_update, parts=len(state.learners))
            judge.reset(resets_per_update)
            totals = evaluate_episodes(self.learning, state.learners, judge, self.plan.episodes, self.task.horizon, k)
        count = np.full(len(self.plan.seeds), self.plan.episodes, float)
        return {"eval_return": totals.reshape(-1, self.plan.episodes).mean(1), "eval_episodes": count}  # type: ignore[dict-item]


@contextlib.contextmanager
def _shorten_worker_errors() -> Iterator[None]:
    """What became of a process in one sentence: who it was, and the last line of its traceback."""
    try:
        yield
    except WorkerError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = lines[0] if len(lines) == 1 else f"{lines[0].split(' failed:')[0]} failed: {lines[-1]}"
        goes_on = "The same command goes on from the last checkpoint, where there is one."
        raise ValueError(f"{said.rstrip('.')}. {goes_on}") from error
