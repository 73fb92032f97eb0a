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

from made.core import EpisodeNote, Spec, Transition
from made.training.replay import (
    HostReplay,
    RawBatch,
    ReplayBuffer,
    ReplayBufferState,
    available_memory,
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

    def size_of(self, spec: Spec, notes: tuple[EpisodeNote, EpisodeNote] = (EpisodeNote(), EpisodeNote())) -> int:
        """Bytes that it takes, known before anything is allocated."""
        return self.steps.size_of(spec, notes) + 4 * self.steps.streams * self.steps.room[0]

    def init(
        self, spec: Spec, notes: tuple[EpisodeNote, EpisodeNote] = (EpisodeNote(), EpisodeNote())
    ) -> SequenceBufferState:
        """Nothing held, on the device. `notes` are a bonus's notes of one step, where it writes any."""
        require_memory(
            self.size_of(spec, notes),
            available_memory(),
            "on the device: HostSequenceBuffer keeps it in the host's memory",
        )
        steps = self.steps.init(spec, notes)
        return SequenceBufferState(steps, jnp.zeros_like(steps.at))

    def push(self, state: SequenceBufferState, step: Transition) -> SequenceBufferState:
        """Store one step of every stream, leaves [N, ...]; next_obs is the true successor."""
        slot, begun = self._episode_start(state)
        return SequenceBufferState(self.steps.push(state.steps, step), state.begun.at[:, slot].set(begun))

    def _episode_start(self, state: SequenceBufferState) -> tuple[Any, Any]:
        """(where the next step goes, the number of its episode's first one)."""
        xp, steps, room = _module(state), state.steps, self.steps.room[0]
        before = state.begun[:, (steps.taken - 1) % room]
        return steps.taken % room, xp.where(steps.begins, steps.taken, before)

    def last_steps(self, state: SequenceBufferState) -> Bool[Array, "N C"]:
        """Which of the steps, where they lie, a window can end with."""
        xp, taken, room = _module(state), state.steps.taken, self.steps.room[0]
        number = taken - 1 - (taken - 1 - np.arange(room)) % room
        first = state.steps.first[:, None]
        reaches = lambda earliest: number - earliest >= self.length - 1  # noqa: E731
        held = reaches(first)
        if not self.whole:
            return held
        within = reaches(xp.maximum(first, state.begun))
        return xp.where(within.any(), within, held)

    def size(self, state: SequenceBufferState) -> Int[Array, ""]:
        """How many windows can be drawn."""
        return self.last_steps(state).sum()

    def take(self, state: SequenceBufferState, index: Any) -> RawBatch:
        """The windows of those numbers below `size`, leaves [T, n, ...]."""
        xp, taken, room = _module(state), state.steps.taken, self.steps.room[0]
        ends = xp.cumsum(self.last_steps(state).reshape(-1))
        at = xp.minimum(xp.searchsorted(ends, index, side="right"), ends.size - 1)
        stream, slot = at // room, at % room
        last = taken - 1 - (taken - 1 - slot) % room
        number = last + np.arange(1 - self.length, 1)[:, None]
        return self.steps.read(state.steps, xp.broadcast_to(stream, number.shape), number)

    def sample(self, state: SequenceBufferState, n: int, key: Key[Array, ""]) -> Transition:
        """n windows drawn evenly with replacement, leaves [T, n, ...]. At least `length` steps must be held."""
        index = jax.random.randint(key, (n,), 0, jnp.maximum(self.size(state), 1))
        return stack_frames(self.take(state, index), self.stack)

    def recent(self, state: SequenceBufferState, n: int, key: Key[Array, ""], window: Array | int) -> Transition:
        """n single steps drawn evenly from the last `window`, leaves [1, n, ...]."""
        drawn = self.steps.sample(state.steps, n, key, window)
        return jax.tree.map(lambda x: x[None], drawn)

    def latest(self, state: SequenceBufferState, rows: int) -> Transition:
        """The last `rows` steps of every stream, oldest first, leaves [rows, N, ...]. So many must be held."""
        return self.steps.latest(state.steps, rows)


def _module(state: SequenceBufferState) -> Any:
    """NumPy for a state in the host's memory, jax.numpy for one on the device: the rules are the same."""
    return np if isinstance(state.begun, np.ndarray) else jnp


class HostSequenceBuffer:
    """The same in the host's memory: windows are drawn here, to be copied over and assembled in a compiled program."""

    def __init__(
        self,
        sequences: SequenceBuffer,
        spec: Spec,
        seed: int = 0,
        notes: tuple[EpisodeNote, EpisodeNote] = (EpisodeNote(), EpisodeNote()),
    ):
        self.sequences, self._rng = sequences, np.random.default_rng(seed)
        self._steps = HostReplay(sequences.steps, spec, seed, notes)
        self._episode_start = np.zeros((sequences.steps.streams, sequences.steps.room[0]), np.int32)

    @property
    def state(self) -> Any:
        """A SequenceBufferState of NumPy arrays."""
        return SequenceBufferState(self._steps.state, self._episode_start)  # type: ignore[arg-type]

    def push(self, step: Transition) -> None:
        """Store one step of every stream, leaves [N, ...]."""
        slot, begun = self.sequences._episode_start(self.state)
        self._episode_start[:, slot] = begun
        self._steps.push(step)

    def __len__(self) -> int:
        return int(self.sequences.size(self.state))

    def draw(self, n: int) -> RawBatch:
        """n windows drawn evenly with replacement, as NumPy, leaves [T, n, ...]."""
        most = len(self)
        if not most:
            raise ValueError(f"No window of {self.sequences.length} steps is held yet: push more steps first.")
        return self.sequences.take(self.state, self._rng.integers(0, most, n))

    def recent(self, n: int, window: int) -> RawBatch:
        """n single steps drawn evenly from the last `window`, as NumPy."""
        return self._steps.draw(n, window)
