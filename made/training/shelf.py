"""Replays of a control run in the host's memory, where they do not fit on the device."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from made import trees
from made.core import Transition
from made.off_policy import Handed, Learner
from made.replay import ReplayState

_DRAWN = 0x647261776E  # sets the seeds of draws apart from those of first actions


class Shelf:
    """The replays of some seeds in the host's memory: of all lanes of a program, leaves [L, ...], or of one seed.

    The generator of a draw is made from the seed and the number of the action, so that it is no part of the state, and
    a run may go on in either place. A batch is drawn, and its copy to the device begun, before the step that comes with
    it is there: while the device is busy with the update before.
    """

    def __init__(self, learner: Learner, seeds: Sequence[int], as_lanes: bool):
        self.learner, self.seeds, self.as_lanes = learner, seeds, as_lanes
        self.held: Any = None
        self._each: list[ReplayState] = []  # views of what is held, one a seed
        self._ahead: tuple[int, Handed] | None = None

    def blank(self, zeros: Callable = np.zeros) -> Any:
        """Replays that hold nothing."""
        lead = (len(self.seeds),) if self.as_lanes else ()
        shapes = self.learner.replay.shapes(self.learner.spec)
        empty = jax.tree.map(lambda x: zeros((*lead, *x.shape), x.dtype), shapes)
        return empty._replace(begins=np.ones_like(empty.begins))

    def open(self, held: Any) -> None:
        """Go on with these replays; what was drawn ahead from others is dropped."""
        if held is not self.held:
            self.held, self._ahead = held, None
            lane = lambda i: jax.tree.map(lambda x: x[i, ...], held)  # noqa: E731
            self._each = [lane(i) for i in range(len(self.seeds))] if self.as_lanes else [held]

    def push(self, came: Transition) -> np.ndarray:
        """Store one step of each seed, leaves [L, 1, 1, ...] or [1, 1, ...]; returns where they stand."""
        replay, steps = self.learner.replay, jax.tree.map(lambda x: x[:, 0], came) if self.as_lanes else came
        new = [np.array([[one.taken % replay.room[0]]], np.int32) for one in self._each]
        for i, one in enumerate(self._each):
            replay.push(one, trees.index(steps, i))
        return self._joined(new)

    def look_ahead(self, t: int) -> None:
        """Draw for the t-th action, before its step is there."""
        draws = [self.learner.hand(one, self._random(i, t)) for i, one in enumerate(self._each)]
        self._ahead = t, jax.device_put(self._joined(draws))

    def drawn(self, t: int) -> Handed:
        """What was drawn for the t-th action; a run that goes on from a checkpoint draws it again."""
        if self._ahead is None or self._ahead[0] != t:
            self.look_ahead(t)
        return self._ahead[1]  # type: ignore[index]

    def shown(self, t: int, rows: int) -> tuple[Any, ...]:
        """What `Learner.meet` is given when learning begins."""
        learner, room = self.learner, self.learner.replay.room[0]
        new = [((one.taken - rows + np.arange(rows)[:, None]) % room).astype(np.int32) for one in self._each]
        newest = [learner.newest(one, rows) for one in self._each]
        draws = [learner.hand(one, self._random(i, t)) for i, one in enumerate(self._each)]
        return self._joined(draws), self._joined(newest), self._joined(new)

    def _random(self, i: int, t: int) -> np.random.Generator:
        return np.random.default_rng((self.seeds[i], t, _DRAWN))

    def _joined(self, parts: list[Any]) -> Any:
        return jax.tree.map(lambda *x: np.stack(x), *parts) if self.as_lanes else parts[0]
