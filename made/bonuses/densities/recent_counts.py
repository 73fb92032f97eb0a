"""Estimates of d^{pi_mix,k}, the density of recent experience: the correction MADE applies to a count bonus."""

import abc
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from made.core import Density, LearnsFrom, Transition, dict_obs, ring_buffer, running_stats, table_sizes, trees
from made.core.config import ABOVE_ZERO, POSITIVE, SHARE, check_numbers, setting
from made.nets.likelihood import SYMBOLS, ObservationModel, observation_model


class WindowDensity(Density):
    """The last `window` pairs, with room for `capacity`: windows of different lengths run in one vectorized program."""

    window: eqx.AbstractVar[int]
    capacity: eqx.AbstractVar[int]

    def __check_init__(self):
        check_numbers(self)
        if isinstance(self.window, int) and not 1 <= self.window <= self.capacity:  # not where it is traced
            raise ValueError(
                f"{type(self).__name__} keeps the last window={self.window} pairs, but has room for "
                f"capacity={self.capacity}: choose 1 <= window <= capacity."
            )


class WindowState(NamedTuple):
    """The last pairs in order, each as the number of its slot, and how often each slot occurs among them."""

    ring: ring_buffer.Ring
    counts: Float[Array, "..."]


class _WindowCounts(WindowDensity):
    """Visits among the last `window` pairs: log_density = log max(visits, 1).

    A pair that has left the window counts as one visit: the paper divides by zero there.
    """

    learns_from: ClassVar[LearnsFrom] = "new"

    @abc.abstractmethod
    def slots(self, state: WindowState, batch: Transition) -> Int[Array, "*b"]:
        """The slot of each pair of a batch."""

    def log_density(self, state, batch):
        return jnp.log(jnp.maximum(state.counts.reshape(-1)[self.slots(state, batch)], 1.0))

    def update(self, state, batch, key):
        slots = self.slots(state, batch).reshape(-1)
        ring, moved = ring_buffer.push(state.ring, slots, self.window)
        counts = state.counts.reshape(-1).at[moved.left].add(-moved.left_valid.astype(float))
        counts = counts.at[slots].add(moved.came_valid.astype(float)).reshape(state.counts.shape)
        return WindowState(ring, counts), {}


class RecentCounts(_WindowCounts):
    """B_k(s, a): visits among the last `window` pairs (Section 4.1, Appendix B.1)."""

    window: int = 1000
    capacity: int = eqx.field(static=True, default=1000)

    def init(self, key, spec):
        ring = ring_buffer.empty(jnp.zeros((), jnp.int32), self.capacity)
        return WindowState(ring, jnp.zeros(table_sizes(spec, "RecentCounts")))

    def slots(self, state, batch):
        return (batch.obs * state.counts.shape[1] + batch.action).astype(jnp.int32)


class MixtureState(NamedTuple):
    """The mixture density itself, and the sum of its squared weights."""

    d: Float[Array, "S A"]
    squared_weights: Float[Array, ""]


class GeometricMixture(Density):
    """d^{pi_mix,k}: the almost geometric mixture of the densities of all iterations, as the theory has it.

        d_mix,1 = d_1,   d_mix,k = (1 - eta) d_mix,k-1 + eta d_k          (Algorithm 1, line 7)

    with d_k the empirical density of iteration k's batch. To compare with a window of B pairs it is scaled by its
    effective number of pairs, M / sum_i w_i^2 for batches of M: log_density = log max(d_mix M / sum w^2, 1).
    """

    eta: float = setting(0.02, SHARE)
    learns_from: ClassVar[LearnsFrom] = "new"

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


class HashedRecentCounts(_WindowCounts):
    """B_k(o, a) where a table over states is out of reach: visits among the last `window` pairs, counted by hash.

    What is observed and the action are hashed to one of 2^bits slots. Among n different pairs in the window, one shares
    its slot with probability about n / 2^bits, and is then counted with the other. Observed is the part named by
    `view`; "" is all but the hash of the full state, whose counts are nearly always one where each episode has a new
    level.
    """

    window: int = 10_000
    capacity: int = eqx.field(static=True, default=10_000)
    bits: int = setting(20, range(1, 31), static=True)
    view: str = eqx.field(static=True, default="")

    def init(self, key, spec):
        dict_obs.looked_at(spec.obs, self.view)  # a part that is not there is refused here
        if spec.action.n is None:
            raise ValueError(
                f"HashedRecentCounts counts repeats of an action, but the actions are continuous: {spec.action}. "
                "Use a density that generalizes, such as VAE."
            )
        return WindowState(ring_buffer.empty(jnp.zeros((), jnp.int32), self.capacity), jnp.zeros(2**self.bits))

    def slots(self, state, batch):
        def one(obs, action) -> Array:
            whole = trees.digest((trees.digest(dict_obs.looked_at(obs, self.view)), action))
            return (whole[0] & jnp.uint32(2**self.bits - 1)).astype(jnp.int32)

        return trees.over_leading(one, batch.reward.ndim)(batch.obs, batch.action)


class FactorizedState(eqx.Module):
    """The recent pairs, how often each entry had each value among them, and the entries."""

    ring: ring_buffer.Ring
    counts: Float[Array, " size"]
    outline: ObservationModel = eqx.field(static=True)


class Factorized(WindowDensity):
    """The product of the marginals of the last `window` pairs: the cheap control for a VAE.

        log d(o, a) = sum_i log (n_i(x_i) + alpha) / (n + alpha V_i)

    over the entries i of an observation and its action, with n_i(v) how often entry i had value v among the n pairs in
    the window and V_i how many values it takes. Exact where entries are independent; it knows how common each value is,
    nothing of which values go together. For discrete observations and symbolic grids.
    """

    window: int = 10_000
    alpha: float = setting(0.5, POSITIVE)
    capacity: int = eqx.field(static=True, default=10_000)
    view: str = eqx.field(static=True, default="")
    symbols: tuple[int, ...] = eqx.field(static=True, default=SYMBOLS)
    learns_from: ClassVar[LearnsFrom] = "new"

    def init(self, key, spec):
        seen = observation_model(spec, self.view, self.symbols)
        other = [leaf for leaf in seen.leaves if leaf.kind != "values"]
        if other:
            raise ValueError(
                f"Factorized counts discrete values, but {other[0].shape} is of kind {other[0].kind!r}. Use VAE there, "
                "or name a discrete part of the observation, view='...'."
            )
        return FactorizedState(ring_buffer.empty(seen.blank(), self.capacity), jnp.zeros(seen.size), seen)

    def log_density(self, state, batch):
        seen = state.outline
        n = jnp.minimum(state.ring.written, self.window).astype(float)
        values = [np.tile(np.repeat(x.sizes, x.sizes), x.size // sum(x.sizes)) for x in seen.leaves]  # V_i of each slot
        logs = jnp.log((state.counts + self.alpha) / (n + self.alpha * np.concatenate(values).astype(np.float32)))

        def one(obs, action) -> Float[Array, ""]:
            return seen.show(seen.keep(obs, action), seen.unseen()) @ logs

        return trees.over_leading(one, batch.reward.ndim)(batch.obs, batch.action)

    def update(self, state, batch, key):
        seen = state.outline
        kept = trees.flatten_leading(seen.keep(batch.obs, batch.action), batch.reward.ndim)
        ring, moved = ring_buffer.push(state.ring, kept, self.window)
        shown = jax.vmap(lambda x: seen.show(x, seen.unseen()))
        came, left = moved.came_valid.astype(float) @ shown(kept), moved.left_valid.astype(float) @ shown(moved.left)
        return FactorizedState(ring, state.counts + came - left, seen), {}


LEAST_LOOKED_AT = 128  # pairs that tell a mean and a deviation well enough
LEAST_SPREAD = 0.1  # nats: a density that tells nothing apart must not be stretched until its noise does


class StandardizedState(NamedTuple):
    """The density's own state, and the running moments of its logarithm."""

    inner: PyTree
    moments: running_stats.Moments


class Standardized(Density):
    """Any density with its logarithm brought to a known spread, so that MADE's factor neither collapses nor explodes.

        log d'(s, a) = scale * clip((log d(s, a) - mean) / deviation, -clip, clip)

    mean and deviation are those of log d over recent experience: batch after batch, the past forgotten at the pace of
    `memory` pairs, because a density that is still learning drifts. MADE's factor 1 / sqrt(d') then has a log-deviation
    of about scale / 2 and stays within exp(-+ scale clip / 2). A sum over entries has a spread of many nats: without
    this, three in four factors stood at the ends of any sensible range. A deviation below 0.1 is taken for 0.1.
    The moments look at a fourth of a batch, at least 128 pairs and at most `sample`: 512 of 32 x 100, 128 of 512.
    """

    density: Density
    scale: float = setting(1.0, ABOVE_ZERO)
    clip: float = setting(3.0, ABOVE_ZERO)
    memory: float = setting(10_000.0, ABOVE_ZERO)
    sample: int = setting(512, ABOVE_ZERO, static=True)  # the most pairs of a batch that the moments look at

    def init(self, key, spec):
        return StandardizedState(self.density.init(key, spec), running_stats.empty())

    def log_density(self, state, batch):
        raw = self.density.log_density(state.inner, batch)
        return self.scale * jnp.clip(score(state.moments, raw), -self.clip, self.clip)

    def update(self, state, batch, key):
        inner, metrics = self.density.update(state.inner, batch, key)
        some = subsample(batch, min(self.sample, max(LEAST_LOOKED_AT, -(-batch.reward.size // 4))))
        raw = self.density.log_density(inner, some)
        old = state.moments
        # What was seen counts for at most `memory` pairs; the sample stands for its whole batch.
        weight = jnp.minimum(1.0, self.memory * raw.size / (batch.reward.size * jnp.maximum(old.count, 1e-6)))
        merged = running_stats.merge(running_stats.Moments(old.count * weight, old.mean, old.squares * weight), raw)
        z = score(merged, raw)
        spread = {
            "factor/log_std": 0.5 * self.scale * jnp.clip(z, -self.clip, self.clip).std(),
            "factor/clipped": (jnp.abs(z) > self.clip).mean(),
            "factor/raw_log_std": 0.5 * running_stats.deviation(merged),
        }
        return StandardizedState(inner, merged), {**metrics, **spread}


class SuccessorDensity(Density):
    """Any density asked about s' alone.

        d(s, a, s') = inner(s', 0)

    `arrived` = 0 leaves it a density of (s, a): a number, so that both are lanes of one program.
    The paper's Section 5 has the density of (s, a); counting s' asks how the choice matters (docs/minigrid.md).
    """

    density: Density
    arrived: float = setting(1.0, SHARE)

    def init(self, key, spec):
        return self.density.init(key, spec)

    def log_density(self, state, batch):
        return self.density.log_density(state, self.moved(batch))

    def update(self, state, batch, key):
        return self.density.update(state, self.moved(batch), key)

    def moved(self, batch: Transition) -> Transition:
        """The batch as if each step had stood where it led, and had done nothing."""
        here = lambda was, now: jnp.where(self.arrived > 0, now, was)  # noqa: E731
        obs = jax.tree.map(here, batch.obs, batch.next_obs)
        return batch._replace(obs=obs, action=here(batch.action, jnp.zeros_like(batch.action)))


def score(seen: running_stats.Moments, raw: Float[Array, "*b"]) -> Float[Array, "*b"]:
    """How many deviations each log-density lies above the mean; 0 before any experience."""
    z = (raw - seen.mean) / running_stats.deviation(seen, LEAST_SPREAD)
    return jnp.where(seen.count > 0, z, 0.0)


def subsample(batch: Transition, n: int) -> Transition:
    """At most n transitions of a batch [T, N], evenly spread over it, as [n]."""
    flat = trees.flatten_leading(batch, batch.reward.ndim)
    size = batch.reward.size
    if size <= n:  # as they are, so that the compiler sees when the same is read a second time
        return flat
    at = jnp.arange(n) * size // n
    return jax.tree.map(lambda x: x[at], flat)
