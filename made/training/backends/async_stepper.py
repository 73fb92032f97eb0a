"""Actions of a control run, one after the other, in a thread for each seed where seeds do not share a program.

    a turn:   receive step t - 1  ->  ask for action t  ->  send it  ->  learn from step t - 1

Launching the kernels of an update takes the host as long as a GPU takes to run them: 2.4 and 2.5 ms without a bonus on
an H200 (results/control/h200_earlier.json, "third"). With one thread for each seed the launches overlap, and the device
works for one seed while another waits for an action or a frame. The order of events within a seed does not depend on
the others. On a CPU the seeds take turns in one thread, because the matmuls use all cores.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PyTree

from made.core import Transition
from made.envs.control.worker_pool import WorkerPool
from made.training import compile_cache
from made.training.backends import compiled_envs
from made.training.backends.control_learner import ControlLearner, Leaves, to_numpy
from made.training.nan_check import raise_if_nan
from made.training.train_plan import TrainPlan

AT_RANDOM = 0x72616E64  # sets the seeds of first actions apart from those of training


class AsyncStepper:
    """A segment of training: the learners, the carries of their agents, and the last step of every environment.

    `learners` and `carries` are split as in `made.training.backends.control_learner`; each has its part of `workers`.
    """

    def __init__(
        self,
        plan: TrainPlan,
        learning: ControlLearner,
        workers: WorkerPool,
        learners: list[Any],
        transitions: Transition,
        age: np.ndarray,
        carries: tuple[PyTree, ...],
    ):
        self.plan, self.learning, self.workers = plan, learning, workers
        self.learners, self.carries, self.age = learners, list(carries), age.copy()
        self.sums: list[Any] = [None] * len(learners)
        self.tally = StepStats(len(plan.seeds))
        self._places = [workers.place(part) for part in range(len(learners))]
        self._transitions = [jax.tree.map(lambda x, place=place: x[place], transitions) for place in self._places]
        self._acted: list[Any] = [None] * len(learners)  # what was seen and done, while its outcome is waited for

    @property
    def transitions(self) -> Transition:
        """The last step of every environment, [L, ...]."""
        return jax.tree.map(lambda *x: np.concatenate(x), *self._transitions)

    def go(self, begins: int, n: int) -> None:
        """n actions of every seed, from that one on."""

        def turn(part: int, i: int) -> None:
            if i:
                self._receive(part)
            if i < n:
                self._send(part, self._ask(part, begins + i), begins + i)
                self._learn(part, begins + i)

        in_threads(turn, len(self.learners), n + 1)

    def _ask(self, part: int, t: int) -> np.ndarray | Array:
        """At random before learning begins, then the agent's own."""
        place, workers = self._places[part], self.workers
        if t < self.plan.run.seed_steps:  # type: ignore[attr-defined]
            draw = lambda seed: np.random.default_rng((seed, t, AT_RANDOM)).uniform(-1, 1, workers.spec.action.shape)  # noqa: E731
            return np.stack([draw(seed) for seed in self.plan.seeds[place]]).astype(np.float32)
        given = self.learners[part], self.carries[part], self.age[place] == 0, workers.obs_of(part)
        self.carries[part], asked = self.learning.ask(part, *given, t)
        return asked

    def _send(self, part: int, asked: np.ndarray | Array, t: int) -> None:
        actions, place = to_numpy(asked), self._places[part]
        if not np.isfinite(actions).all():
            wrong = np.full(len(self.plan.seeds), compiled_envs.NO_FAILURE)
            wrong[place] = np.where(np.isfinite(actions).all(-1), compiled_envs.NO_FAILURE, t)
            raise_if_nan(self.plan, wrong)
        self._acted[part] = self.workers.newest(self.workers.obs_of(part)), actions
        self.workers.send(actions, part)

    def _learn(self, part: int, t: int) -> None:
        if t:
            self.learning.learn(part, self.learners, self.sums, self._transitions[part], t)

    def _receive(self, part: int) -> None:
        step, place = self.workers.receive(part), self._places[part]
        seen, actions = self._acted[part]
        self._transitions[part] = Transition(seen, actions, step.reward, step.frame, step.terminated, step.truncated)  # type: ignore
        self.age[place] += 1
        ended = step.terminated | step.truncated
        self.tally.add(place, ended, step.total, self.age[place] * self.plan.run.unroll)
        self.age[place] = np.where(ended, 0, self.age[place])


class StepStats:
    """The episodes that ended in a row."""

    def __init__(self, seeds: int):
        self.count, self.total, self.length = np.zeros((3, seeds))

    def add(self, place: slice, ended: np.ndarray, total: np.ndarray, length: np.ndarray) -> None:
        """One step more of those seeds."""
        self.count[place] += ended
        self.total[place] += np.where(ended, total, 0.0)
        self.length[place] += np.where(ended, length, 0)

    def means(self) -> dict[str, Any]:
        """What they came to; NaN where none ended. Lengths are in steps of the environment."""
        some = np.where(self.count > 0, self.count, np.nan)
        return {"return": self.total / some, "length": self.length / some, "episodes": self.count}


def evaluate_episodes(
    learning: ControlLearner, learners: Any, workers: WorkerPool, episodes: int, steps: int, k: int
) -> np.ndarray:
    """The return of the first episode of every environment by the mean action, `episodes` of each seed, [L * episodes].

    k is the number of the action after which it is asked.
    """
    totals, began = np.full(workers.n_envs, np.nan), np.ones(workers.n_envs, bool)
    carries, learners = list(learning.carries(episodes)), [Leaves(jax.tree.leaves(one)) for one in learners]

    def turn(part: int, i: int) -> None:
        place = workers.place(part)
        if i:
            step = workers.receive(part)
            began[place] = step.terminated | step.truncated
            totals[place] = np.where(began[place] & np.isnan(totals[place]), step.total, totals[place])
        if i < steps:
            given = learners[part], carries[part], began[place], workers.obs_of(part)
            carries[part], asked = learning.ask(part, *given, k, i, explore=False)
            workers.send(to_numpy(asked), part)

    in_threads(turn, len(learners), steps + 1)
    return totals


def in_threads(turn: Callable[[int, int], None], parts: int, turns: int, threads: bool | None = None) -> None:
    """turn(part, i) for every part and 0 <= i < turns, those of a part in their order; in threads unless on a CPU.

    Where one fails the others end after the turn that they are at, and its error is raised.
    """
    if parts == 1 or not (jax.default_backend() != "cpu" if threads is None else threads):
        for i in range(turns):
            for part in range(parts):
                turn(part, i)
        return
    over, failed = threading.Event(), []

    def alone(part: int) -> None:
        compile_cache.cancel_on(over)
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
            over.set()  # whoever was interrupted while waiting
    if failed:
        raise failed[0]
