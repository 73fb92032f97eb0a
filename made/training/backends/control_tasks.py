"""`made train` on DeepMind Control: one environment a seed in processes of their own, and learning beside them.

    t:   act on what is seen  ->  send  ->  learn from step t - 1  ->  receive step t

The update overlaps physics and drawing, and the order of events is the same whoever is done first; seeds from pixels
have turns of their own (`made.training.backends.async_stepper`). So the agent that acts at step t has learnt from the
steps up to t - 2. What came last and is not learnt from yet belongs to the state, as do the replay and the
environments, so that a run goes on from a checkpoint to the bit.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int64, PyTree

from made.core import Metrics, Spec, Transition, trees
from made.envs.control import rendering
from made.envs.control.simulation import Arrays
from made.envs.control.worker_pool import WorkerError, WorkerPool
from made.training import checkpoint, memory
from made.training.backends import compiled_envs
from made.training.backends.async_stepper import AsyncStepper, evaluate_episodes
from made.training.backends.control_learner import ControlLearner
from made.training.backends.host_envs import seed_for
from made.training.control_config import ControlConfig, DreamerConfig
from made.training.off_policy import ReplayLearnerState
from made.training.train_loop import Backend
from made.training.train_plan import TrainPlan

_JUDGED = 0x6A756467  # sets the seeds of evaluations apart from those of training


class ControlState(NamedTuple):
    """All that changes in a run: what learns is on the device, all else in NumPy, at whatever width."""

    learners: tuple[ReplayLearnerState, ...]  # one of all seeds, leaves [L, ...], or one a seed
    workers: Arrays
    came: Transition  # [L, ...] the last step, not learnt from yet; pictures are single frames
    age: Int64[np.ndarray, " L"]  # actions in the episode so far
    k: Int64[np.ndarray, ""]  # actions so far
    carries: tuple[PyTree, ...] = ()  # what agents remember of their episodes, as `learners` are divided


def prepare(plan: TrainPlan, count: int = 1) -> Backend:
    """The backend of a plan. It compiles at the first action and the first update."""
    _validate(plan, count)
    return _programs(_backend(plan))


def _validate(plan: TrainPlan, count: int) -> None:
    if count != 1:
        raise ValueError(f"--devices {count} spreads compiled environments; control tasks take --devices 1.")
    plan.run.demand()  # its length is known now


@contextlib.contextmanager
def prepared(plan: TrainPlan, count: int = 1) -> Iterator[Backend]:
    """The same, with worker processes that end with the block."""
    _validate(plan, count)
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
    """Bytes that a seed needs on the device without its replay: networks, optimizers, and the bonus's buffers."""
    return memory.size_of(jax.eval_shape(run.learner(spec).start_without_replay, jax.random.key(0)))


def require_memory(run: ControlConfig, size: int, seeds: int, rest: int = 0) -> None:
    """Raise an error for replays of `size` bytes a seed that do not fit, with `rest` bytes of each seed's other state.

    They must fit on the device, and their copies in main memory while a checkpoint is written.
    """
    copies = 2 + (jax.default_backend() == "cpu")  # on a CPU the state itself is there too
    total = seeds * (size + rest)
    for needed, free, where in (
        (total, memory.free(), "on the device"),
        (copies * total, memory.free_on_host(), "on the host, for a checkpoint is a copy"),
    ):
        if free is None or needed <= free:
            continue
        dreams = isinstance(run, DreamerConfig)  # its frames have one size
        fewer = "train fewer --seeds or " * (seeds > 1)
        smaller = " or --set task.size=..." * (run.task.pixels and not dreams)
        raise ValueError(
            f"A replay of {run.replay.capacity:,} steps needs {memory.in_words(size)}"
            f"{f', and the networks and bonus {memory.in_words(rest)},' * (rest > 0)} for each of {seeds} "
            f"seed{'s' * (seeds > 1)}; {memory.in_words(needed)} are needed {where}, and {memory.in_words(free)} are "
            f"free: {fewer}set a smaller --set replay{'.steps' * dreams}.capacity=...{smaller}."
        )


class ControlBackend:
    """The environments of every seed, where they stand, and the learner beside them."""

    def __init__(self, plan: TrainPlan):
        run: ControlConfig = plan.run  # type: ignore[assignment]
        self.plan, self.run, self.task, self.at = plan, run, run.task, -1
        self._training: WorkerPool | None = None
        self._judge: WorkerPool | None = None
        try:
            spec = self.workers.spec
            require_memory(run, run.replay.size_of(spec), len(plan.seeds), memory_outside_replay(run, spec))
            self.learning = ControlLearner(run, spec, plan.seeds)
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
        return state._replace(learners=jax.device_put(state.learners), carries=jax.device_put(state.carries))

    def advance(self, run: Any, state: ControlState, n: Any) -> tuple[ControlState, compiled_envs.LogRecord]:
        """n actions of every seed, and what they measured: `compiled_envs.advance` for control tasks."""
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
        learning.clear_waiting()
        walk = AsyncStepper(self.plan, learning, workers, list(state.learners), state.came, state.age, state.carries)
        walk.go(begins, n)
        self.at = begins + n
        scalars, bad = learning.row(walk.learners, walk.sums, self.at)
        learnt, carries = tuple(walk.learners), tuple(walk.carries)
        after = ControlState(learnt, workers.save(), walk.transitions, walk.age, np.asarray(self.at, np.int64), carries)
        return after, compiled_envs.LogRecord({**walk.tally.means(), **scalars}, bad)  # type: ignore

    def examine(self, run: Any, state: ControlState, seeds: PyTree) -> Metrics:
        """Evaluate every seed over whole episodes with the mean action, as `compiled_envs.evaluate_seeds` does."""
        del run, seeds
        k, each = int(state.k), range(self.plan.episodes)
        seeds = [seed_for(seed, k, _JUDGED, i) for seed in self.plan.seeds for i in each]
        with self._close_on_error():
            self._judge = judge = self._judge or WorkerPool(self.task, seeds, parts=len(state.learners))
            judge.reset(seeds)
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
