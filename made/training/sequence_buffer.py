"""A replay buffer that is sampled in windows of consecutive steps, for agents that learn from sequences.

Steps are in a `made.training.replay.ReplayBuffer`, every observation once. This module adds the episode that each step
belongs to.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

from made.core import Spec, Transition
from made.training.replay import (
    NO_NOTES,
    Notes,
    RawBatch,
    ReplayBuffer,
    ReplayBufferState,
    require_memory,
    stack_frames,
)


class SequenceBufferState(NamedTuple):
    """The steps, and for each the number of its episode's first one, counted as in the replay."""

    steps: ReplayBufferState
    begun: Int[Array, "N C"]


class SequenceBuffer(eqx.Module):
    """Windows of `length` steps, drawn evenly from all that `steps` holds.

    `whole` windows lie within one episode, as in Dreamer v1; while no episode is long enough, windows are drawn as if
    it were not set. Without it a window may hold the ends of episodes, which tasks with short ones need. The room for
    frames follows from `steps.shortest`.

    >>> from made.core import Space
    >>> pixels = Spec(Space((64, 64, 3), jnp.uint8), Space((1,), jnp.float32, None, -1.0, 1.0))
    >>> round(SequenceBuffer(ReplayBuffer(250_000, shortest=500)).size_of(pixels) / 1e9, 2)
    3.08
    """

    steps: ReplayBuffer = ReplayBuffer(250_000, shortest=500)
    length: int = eqx.field(static=True, default=50)
    whole: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        if self.length < 1:
            raise ValueError(f"A window has at least 1 step, got length={self.length}: Dreamer v1 has 50.")
        if self.length > self.steps.room[0]:
            raise ValueError(
                f"SequenceBuffer draws windows of length steps from streams with room for at least as many, got "
                f"length={self.length} and {self.steps.room[0]} steps a stream: raise the capacity of its steps, or "
                "draw shorter windows."
            )

    @property
    def stack(self) -> int:
        """Frames that an observation is made of."""
        return self.steps.stack

    @property
    def capacity(self) -> int:
        """Steps that are held."""
        return self.steps.capacity

    def size_of(self, spec: Spec, notes: Notes = NO_NOTES) -> int:
        """Bytes that it takes, known before anything is allocated."""
        return self.steps.size_of(spec, notes) + 4 * self.steps.streams * self.steps.room[0]

    def init(self, spec: Spec, notes: Notes = NO_NOTES) -> SequenceBufferState:
        """Nothing held, on the device. `notes` are a bonus's notes of one step, where it writes any."""
        require_memory(self.size_of(spec, notes), "replay.steps.capacity")
        steps = self.steps.init(spec, notes)
        return SequenceBufferState(steps, jnp.zeros_like(steps.at))

    def add(self, state: SequenceBufferState, step: Transition) -> SequenceBufferState:
        """Store one step of every stream, leaves [N, ...]; next_obs is the true successor."""
        steps, room = state.steps, self.steps.room[0]
        begun = jnp.where(steps.begins, steps.taken, state.begun[:, (steps.taken - 1) % room])
        return SequenceBufferState(self.steps.add(steps, step), state.begun.at[:, steps.taken % room].set(begun))

    def last_steps(self, state: SequenceBufferState) -> Bool[Array, "N C"]:
        """Which of the steps, where they lie, a window can end with."""
        taken, room = state.steps.taken, self.steps.room[0]
        number = taken - 1 - (taken - 1 - np.arange(room)) % room
        first = state.steps.first[:, None]
        reaches = lambda earliest: number - earliest >= self.length - 1  # noqa: E731
        held = reaches(first)
        if not self.whole:
            return held
        within = reaches(jnp.maximum(first, state.begun))
        return jnp.where(within.any(), within, held)

    def size(self, state: SequenceBufferState) -> Int[Array, ""]:
        """How many windows can be drawn."""
        return self.last_steps(state).sum()

    def take(self, state: SequenceBufferState, index: Any) -> RawBatch:
        """The windows of those numbers below `size`, leaves [T, n, ...]."""
        taken, room = state.steps.taken, self.steps.room[0]
        ends = jnp.cumsum(self.last_steps(state).reshape(-1))
        at = jnp.minimum(jnp.searchsorted(ends, index, side="right"), ends.size - 1)
        stream, slot = at // room, at % room
        last = taken - 1 - (taken - 1 - slot) % room
        number = last + np.arange(1 - self.length, 1)[:, None]
        return self.steps.read(state.steps, jnp.broadcast_to(stream, number.shape), number)

    def sample(self, state: SequenceBufferState, n: int, key: Key[Array, ""]) -> Transition:
        """n windows drawn evenly with replacement, leaves [T, n, ...]. At least `length` steps must be held."""
        index = jax.random.randint(key, (n,), 0, jnp.maximum(self.size(state), 1))
        return stack_frames(self.take(state, index), self.stack)

    def batch(self, state: SequenceBufferState, n: int, key: Key[Array, ""]) -> tuple[Transition, None]:
        """`sample`. Steps of windows have no indices, because no bonus keeps features of them."""
        return self.sample(state, n, key), None

    def recent(
        self, state: SequenceBufferState, n: int, key: Key[Array, ""], window: Array | int, stack: int | None = None
    ) -> Transition:
        """n single steps sampled uniformly from the last `window`, leaves [1, n, ...]."""
        return self.steps.recent(state.steps, n, key, window, stack)

    def latest(self, state: SequenceBufferState, rows: int) -> Transition:
        """The last `rows` steps of every stream, oldest first, leaves [rows, N, ...]. So many must be held."""
        return self.steps.latest(state.steps, rows)

    def indices(self, state: SequenceBufferState, rows: int) -> None:
        """None: see `batch`."""
