"""A bonus set to a chosen strength: what must be equal before two bonuses are compared."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from made.bonuses.combinators import StatefulWrapper
from made.core import Bonus
from made.core.config import AT_LEAST_ZERO, COUNT_OR_NONE, check_numbers


class CalibratedState(NamedTuple):
    """The inner bonus's state, a running mean of what it pays, updates so far, and the length of an episode."""

    inner: PyTree
    mean: Float[Array, ""]
    k: Int[Array, ""]
    clock: Float[Array, ""]


class Calibrated(StatefulWrapper):
    """A bonus scaled, early on and then for good, so that a full episode earns `strength` from it.

        b = inner * strength / (mean * horizon),   mean: what inner pays, smoothed over `warmup` updates, then fixed

    So at temperature 1 its strength B = tau * mean bonus * horizon (`bonus_strength`) is the one asked for when the
    warm-up ends. From then on the scale stays: a bonus that fades as states become known fades here too, and how far
    it has gone is in the metric `bonus_strength`. Until then the mean so far counts. The mean weighs update k of n by
    (1 - 2/n)^(n-k) or so: novelty falls steeply in the first few updates, which would not tell the strength to come.
    """

    bonus: Bonus
    strength: float = 0.5
    warmup: int = 100
    horizon: int = eqx.field(static=True, default=0)  # 0: the task's clock

    def __check_init__(self):
        check_numbers(self, {AT_LEAST_ZERO: ("strength",), COUNT_OR_NONE: ("warmup",)})
        if self.horizon < 0 or "value" in self.bonus.reads:
            raise ValueError(
                f"Calibrated takes horizon >= 0 and a bonus that can be told without an agent's values; got "
                f"horizon={self.horizon}, bonus={type(self.bonus).__name__}."
            )

    def init(self, key, spec):
        if not self.horizon and not spec.horizon:
            raise ValueError(
                "Calibrated sets what an episode of full length earns, and this task has no clock: give horizon=..."
            )
        clock = jnp.asarray(self.horizon or spec.horizon, float)
        return CalibratedState(self.bonus.init(key, spec), jnp.zeros(()), jnp.zeros((), jnp.int32), clock)

    def reward(self, state, batch, *, value=None):
        income = state.mean * state.clock
        scale = jnp.where(income > 0, self.strength / jnp.maximum(income, 1e-30), 0.0)
        scale = jnp.where(self.warmup > 0, scale, self.strength)
        return scale * self.bonus.reward(state.inner, batch, value=value)

    def update(self, state, batch, key):
        inner, metrics = self.bonus.update(state.inner, batch, key)
        paid, k = self.bonus.reward(inner, batch).mean(), state.k
        step = jnp.where(k < self.warmup, jnp.maximum(2.0 / jnp.maximum(self.warmup, 1), 1.0 / (k + 1)), 0.0)
        mean = state.mean + step * (paid - state.mean)
        return CalibratedState(inner, mean, k + 1, state.clock), {**metrics, "calibrated/mean": mean}


def bonus_strength(
    tau: Float[Array, ""] | float, mean_bonus: Float[Array, ""] | float, horizon: float | int
) -> Float[Array, ""] | float:
    """What an episode of full length earns from the bonus: tau * mean bonus * horizon.

    Beside it stands the prize of the task, less than 1 on the grids. At equal temperatures two bonuses may differ
    tenfold here, and a comparison of them would be one of temperatures.

    >>> bonus_strength(0.5, 0.25, 100)
    12.5
    """
    if horizon <= 0:
        raise ValueError(f"bonus_strength needs the length of an episode, a positive number, got horizon={horizon}.")
    return tau * mean_bonus * horizon
