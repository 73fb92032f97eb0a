"""Replay buffers as pytrees of arrays, sampled in steps or in windows of consecutive steps.

Every observation is stored once; stacks of frames are built when they are sampled.

An episode of L steps has L + 1 observations, so L + 1 frames are stored, the true successor of its last step included.
A naive replay stores two stacks of three frames for each step, six times as much: 18 GB instead of 3.1 GB for 100,000
steps of 100 x 100 pixels.
"""

import functools
from operator import attrgetter
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, PyTree

from made.core import EpisodeNote, Space, Spec, Transition
from made.core.config import COUNT, check_numbers
from made.training import memory

Notes = tuple[EpisodeNote, EpisodeNote]  # of a step, on its observation and its next one
NO_NOTES: Notes = (EpisodeNote(), EpisodeNote())


class ReplayBufferState(NamedTuple):
    """N streams, each with room for F frames and C steps. Numbers count from the very first step of a run."""

    frames: PyTree  # [N, F, ...] observations in the order of their stream, each once
    steps: Transition  # [N, C, ...] everything else of a step; its observations are ()
    at: Int[Array, "N C"]  # the number of the frame before each step
    age: Int[Array, "N C"]  # steps of its episode before each step, as far as a stack reaches back
    written: Int[Array, " N"]  # frames so far
    taken: Int[Array, ""]  # steps so far, of each stream
    first: Int[Array, " N"]  # the oldest step whose frames are all still there
    begins: Bool[Array, " N"]  # the next step is the first of an episode


class ReplayBuffer(eqx.Module):
    """The last `capacity` steps of `streams` environments, sampled uniformly.

    `stack` is how many frames an observation is made of: an image [h, w, stack * c] is stored as its last c channels,
    and stacked again from those of its episode, the first one repeated at the start. Vectors are stored as they are.
    There is room for the extra frames of episodes that are `shortest` steps long on average; if they are shorter, fewer
    than `capacity` steps are stored.

    >>> pixels = Spec(Space((100, 100, 9), jnp.uint8), Space((1,), jnp.float32, None, -1.0, 1.0))
    >>> round(ReplayBuffer(100_000, stack=3).size_of(pixels) / 1e9, 2)
    3.06
    """

    capacity: int = eqx.field(static=True, default=100_000)
    stack: int = eqx.field(static=True, default=1)
    streams: int = eqx.field(static=True, default=1)
    shortest: int = eqx.field(static=True, default=50)

    def __check_init__(self):
        check_numbers(self, {COUNT: ("stack", "streams", "shortest")})
        if self.capacity < self.streams:
            raise ValueError(
                f"ReplayBuffer takes a capacity of at least one step a stream, got capacity={self.capacity} and "
                f"streams={self.streams}."
            )

    @property
    def room(self) -> tuple[int, int]:
        """(C, F): steps and frames that each stream has room for."""
        steps = self.capacity // self.streams
        return steps, steps + -(-steps // self.shortest) + self.stack + 1

    def size_of(self, spec: Spec, notes: Notes = NO_NOTES) -> int:
        """Bytes that it takes, known before anything is allocated."""
        return memory.size_of(jax.eval_shape(lambda: self._blank(spec, notes)))

    def init(self, spec: Spec, notes: Notes = NO_NOTES, setting: str = "replay.capacity") -> ReplayBufferState:
        """An empty buffer on the device. `notes` are a bonus's notes of one step, where it writes any.

        `setting` is the path of the capacity, for the error if the buffer does not fit on the device.
        """
        size, free = self.size_of(spec, notes), memory.free()
        if free is not None and size > free:
            raise ValueError(
                f"This replay needs {memory.in_words(size)} for each seed, and {memory.in_words(free)} are free on the "
                f"device: set a smaller capacity, --set {setting}=... with `made train`, or train fewer --seeds."
            )
        return self._blank(spec, notes)

    def _blank(self, spec: Spec, notes: Notes) -> ReplayBufferState:
        n, (c, f) = self.streams, self.room
        zeros = lambda shape, dtype, length: jnp.zeros((n, length, *shape), dtype)  # noqa: E731
        frames = jax.tree.map(
            lambda space: zeros(self._frame(space), space.dtype, f), spec.obs, is_leaf=lambda x: isinstance(x, Space)
        )
        kept = jax.tree.map(lambda x: zeros(jnp.shape(x), jnp.result_type(x), c), notes)
        action = zeros(spec.action.shape, spec.action.dtype, c)
        steps = Transition((), action, zeros((), np.float32, c), (), zeros((), bool, c), zeros((), bool, c), *kept)
        numbers, each, taken = zeros((), np.int32, c), jnp.zeros(n, np.int32), jnp.zeros((), np.int32)
        return ReplayBufferState(frames, steps, numbers, numbers + 0, each, taken, each + 0, each == 0)

    def _frame(self, space: Space) -> tuple[int, ...]:
        """The shape of one frame of this part of an observation."""
        if not _stacked(space.shape, self.stack):
            return space.shape
        if space.shape[-1] % self.stack:
            raise ValueError(
                f"Replay with stack={self.stack} needs images whose channels are so many frames, got {space.shape}: "
                "set stack to the number of frames in an observation."
            )
        return (*space.shape[:-1], space.shape[-1] // self.stack)

    def add(self, state: ReplayBufferState, step: Transition) -> ReplayBufferState:
        """Store one step of every stream, leaves [N, ...]; next_obs is the true successor, also where an episode ends.

        Images may be given as stacks or as their last frames alone. Within an episode that of `obs` is written again.
        """
        (c, f), each = self.room, np.arange(self.streams)
        at, slot = state.written - 1 + state.begins, state.taken % c

        def store(where: Array, kept: Array, x: Array) -> Array:
            return kept.at[each, where % f].set(x[..., -kept.shape[-1] :] if kept.ndim == 5 else x)

        frames = jax.tree.map(functools.partial(store, at), state.frames, step.obs)
        frames = jax.tree.map(functools.partial(store, at + 1), frames, step.next_obs)
        rest = step._replace(obs=(), next_obs=(), extras=())
        before = state.age[:, (state.taken - 1) % c]
        after = state._replace(
            frames=frames,
            steps=jax.tree.map(lambda kept, x: kept.at[:, slot].set(x), state.steps, rest),
            at=state.at.at[:, slot].set(at),
            age=state.age.at[:, slot].set(jnp.where(state.begins, 0, jnp.minimum(before + 1, self.stack - 1))),
            written=at + 2,
            taken=state.taken + 1,
            begins=jnp.asarray(step.terminated) | jnp.asarray(step.truncated),
        )
        return after._replace(first=self._oldest(after))

    def _oldest(self, state: ReplayBufferState) -> Int[Array, " N"]:
        """The oldest step that can be sampled after `add`, which wrote over the frames of at most 2 * stack steps."""
        c, f = self.room
        first = jnp.maximum(state.first, state.taken - c)
        number = first[:, None] + np.arange(2 * self.stack, dtype=np.int32)
        rows, slot = np.arange(self.streams)[:, None], number % c
        gone = state.at[rows, slot] - state.age[rows, slot] < state.written[:, None] - f
        lost = jnp.cumprod(gone & (number < state.taken), axis=1).sum(1)
        return (first + lost).astype(np.int32)

    def size(self, state: ReplayBufferState, window: Int[Array, ""] | int | None = None) -> Int[Array, ""]:
        """How many steps can be sampled, of the last `window` if given."""
        return self._held(state, window).sum()

    def _held(self, state: ReplayBufferState, window: Any) -> Any:
        """The same of each stream. A window is divided evenly, one step a stream at least."""
        held = state.taken - state.first
        return held if window is None else jnp.minimum(held, jnp.maximum(window // self.streams, 1))

    def sample(
        self, state: ReplayBufferState, n: int, key: Key[Array, ""], window: Any = None, stack: int | None = None
    ) -> tuple[Transition, Int[Array, "1 n"]]:
        """n steps sampled uniformly with replacement, leaves [1, n, ...], and their indices.

        They are of the last `window` steps if given, and of `stack` frames if given.
        """
        index = jax.random.randint(key, (n,), 0, jnp.maximum(self.size(state, window), 1))
        stream, number = self.numbered(state, index, window)
        return jax.tree.map(lambda x: x[None], (self.read(state, stream, number, stack), number % self.room[0]))

    def indices(self, state: ReplayBufferState, rows: int) -> Int[Array, "rows N"]:
        """The indices of the last `rows` steps of every stream."""
        number = state.taken - rows + jnp.arange(rows, dtype=jnp.int32)
        return jnp.broadcast_to(number[:, None] % self.room[0], (rows, self.streams))

    def numbered(self, state: ReplayBufferState, index: Any, window: Any = None) -> tuple[Any, Any]:
        """(stream, number) of steps by their index below `size`; 0 is the latest of the first stream."""
        if self.streams == 1:
            return jnp.zeros_like(index), state.taken - 1 - index
        ends = jnp.cumsum(self._held(state, window))
        stream = jnp.minimum(jnp.searchsorted(ends, index, side="right"), self.streams - 1)
        back = index - jnp.where(stream > 0, ends[stream - 1], 0)
        return stream, state.taken - 1 - back

    def latest(self, state: ReplayBufferState, rows: int) -> Transition:
        """The last `rows` steps of every stream, oldest first, leaves [rows, N, ...]. So many must be stored."""
        shape = rows, self.streams
        number = jnp.broadcast_to(state.taken - rows + jnp.arange(rows)[:, None], shape)
        stream = jnp.broadcast_to(jnp.arange(self.streams), shape)
        return self.read(state, stream, number)

    def read(
        self, state: ReplayBufferState, stream: Int[Array, "*b"], number: Int[Array, "*b"], stack: int | None = None
    ) -> Transition:
        """The steps of those numbers, counted from the very first of their streams; a smaller stack may be asked for.

        Both stacks of a step, channels last, are parts of the same stack + 1 frames.
        """
        (c, f), stack, lead = self.room, stack or self.stack, number.ndim
        slot = number % c
        back = jnp.minimum(jnp.arange(stack - 1, -1, -1), state.age[stream, slot][..., None])
        at = state.at[stream, slot][..., None]
        frames = jnp.concatenate([at - back, at + 1], -1) % f
        frames = jax.lax.optimization_barrier(frames)  # or a GPU recomputes them for every byte that it picks

        def stacks(kept: Array) -> tuple[Array, Array]:
            x = kept[stream[..., None], frames]
            if not _stacked(x.shape[lead + 1 :], stack):
                return jnp.take(x, stack - 1, lead), jnp.take(x, stack, lead)
            side_by_side, channels = jnp.moveaxis(x, lead, -2), x.shape[-1]
            whole = side_by_side.reshape(*side_by_side.shape[:-2], (stack + 1) * channels)
            return whole[..., : stack * channels], whole[..., channels:]

        both = jax.tree.map(stacks, state.frames)
        obs, after = (jax.tree.map(lambda _, pair, i=i: pair[i], state.frames, both) for i in (0, 1))
        return jax.tree.map(lambda x: x[stream, slot], state.steps)._replace(obs=obs, next_obs=after)


def _stacked(shape: tuple[int, ...], stack: int) -> bool:
    return stack > 1 and len(shape) == 3


class SequenceBufferState(NamedTuple):
    """The steps, and for each the number of the first step of its episode."""

    steps: ReplayBufferState
    begun: Int[Array, "N C"]


class SequenceBuffer(eqx.Module):
    """Windows of `length` steps, sampled uniformly from all that `steps` stores.

    `whole` windows lie within one episode, as in Dreamer v1; while no episode is long enough, windows are sampled as if
    it were not set. Without it a window may cross the ends of episodes, which tasks with short ones need.

    >>> pixels = Spec(Space((64, 64, 3), jnp.uint8), Space((1,), jnp.float32, None, -1.0, 1.0))
    >>> round(SequenceBuffer(ReplayBuffer(250_000, shortest=500)).size_of(pixels) / 1e9, 2)
    3.08
    """

    steps: ReplayBuffer = ReplayBuffer(250_000, shortest=500)
    length: int = eqx.field(static=True, default=50)
    whole: bool = eqx.field(static=True, default=True)
    capacity = property(attrgetter("steps.capacity"))

    def __check_init__(self):
        check_numbers(self, {COUNT: ("length",)})
        if self.length > self.steps.room[0]:
            raise ValueError(
                f"SequenceBuffer draws windows of length steps from streams with room for at least as many, got "
                f"length={self.length} and {self.steps.room[0]} steps a stream: raise the capacity of its steps, or "
                "draw shorter windows."
            )

    def size_of(self, spec: Spec, notes: Notes = NO_NOTES) -> int:
        """Bytes that it takes, known before anything is allocated."""
        return self.steps.size_of(spec, notes) + 4 * self.steps.streams * self.steps.room[0]

    def init(self, spec: Spec, notes: Notes = NO_NOTES) -> SequenceBufferState:
        """An empty buffer on the device. `notes` are a bonus's notes of one step, where it writes any."""
        steps = self.steps.init(spec, notes, "replay.steps.capacity")
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
        """How many windows can be sampled."""
        return self.last_steps(state).sum()

    def take(self, state: SequenceBufferState, index: Any) -> Transition:
        """The windows of those numbers below `size`, leaves [T, n, ...]."""
        taken, room = state.steps.taken, self.steps.room[0]
        ends = jnp.cumsum(self.last_steps(state).reshape(-1))
        at = jnp.minimum(jnp.searchsorted(ends, index, side="right"), ends.size - 1)
        stream, slot = at // room, at % room
        last = taken - 1 - (taken - 1 - slot) % room
        number = last + np.arange(1 - self.length, 1)[:, None]
        return self.steps.read(state.steps, jnp.broadcast_to(stream, number.shape), number)

    def sample(self, state: SequenceBufferState, n: int, key: Key[Array, ""]) -> tuple[Transition, None]:
        """n windows sampled uniformly with replacement, leaves [T, n, ...]. At least `length` steps must be stored.

        They have no indices, because no bonus caches features of them.
        """
        index = jax.random.randint(key, (n,), 0, jnp.maximum(self.size(state), 1))
        return self.take(state, index), None


def single_steps(buffer: ReplayBuffer | SequenceBuffer, state: Any) -> tuple[ReplayBuffer, ReplayBufferState]:
    """The buffer of single steps that one samples from, and its state."""
    return (buffer.steps, state.steps) if isinstance(buffer, SequenceBuffer) else (buffer, state)
