"""Replays of a control run in the host's memory, where they do not fit on the device."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from made.core import Transition, trees
from made.training.off_policy import HostBatch, ReplayLearner
from made.training.replay import ReplayBufferState


def cpu_device() -> Any:
    """The host's own processor beside an accelerator; None where there is none or it is the default."""
    if jax.default_backend() == "cpu":
        return None
    try:
        return jax.devices("cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        return None


class DeviceMirror:
    """Arrays of a list on another device, copied there when they are others than at the last call."""

    def __init__(self, device: Any):
        self._device = device
        self._of: dict[int, Array] = {}
        self._copied: dict[int, Array] = {}

    def __call__(self, arrays: Sequence[Array], which: Sequence[int]) -> list[Any]:
        """Those of the list, None in the place of the others; of all if none are named."""
        which = which or range(len(arrays))
        if list(which) != list(self._of) or any(arrays[i] is not x for i, x in self._of.items()):
            self._of = {i: arrays[i] for i in which}
            jax.block_until_ready(list(self._of.values()))  # it lets other threads go on, which copying may not
            self._copied = dict(zip(which, jax.device_put(list(self._of.values()), self._device), strict=True))
        return [self._copied.get(i) for i in range(len(arrays))]


class Exclusive:
    """Calls from several threads that wait for each other, each until what it gives is there.

    A device that is given the updates of all seeds at once is done with all of them at the same moment. Then all seeds
    act, and it has nothing to do. One after the other, whoever has learnt acts while the next one learns.
    """

    def __init__(self):
        self._turn = threading.Lock()

    def __call__(self, call: Callable, *given: Any) -> Any:
        with self._turn:
            return jax.block_until_ready(call(*given))


class StepBuffer:
    """Steps of one seed, or of all as lanes, that are stored `many` at a time: one call instead of as many."""

    def __init__(self, many: int, axis: int):
        self.many, self._axis = many, axis
        self._steps: list[Transition] = []

    def add(self, step: Transition) -> None:
        """One step more, leaves [1, N, ...], or [L, 1, N, ...] where the axis of time is 1."""
        self._steps.append(step)

    def forget(self) -> None:
        """Nothing waits."""
        self._steps = []

    def stored(
        self, store: Callable[[list[Array], Transition], list[Array]], leaves: list[Array], all_steps: bool
    ) -> Any:
        """The leaves once whole stretches are stored; or all that waits, the rest of a stretch one by one."""
        while len(self._steps) >= self.many:
            first, self._steps = self._steps[: self.many], self._steps[self.many :]
            leaves = store(leaves, jax.tree.map(lambda *x: np.concatenate(x, self._axis), *first))
        while all_steps and self._steps:
            leaves = store(leaves, self._steps.pop(0))
        return leaves


_DRAWN = 0x647261776E  # sets the seeds of draws apart from those of first actions


class HostReplay:
    """The replays of some seeds in the host's memory: of all lanes of a program, leaves [L, ...], or of one seed.

    The generator of a draw is made from the seed and the number of the action, so that it is no part of the state, and
    a run may go on in either place. A batch is drawn, and its copy to the device begun, before the step that comes with
    it is there: while the device is busy with the update before.
    """

    def __init__(self, learner: ReplayLearner, seeds: Sequence[int], as_lanes: bool):
        self.learner, self.seeds, self.as_lanes = learner, seeds, as_lanes
        self.held: Any = None
        self._each: list[ReplayBufferState] = []  # views of what is held, one a seed
        self._ahead: tuple[int, HostBatch] | None = None

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

    def push(self, transitions: Transition) -> np.ndarray:
        """Store one step of each seed, leaves [L, 1, 1, ...] or [1, 1, ...]; returns where they stand."""
        replay, steps = (
            self.learner.replay,
            jax.tree.map(lambda x: x[:, 0], transitions) if self.as_lanes else transitions,
        )
        new = [np.array([[one.taken % replay.room[0]]], np.int32) for one in self._each]
        for i, one in enumerate(self._each):
            replay.push(one, trees.index(steps, i))
        return self._joined(new)

    def look_ahead(self, t: int) -> None:
        """Draw for the t-th action, before its step is there."""
        draws = [self.learner.hand(one, self._random(i, t)) for i, one in enumerate(self._each)]
        self._ahead = t, jax.device_put(self._joined(draws))

    def drawn(self, t: int) -> HostBatch:
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
