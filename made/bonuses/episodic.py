"""Episodic memory: how often the observation at hand has been seen in this episode."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32

from made import views
from made.core import EpisodeMemory, Note


class Visited(NamedTuple):
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
    capacity: int = eqx.field(static=True, default=0)  # 0: the task's clock, or 1,000 where it has none

    def __check_init__(self):
        if self.capacity < 0:
            raise ValueError(f"VisitCounts keeps capacity={self.capacity} observations: give a positive number, or 0.")

    def goal(self, spec):
        return None

    def blank(self, spec):
        views.part(spec.obs, self.view)  # a part that is not there is refused here
        room = self.capacity or (1000 if spec.horizon is None else spec.horizon + 1)
        return Visited(jnp.zeros((room, 2), jnp.uint32), jnp.zeros((), jnp.int32))

    def remember(self, state, memory, obs, key):
        digest = views.key_of(obs, self.view)
        at, room = memory.n, memory.keys.shape[0]
        held = jnp.arange(room) < at
        before = jnp.sum(held & (memory.keys == digest).all(-1), dtype=jnp.int32)
        slot = (jnp.arange(room) == at % room)[:, None]  # a write under vmap that needs no scatter
        return Visited(jnp.where(slot, digest, memory.keys), at + 1), Note(trace=before + 1)
