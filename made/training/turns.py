"""Actions of a control run, one after the other: seeds that do not share a program take turns on the device.

    a turn:   receive step t - 1  ->  ask for action t  ->  send it  ->  learn from step t - 1

The update of one seed is queued only after the action of the next was asked for. So the device has work while the host
waits for that action, and environments are stepped and drawn while other seeds have their turns. What a seed does and
in which order is the same as if it were alone, whoever is done first.
"""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PyTree

from made.control.worker import Workers
from made.core import Transition
from made.training import lanes
from made.training.control_learning import Learning, told
from made.training.plan import Plan
from made.training.session import demand_finite

AT_RANDOM = 0x72616E64  # sets the seeds of first actions apart from those of training


class Walk:
    """A stretch of training: what learns, what it remembers, and the last step of every environment.

    `learners` and `carries` are divided as in `made.training.control_learning`; each state is a part of `workers`.
    """

    def __init__(
        self, plan: Plan, learning: Learning, workers: Workers, learners: list[Any], came: Transition, age: np.ndarray,
        carries: tuple[PyTree, ...],
    ):  # fmt: skip
        self.plan, self.learning, self.workers = plan, learning, workers
        self.learners, self.carries, self.age = learners, list(carries), age.copy()
        self.sums: list[Any] = [None] * len(learners)
        self.tally = Tally(len(plan.seeds))
        self._places = [workers.place(part) for part in range(len(learners))]
        self._came = [jax.tree.map(lambda x, place=place: x[place], came) for place in self._places]
        self._acted: list[Any] = [None] * len(learners)  # what was seen and done, while its outcome is waited for

    @property
    def came(self) -> Transition:
        """The last step of every environment, [L, ...]."""
        return jax.tree.map(lambda *x: np.concatenate(x), *self._came)

    def go(self, begins: int, n: int) -> None:
        """n actions of every seed, from that one on."""
        parts, late = range(len(self.learners)), None
        for t in range(begins, begins + n):
            for part in parts:
                if t > begins:
                    self._receive(part)
                asked = self._ask(part, t)
                if late is not None:
                    self._learn(*late)
                self._send(part, asked, t)
                late = part, t
                if len(parts) == 1:  # nobody else is asked: its own next action comes after this update
                    late = self._learn(part, t)
        if late is not None:
            self._learn(*late)
        for part in parts:
            self._receive(part)

    def _ask(self, part: int, t: int) -> np.ndarray | Array:
        """At random before learning begins, then the agent's own."""
        place, workers = self._places[part], self.workers
        if t < self.plan.run.seed_steps:  # type: ignore[attr-defined]
            draw = lambda seed: np.random.default_rng((seed, t, AT_RANDOM)).uniform(-1, 1, workers.spec.action.shape)  # noqa: E731
            return np.stack([draw(seed) for seed in self.plan.seeds[place]]).astype(np.float32)
        given = self.learners[part], self.carries[part], self.age[place] == 0, workers.obs[place]
        self.carries[part], asked = self.learning.ask(part, *given, t)
        return asked

    def _send(self, part: int, asked: np.ndarray | Array, t: int) -> None:
        actions, place = told(asked), self._places[part]
        if not np.isfinite(actions).all():
            wrong = np.full(len(self.plan.seeds), lanes.GOOD)
            wrong[place] = np.where(np.isfinite(actions).all(-1), lanes.GOOD, t)
            demand_finite(self.plan, wrong)
        self._acted[part] = self.workers.seen[place], actions
        self.workers.send(actions, part)

    def _learn(self, part: int, t: int) -> None:
        if t:
            self.learning.learn(part, self.learners, self.sums, self._came[part], t)

    def _receive(self, part: int) -> None:
        step, place = self.workers.receive(part), self._places[part]
        seen, actions = self._acted[part]
        self._came[part] = Transition(seen, actions, step.reward, step.frame, step.terminated, step.truncated)  # type: ignore
        self.age[place] += 1
        ended = step.terminated | step.truncated
        self.tally.add(place, ended, step.total, self.age[place] * self.plan.run.unroll)
        self.age[place] = np.where(ended, 0, self.age[place])


class Tally:
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


def played(learning: Learning, learners: Any, workers: Workers, episodes: int, steps: int, k: int) -> np.ndarray:
    """The return of the first episode of every environment by the mean action, `episodes` of each seed, [L * episodes].

    k is the number of the action after which it is asked.
    """
    totals, began = np.full(workers.n_envs, np.nan), np.ones(workers.n_envs, bool)
    carries, parts = list(learning.carries(episodes)), range(len(learners))

    def hear(part: int) -> None:
        step, place = workers.receive(part), workers.place(part)
        began[place] = step.terminated | step.truncated
        first = began[place] & np.isnan(totals[place])
        totals[place] = np.where(first, step.total, totals[place])

    for i in range(steps):
        for part in parts:
            if i:
                hear(part)
            given = learners[part], carries[part], began[workers.place(part)], workers.obs[workers.place(part)]
            carries[part], asked = learning.ask(part, *given, k, i, explore=False)
            workers.send(told(asked), part)
    for part in parts:
        hear(part)
    return totals
