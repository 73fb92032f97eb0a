"""The backend of control tasks: one environment a seed in worker processes, while the learner updates in parallel.

    action t:   receive step t - 1  ->  act  ->  send action t  ->  learn from step t - 1

The update overlaps physics and rendering, and the order of events is the same whatever the timing: the agent that acts
at step t has learned from the steps up to t - 2. The last step, which is not learned from yet, belongs to the state, as
do the replay and the environments, so a run resumes from a checkpoint to the bit.

Launching the kernels of an update takes the host as long as a GPU takes to run them: 2.4 and 2.5 ms without a bonus on
an H200 (results/control/h200_earlier.json, "third"). With one thread for each seed the launches overlap, and the device
works for one seed while another waits for an action or a frame. The order of events within a seed does not depend on
the others. On a CPU the seeds take turns in one thread, because the matmuls use all cores.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int64, PyTree

from made.core import Metrics, Spec, Transition, trees
from made.envs.control.gym_env import Arrays
from made.envs.control.worker_pool import WorkerError, WorkerPool
from made.training import checkpoint, sharding
from made.training.backends import Backend, LogRecord, TrainPlan, compiled_envs, raise_if_nan
from made.training.backends.control_learner import ControlLearner, memory_outside_replay, require_memory, to_numpy
from made.training.backends.host_envs import seed_for
from made.training.control_config import ControlConfig
from made.training.off_policy import ReplayLearnerState

AT_RANDOM = 0x72616E64  # sets the seeds of first actions apart from those of training
_JUDGED = 0x6A756467  # sets the seeds of evaluations apart from those of training


class ControlState(NamedTuple):
    """All that changes in a run: what learns is on the device, all else in NumPy, at whatever width."""

    learners: tuple[ReplayLearnerState, ...]  # one of all seeds, leaves [L, ...], or one a seed
    workers: Arrays
    came: Transition  # [L, ...] the last step, not learned from yet; images are single frames
    age: Int64[np.ndarray, " L"]  # actions in the episode so far
    k: Int64[np.ndarray, ""]  # actions so far
    carries: tuple[PyTree, ...] = ()  # recurrent states, divided as `learners` are


def restored(plan: TrainPlan, saved: checkpoint.Checkpoint) -> tuple[Spec, ControlState]:
    """What the environments look like, and the state of a checkpoint. The processes end before it returns."""
    with contextlib.closing(ControlBackend(plan)) as backend:
        return backend.workers.spec, backend.put(checkpoint.restore(saved, backend.like()))


def learner_of(state: ControlState, lane: int, seeds: int, pixels: bool) -> ReplayLearnerState:
    """What learns of one of so many seeds, whether they share a state or have one each."""
    shared = len(state.learners) < seeds or not pixels
    return trees.index(state.learners[0], lane) if shared else state.learners[lane]


class ControlBackend(Backend):
    """The environments of every seed and the learner. Programs are compiled at the first action and update."""

    def __init__(self, plan: TrainPlan, devices: int = 1):
        if devices != 1:
            raise ValueError(f"--devices {devices} spreads compiled environments; control tasks take --devices 1.")
        run: ControlConfig = plan.run  # type: ignore[assignment]
        run.demand()  # its length is known now
        self.plan, self.task, self.at = plan, run.task, -1
        self._training: WorkerPool | None = None
        self._judge: WorkerPool | None = None
        with self._close_on_error():
            spec = self.workers.spec
            require_memory(run, run.replay.size_of(spec), len(plan.seeds), memory_outside_replay(run, spec))
            self.learning = ControlLearner(run, spec, plan.seeds)

    @property
    def workers(self) -> WorkerPool:
        """One environment for each seed, started where there are none."""
        if self._training is None:
            with self._close_on_error():
                parts = len(self.plan.seeds) if self.task.pixels else 1
                self._training = WorkerPool(self.task, self.plan.seeds, parts=parts)
        return self._training  # type: ignore

    def close(self) -> None:
        """End all processes. They are started again where they are needed."""
        for workers in (self._training, self._judge):
            if workers is not None:
                workers.close()
        self._training = self._judge = None
        self.at = -1

    @contextlib.contextmanager
    def _close_on_error(self) -> Iterator[None]:
        """After an error environments may be in the middle of a step, so the next call starts new ones.

        The error of a process names the process and has the last line of its traceback.
        """
        try:
            yield
        except BaseException as error:
            self.close()
            if not isinstance(error, WorkerError):
                raise
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            message = lines[0] if len(lines) == 1 else f"{lines[0].split(' failed:')[0]} failed: {lines[-1]}"
            goes_on = "The same command goes on from the last checkpoint, where there is one."
            raise ValueError(f"{message.rstrip('.')}. {goes_on}") from error

    def like(self) -> ControlState:
        """The shapes of a state, and where it has numbers those of the start."""
        workers, n = self.workers, len(self.plan.seeds)
        blank, action = (
            np.zeros_like(workers.newest(workers.obs)),
            np.zeros((n, *workers.spec.action.shape), np.float32),
        )
        came = Transition(blank, action, np.zeros(n, np.float32), blank, np.zeros(n, bool), np.zeros(n, bool))  # type: ignore
        age, k, carries = np.zeros(n, np.int64), np.asarray(0, np.int64), self.learning.carries(1)
        return ControlState(self.learning.like(), workers.save(), came, age, k, carries)

    def init(self) -> ControlState:
        """The state before the first action."""
        self.workers.reset(self.plan.seeds)
        self.at = 0
        return self.like()._replace(learners=self.learning.start())

    def put(self, state: ControlState) -> ControlState:
        """What learns on the device, as it was read from a checkpoint."""
        return state._replace(learners=jax.device_put(state.learners), carries=jax.device_put(state.carries))

    def advance(self, state: ControlState, n: int) -> tuple[ControlState, LogRecord]:
        """n actions of every seed, and what they measured."""
        with self._close_on_error():
            if (first := int(state.k)) != self.at:
                self.workers.load(state.workers)
            stepper = AsyncStepper(self.plan, self.learning, self.workers, state)
            in_threads(lambda part, i: stepper.turn(part, first, i, n), len(state.learners), n + 1)
            self.at = first + n
            learners, scalars, bad = self.learning.close(stepper.learners, stepper.sums, self.at)
            count, total, length = stepper.ended
            some = np.where(count > 0, count, np.nan)  # NaN where no episode ended
            episodes = {"return": total / some, "length": length / some, "episodes": count}
            came = jax.tree.map(lambda *x: np.concatenate(x), *stepper.steps)
            after = (self.workers.save(), came, stepper.age, np.asarray(self.at, np.int64), tuple(stepper.carries))
            return ControlState(learners, *after), LogRecord({**episodes, **scalars}, bad)  # type: ignore

    def evaluate(self, state: ControlState) -> Metrics:
        """Mean return of every seed over complete episodes with the mean action."""
        k, episodes, steps = int(state.k), self.plan.episodes, self.task.horizon
        seeds = [seed_for(seed, k, _JUDGED, i) for seed in self.plan.seeds for i in range(episodes)]
        totals, began = np.full(len(seeds), np.nan), np.ones(len(seeds), bool)
        carries = list(self.learning.carries(episodes))
        leaves = [jax.tree.leaves(one) for one in state.learners]

        def turn(part: int, i: int) -> None:
            place = workers.place(part)
            if i:
                step = workers.receive(part)
                began[place] = step.terminated | step.truncated
                totals[place] = np.where(began[place] & np.isnan(totals[place]), step.total, totals[place])
            if i < steps:
                given = leaves[part], carries[part], began[place], workers.obs_of(part)
                carries[part], asked = self.learning.act(part, *given, k, i, explore=False)
                workers.send(to_numpy(asked), part)

        with self._close_on_error():
            self._judge = workers = self._judge or WorkerPool(self.task, seeds, parts=len(state.learners))
            workers.reset(seeds)
            in_threads(turn, len(state.learners), steps + 1)
        count = np.full(len(self.plan.seeds), episodes, float)
        return {"eval_return": totals.reshape(-1, episodes).mean(1), "eval_episodes": count}  # type: ignore[dict-item]


class AsyncStepper:
    """The actions up to the next log record. Lists have an entry for each part: one of all seeds, or one a seed."""

    def __init__(self, plan: TrainPlan, learning: ControlLearner, workers: WorkerPool, state: ControlState):
        self.plan, self.learning, self.workers = plan, learning, workers
        parts = range(len(state.learners))
        self.learners, self.carries, self.age = learning.open(state.learners), list(state.carries), state.age.copy()
        self.sums: list[Any] = [None for _ in parts]
        self.ended = np.zeros((3, len(plan.seeds)))  # episodes, and the sums of their returns and lengths
        self._slices = [workers.place(part) for part in parts]
        self.steps = [trees.index(state.came, place) for place in self._slices]  # type: ignore[arg-type]
        self._acted: list[Any] = [None for _ in parts]  # (observation, action) of the step that is waited for

    def turn(self, part: int, first: int, i: int, n: int) -> None:
        """The i-th of n actions of a part, after `first` earlier ones; i = n receives the last step."""
        if i:
            self._receive(part)
        if i == n:
            return
        t, workers, place = first + i, self.workers, self._slices[part]
        obs = workers.obs_of(part)
        if t < self.plan.run.seed_steps:  # type: ignore[attr-defined]
            rngs = [np.random.default_rng((seed, t, AT_RANDOM)) for seed in self.plan.seeds[place]]
            actions = np.stack([rng.uniform(-1, 1, workers.spec.action.shape) for rng in rngs]).astype(np.float32)
        else:
            given = self.learners[part], self.carries[part], self.age[place] == 0, obs
            self.carries[part], asked = self.learning.act(part, *given, t)
            actions = to_numpy(asked)
        if not np.isfinite(actions).all():
            wrong = np.full(len(self.plan.seeds), compiled_envs.NO_FAILURE)
            wrong[place] = np.where(np.isfinite(actions).all(-1), compiled_envs.NO_FAILURE, t)
            raise_if_nan(self.plan, wrong)
        self._acted[part] = workers.newest(obs), actions
        workers.send(actions, part)
        if t:
            given = self.learners[part], self.sums[part], self.steps[part]
            self.learners[part], self.sums[part] = self.learning.learn(part, *given, t)

    def _receive(self, part: int) -> None:
        step, place = self.workers.receive(part), self._slices[part]
        self.steps[part] = Transition(*self._acted[part], step.reward, step.frame, step.terminated, step.truncated)  # type: ignore
        self.age[place] += 1
        ended, frames = step.terminated | step.truncated, self.age[place] * self.plan.run.unroll
        self.ended[:, place] += np.where(ended, (np.ones(len(ended)), step.total, frames), 0.0)
        self.age[place] = np.where(ended, 0, self.age[place])


def in_threads(turn: Callable[[int, int], None], parts: int, turns: int, threads: bool | None = None) -> None:
    """turn(part, i) for every part and 0 <= i < turns, those of a part in their order; in threads unless on a CPU.

    If one fails, the others end after their current turn, and its error is raised.
    """
    if parts == 1 or not (jax.default_backend() != "cpu" if threads is None else threads):
        for i in range(turns):
            for part in range(parts):
                turn(part, i)
        return
    over, failed = threading.Event(), []

    def alone(part: int) -> None:
        sharding.cancel_on(over)
        for i in range(turns):
            if over.is_set():
                return
            try:
                turn(part, i)
            except BaseException as error:
                failed.append(error)
                over.set()

    with ThreadPoolExecutor(parts) as pool:
        try:
            for done in [pool.submit(alone, part) for part in range(parts)]:
                done.result()
        finally:
            over.set()  # the main thread was interrupted while waiting
    if failed:
        raise failed[0]
