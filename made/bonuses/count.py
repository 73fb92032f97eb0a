"""Counts: Hoeffding, 1/N and Bernstein on tables (Appendix B.1), and counts of hashed observations."""

import math
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from made.bonuses.embedding import ENDS, StateBonus
from made.core import Bonus, EpisodeMemory, LearnsFrom, NoMemory, Space, Transition, dict_obs, table_sizes, trees
from made.core.config import AT_LEAST_ZERO, setting


class NoBonus(Bonus):
    """b(s, a) = 0: the agent alone."""

    memory: EpisodeMemory = NoMemory()
    reads: ClassVar[tuple[str, ...]] = ()

    def init(self, key, spec):
        return ()

    def reward(self, state, batch, *, value=None):
        return jnp.zeros_like(batch.reward)

    def update(self, state, batch, key):
        return state, {}


class Count(Bonus):
    """A power of the number of visits.

        b(s, a) = v_max / N_k(s, a)^power

    power 1/2 is the Hoeffding-style bonus V_max / sqrt(N_k) of Appendix B.1, V_max = 1. Power 1 is the control that
    tells what MADE adds: MADE with a window that holds everything *is* 1/N, as is Bernstein where nothing varies.
    A pair never visited has the bonus of one visited once; the paper leaves that case open.
    """

    power: float = setting(0.5, AT_LEAST_ZERO)
    v_max: float = setting(1.0, AT_LEAST_ZERO)
    memory: EpisodeMemory = NoMemory()
    reads: ClassVar[tuple[str, ...]] = ("obs", "action")
    learns_from: ClassVar[LearnsFrom] = "new"

    def init(self, key, spec) -> Float[Array, "S A"]:
        return jnp.zeros(table_sizes(spec, "Count"))

    def reward(self, state, batch, *, value=None):
        return self.v_max * jnp.maximum(state[batch.obs, batch.action], 1.0) ** -jnp.asarray(self.power)

    def update(self, state, batch, key):
        return state.at[batch.obs, batch.action].add(1.0), {}


class BernsteinState(NamedTuple):
    """N_k(s, a) and N_k(s, a, s')."""

    pairs: Float[Array, "S A"]
    triples: Float[Array, "S A S"]


class Bernstein(Bonus):
    """Visits, and how much the value of the successor varies.

        b(s, a) = sqrt(Var_{s' ~ P_k(.|s,a)} V_k(s') / N_k(s, a)) + 1 / N_k(s, a)

    Appendix B.1, with P_k(s'|s,a) = N_k(s,a,s') / N_k(s,a) and V_k the agent's current values, handed in as `value`.
    A successor that ends the episode is worth nothing, whatever the table says of it.
    """

    memory: EpisodeMemory = NoMemory()
    reads: ClassVar[tuple[str, ...]] = ("obs", "action", "value")
    learns_from: ClassVar[LearnsFrom] = "new"

    def init(self, key, spec) -> BernsteinState:
        s, a = table_sizes(spec, "Bernstein")
        return BernsteinState(jnp.zeros((s, a)), jnp.zeros((s, a, s)))

    def reward(self, state, batch, *, value=None):
        if value is None:
            raise ValueError("Bernstein needs the agent's values: pass value=V_k, one number a state.")
        n = jnp.maximum(state.pairs, 1.0)
        mean, square = (state.triples @ value) / n, (state.triples @ value**2) / n
        variance = square - mean**2
        variance = jnp.where(variance > 8 * jnp.finfo(square.dtype).eps * square, variance, 0.0)  # not rounding
        return (jnp.sqrt(variance / n) + 1 / n)[batch.obs, batch.action]

    def update(self, state, batch, key):
        goes_on = 1.0 - batch.terminated.astype(float)
        return BernsteinState(
            state.pairs.at[batch.obs, batch.action].add(1.0),
            state.triples.at[batch.obs, batch.action, batch.next_obs].add(goes_on),
        ), {}


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
