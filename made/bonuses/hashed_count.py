"""Counts of hashed observations."""

import math
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from made.bonuses.embedding import ENDS, StateBonus
from made.core import EpisodeMemory, LearnsFrom, NoMemory, Space, Transition, dict_obs, trees
from made.core.config import AT_LEAST_ZERO, setting


class HashedCountState(NamedTuple):
    """Visits of each slot, and the directions that SimHash projects on (none for exact hashes)."""

    counts: Float[Array, " slots"]
    planes: Float[Array, "bits features"]


class HashedCount(StateBonus):
    """A power of the visits of an observation's slot in a table of 2^bits.

        b(s, a, s') = 1 / N(slot(s'))^power,   N at least 1

    kind "exact": the slot is `bits` bits of a 64-bit hash of what `view` names ("" is the hash of the full state where
    an environment has one, else all that is observed), so states share a slot only by chance.
    kind "similar": SimHash, slot = signs of `bits` random projections, so near observations share a slot on purpose;
    Tang et al., "#Exploration: A Study of Count-Based Exploration" (2017).
    Differs from the release of RIDE, whose "count" keeps one table in each actor's process: this one is shared.
    """

    power: float = setting(0.5, AT_LEAST_ZERO)
    bits: int = setting(20, range(1, 31), static=True)
    kind: str = setting("exact", ("exact", "similar"), static=True)
    on: str = setting("next_obs", ENDS, static=True)
    view: str = eqx.field(static=True, default="")
    memory: EpisodeMemory = NoMemory()
    learns_from: ClassVar[LearnsFrom] = "new"

    def init(self, key, spec):
        spaces = jax.tree.leaves(dict_obs.looked_at(spec.obs, self.view), is_leaf=lambda x: isinstance(x, Space))
        features = sum(math.prod(space.shape) for space in spaces)
        planes = jax.random.normal(key, (self.bits, features) if self.kind == "similar" else (0, 0))
        return HashedCountState(jnp.zeros(2**self.bits), planes)

    def reward(self, state, batch, *, value=None):
        visits = state.counts[self._slots(state, batch)]
        return jnp.maximum(visits, 1.0) ** -jnp.asarray(self.power)

    def update(self, state, batch, key):
        counts = state.counts.at[self._slots(state, batch)].add(1.0)
        return state._replace(counts=counts), {"hashed/used": jnp.mean(counts > 0)}

    def _slots(self, state: HashedCountState, batch: Transition) -> Int[Array, "*b"]:
        def slot(obs) -> Int[Array, ""]:
            if self.kind == "similar":
                numbers = ravel_pytree(dict_obs.looked_at(obs, self.view))[0].astype(float)
                return jnp.sum((state.planes @ numbers > 0) * 2 ** jnp.arange(self.bits))
            word: Array = dict_obs.key_of(obs, self.view)[0]
            return (word & (2**self.bits - 1)).astype(jnp.int32)

        return trees.over_leading(slot, batch.reward.ndim)(getattr(batch, self.on))
