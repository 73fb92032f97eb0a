"""Counts on tables: Hoeffding, 1/N and Bernstein (Appendix B.1)."""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from made.core import Bonus, EpisodeMemory, LearnsFrom, NoMemory, table_sizes
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
