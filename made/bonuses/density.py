"""Estimates of d^{pi_mix,k}, the density of recent experience: the correction MADE applies to a count bonus."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from made import rings
from made.core import Density, table_sizes


class WindowState(NamedTuple):
    """The last pairs in order, and how often each occurs among them."""

    ring: rings.Ring
    counts: Float[Array, "S A"]


class RecentCounts(Density):
    """B_k(s, a): visits among the last `window` pairs (Section 4.1, Appendix B.1).

    log_density = log max(B_k(s, a), 1). A pair that has left the window counts as one visit: the paper divides by
    zero there. `window` is a number and `capacity` the room kept for it, so that windows of different lengths run
    as lanes of one program.
    """

    window: int = 1000
    capacity: int = eqx.field(static=True, default=1000)

    def __check_init__(self):
        if isinstance(self.window, int) and not 1 <= self.window <= self.capacity:
            raise ValueError(
                f"RecentCounts keeps the last window={self.window} pairs, but has room for capacity={self.capacity}: "
                "choose 1 <= window <= capacity."
            )

    def init(self, key, spec):
        pair = jnp.zeros((), jnp.int32)  # a pair is kept as the one number s A + a
        return WindowState(rings.empty(pair, self.capacity), jnp.zeros(table_sizes(spec, "RecentCounts")))

    def log_density(self, state, batch):
        return jnp.log(jnp.maximum(state.counts[batch.obs, batch.action], 1.0))

    def update(self, state, batch, key):
        pairs = (batch.obs * state.counts.shape[1] + batch.action).astype(jnp.int32).reshape(-1)
        ring, moved = rings.push(state.ring, pairs, self.window)
        counts = state.counts.reshape(-1).at[moved.left].add(-moved.left_valid.astype(float))
        counts = counts.at[pairs].add(moved.came_valid.astype(float)).reshape(state.counts.shape)
        return WindowState(ring, counts), {}


class MixtureState(NamedTuple):
    """The mixture density itself, and the sum of its squared weights."""

    d: Float[Array, "S A"]
    squared_weights: Float[Array, ""]


class GeometricMixture(Density):
    """d^{pi_mix,k}: the almost geometric mixture of the densities of all iterations, as the theory has it.

        d_mix,1 = d_1,   d_mix,k = (1 - eta) d_mix,k-1 + eta d_k          (Algorithm 1, line 7)

    with d_k the empirical density of iteration k's batch. To stand beside a window of B pairs it is scaled by its
    effective number of pairs, M / sum_i w_i^2 for batches of M: log_density = log max(d_mix M / sum w^2, 1).
    """

    eta: float = 0.02

    def init(self, key, spec):
        return MixtureState(jnp.zeros(table_sizes(spec, "GeometricMixture")), jnp.zeros(()))

    def log_density(self, state, batch):
        size = 1.0 / jnp.maximum(state.squared_weights, 1e-12)
        return jnp.log(jnp.maximum(state.d[batch.obs, batch.action] * size, 1.0))

    def update(self, state, batch, key):
        m = batch.reward.size
        fresh = jnp.zeros_like(state.d).at[batch.obs, batch.action].add(1.0 / m)
        eta = jnp.where(state.squared_weights == 0, 1.0, self.eta)  # the first policy has all the weight
        d = (1 - eta) * state.d + eta * fresh
        return MixtureState(d, (1 - eta) ** 2 * state.squared_weights + eta**2 / m), {}
