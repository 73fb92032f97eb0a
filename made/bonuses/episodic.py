"""Episodic memory: how often an observation has been seen in this episode, and memories of several bonuses at once."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32

from made.core import EpisodeMemory, EpisodeNote, NoMemory, ReplayContext, Transition, dict_obs
from made.core.config import COUNT_OR_NONE, setting


class VisitTable(NamedTuple):
    """Every observation of the episode so far, as 64 bits each, in order."""

    keys: UInt32[Array, "capacity 2"]
    n: Int[Array, ""]


class VisitCounts(EpisodeMemory):
    """N_e(o): visits of an observation within the episode, the present one included. Its note's trace is that number.

    Exact while the episode is no longer than `capacity`, which is the task's own clock by default; 64-bit hashes stand
    for the observations. Which part is counted is `view`: "" is the hash of the full state where there is one, as
    RIDE and NovelD count on grids, else all that is observed.
    """

    view: str = eqx.field(static=True, default="")
    capacity: int = setting(0, COUNT_OR_NONE, static=True)  # 0: the task's clock, or 1,000 where it has none

    def blank(self, spec):
        dict_obs.part(spec.obs, self.view)  # a part that is not there is refused here
        room = self.capacity or (1000 if spec.horizon is None else spec.horizon + 1)
        return VisitTable(jnp.zeros((room, 2), jnp.uint32), jnp.zeros((), jnp.int32))

    def remember(self, state, memory, obs, key):
        digest = dict_obs.key_of(obs, self.view)
        at, room = memory.n, memory.keys.shape[0]
        held = jnp.arange(room) < at
        before = jnp.sum(held & (memory.keys == digest).all(-1), dtype=jnp.int32)
        slot = (jnp.arange(room) == at % room)[:, None]  # a write under vmap that needs no scatter
        return VisitTable(jnp.where(slot, digest, memory.keys), at + 1), EpisodeNote(trace=before + 1)


class ScopedMemory(EpisodeMemory):
    """The memory of a bonus whose state is one part of the state at hand: that part is what it is shown."""

    memory: EpisodeMemory
    part: int = eqx.field(static=True)

    def goal(self, spec):
        return self.memory.goal(spec)

    def blank(self, spec):
        return self.memory.blank(spec)

    def remember(self, state, memory, obs, key):
        return self.memory.remember(state[self.part], memory, obs, key)


class CombinedMemory(EpisodeMemory):
    """Several memories of one episode. The trace of the note is the tuple of their traces; at most one shows a goal."""

    memories: tuple[EpisodeMemory, ...]

    def goal(self, spec):
        goals = [goal for goal in (memory.goal(spec) for memory in self.memories) if goal is not None]
        if len(goals) > 1:
            raise ValueError(
                f"{len(goals)} of these bonuses show goals to the policy, which can follow one: leave one of them."
            )
        return goals[0] if goals else None

    def blank(self, spec):
        return tuple(memory.blank(spec) for memory in self.memories)

    def remember(self, state, memory, obs, key):
        keys = jax.random.split(key, len(self.memories))
        each = [m.remember(state, held, obs, k) for m, held, k in zip(self.memories, memory, keys, strict=True)]
        goals = [note.goal for _, note in each if jax.tree.leaves(note.goal)]
        held, notes = tuple(held for held, _ in each), tuple(note.trace for _, note in each)
        return held, EpisodeNote(goals[0] if goals else (), notes)


def scoped(memory: EpisodeMemory, part: int) -> EpisodeMemory:
    """That memory, shown one part of the state; a bonus without memory stays one."""
    return memory if isinstance(memory, NoMemory) else ScopedMemory(memory, part)


def combined(*memories: EpisodeMemory) -> EpisodeMemory:
    """Those memories together; none where none of them keeps anything."""
    return NoMemory() if all(isinstance(memory, NoMemory) for memory in memories) else CombinedMemory(memories)


def with_trace(batch: Transition, i: int) -> Transition:
    """The batch as the i-th of several bonuses wrote it: its own traces in the notes."""

    def own(note: EpisodeNote) -> EpisodeNote:
        return note._replace(trace=note.trace[i]) if note.trace else note

    extras = batch.extras
    if isinstance(extras, ReplayContext):
        extras = extras._replace(new=with_trace(extras.new, i), recent=with_trace(extras.recent, i))
    return batch._replace(note=own(batch.note), next_note=own(batch.next_note), extras=extras)
