"""A density without a network: every entry of (observation, action) on its own, counted over the recent pairs."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from made.core import Density, LearnsFrom, Spec, ring_buffer, trees
from made.core.config import POSITIVE, check_numbers
from made.nets.likelihood import SYMBOLS, ObservationModel, observation_model


class Factorized(Density):
    """The product of the marginals of the last `window` pairs: the cheap control for a VAE.

        log d(o, a) = sum_i log (n_i(x_i) + alpha) / (n + alpha V_i)

    over the entries i of an observation and its action, with n_i(v) how often entry i had value v among the n pairs in
    the window and V_i how many values it takes. Exact where entries are independent; it knows how common each value is,
    nothing of which values go together. For discrete observations and symbolic grids.
    """

    window: int = 10_000
    alpha: float = 0.5
    capacity: int = eqx.field(static=True, default=10_000)
    view: str = eqx.field(static=True, default="")
    symbols: tuple[int, ...] = eqx.field(static=True, default=SYMBOLS)
    learns_from: ClassVar[LearnsFrom] = "new"

    def __check_init__(self):
        check_numbers(self, {POSITIVE: ("alpha",)})
        ring_buffer.check_window("Factorized", self.window, self.capacity)

    def init(self, key, spec):
        seen = discrete_observation_model(spec, self.view, self.symbols)
        return FactorizedState(ring_buffer.empty(seen.blank(), self.capacity), jnp.zeros(seen.size), Columns(seen))

    def log_density(self, state, batch):
        seen = state.columns.outline
        n = jnp.minimum(state.ring.written, self.window).astype(float)
        logs = jnp.log((state.counts + self.alpha) / (n + self.alpha * state.columns.values()))

        def one(obs, action) -> Float[Array, ""]:
            return seen.show(seen.keep(obs, action), seen.unseen()) @ logs

        return trees.over_leading(one, batch.reward.ndim)(batch.obs, batch.action)

    def update(self, state, batch, key):
        seen = state.columns.outline
        kept = trees.flatten_leading(seen.keep(batch.obs, batch.action), batch.reward.ndim)
        ring, moved = ring_buffer.push(state.ring, kept, self.window)
        shown = jax.vmap(lambda x: seen.show(x, seen.unseen()))
        came, left = moved.came_valid.astype(float) @ shown(kept), moved.left_valid.astype(float) @ shown(moved.left)
        return FactorizedState(ring, state.counts + came - left, state.columns), {}


class Columns(eqx.Module):
    """Which entries there are: no arrays, it rides in the state so that reads know it."""

    outline: ObservationModel = eqx.field(static=True)

    def values(self) -> np.ndarray:
        """V_i for every number that a pair is shown as."""
        of = [np.tile(np.repeat(leaf.sizes, leaf.sizes), leaf.size // sum(leaf.sizes)) for leaf in self.outline.leaves]
        return np.concatenate(of).astype(np.float32)


class FactorizedState(NamedTuple):
    """The recent pairs, how often each entry had each value among them, and the entries."""

    ring: ring_buffer.Ring
    counts: Float[Array, " size"]
    columns: Columns


def discrete_observation_model(spec: Spec, view: str, symbols: tuple[int, ...]) -> ObservationModel:
    """The leaves of (observation, action), refused unless every one is discrete."""
    seen = observation_model(spec, view, symbols)
    other = [leaf for leaf in seen.leaves if leaf.kind != "values"]
    if other:
        raise ValueError(
            f"Factorized counts discrete values, but {other[0].shape} is of kind {other[0].kind!r}. Use VAE there, or "
            "name a discrete part of the observation, view='...'."
        )
    return seen
