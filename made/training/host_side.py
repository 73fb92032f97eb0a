"""What a run keeps on the host so that nobody waits for a device that is busy with the updates of another seed.

A device takes its work in the order in which it is given. Where Dreamer learns a hundred times at once, an action that
is asked of the device comes after all of them, and from the host's own processor at once.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from made.core import Transition


def processor() -> Any:
    """The host's own processor beside an accelerator; None where there is none or it is the default."""
    if jax.default_backend() == "cpu":
        return None
    try:
        return jax.devices("cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        return None


class Copies:
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


class OneAfterTheOther:
    """Calls from several threads that wait for each other, each until what it gives is there.

    A device that is given the updates of all seeds at once is done with all of them at the same moment. Then all seeds
    act, and it has nothing to do. One after the other, whoever has learnt acts while the next one learns.
    """

    def __init__(self):
        self._turn = threading.Lock()

    def __call__(self, call: Callable, *given: Any) -> Any:
        with self._turn:
            return jax.block_until_ready(call(*given))


class Waiting:
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

    def stored(self, store: Callable[[list[Array], Transition], list[Array]], leaves: list[Array], whole: bool) -> Any:
        """The leaves once whole stretches are stored; or all that waits, the rest of a stretch one by one."""
        while len(self._steps) >= self.many:
            first, self._steps = self._steps[: self.many], self._steps[self.many :]
            leaves = store(leaves, jax.tree.map(lambda *x: np.concatenate(x, self._axis), *first))
        while whole and self._steps:
            leaves = store(leaves, self._steps.pop(0))
        return leaves
