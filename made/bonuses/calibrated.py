"""The strength of a bonus, and a bonus scaled to a chosen one.

The strength is what an episode of full length gets from the bonus in total, in units of the largest return:

    strength = bonus coefficient * mean bonus of a step * episode length / largest return      (`bonus_strength`)

Compare bonuses at equal strength: at equal coefficients their strengths may differ tenfold. `Calibrated` reaches a
strength in training, `made.adapters.reward_mixer.AutoScale` in the loops of other libraries.
"""

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
    """A bonus scaled to a `strength`, with a factor that is measured in the first updates and then fixed.

        b = inner * strength / (mean * horizon),   mean: the mean of inner, smoothed over `warmup` updates, then fixed

    The largest return counts as 1, as on the grids. At a bonus coefficient of 1 the strength is the one asked for when
    the warm-up ends. The factor does not change after that: a bonus that fades as states become known fades here too,
    and the metric `bonus_strength` shows how far. During the warm-up the mean so far is used. It weighs update k of n
    by about (1 - 2/n)^(n-k), because novelty falls steeply in the first few updates.
    """

    bonus: Bonus
    strength: float = 0.5
    warmup: int = 100
    horizon: int = eqx.field(static=True, default=0)  # 0: the task's time limit

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
                "Calibrated needs the length of an episode, and this task has no time limit: pass horizon=..."
            )
        clock = jnp.asarray(self.horizon or spec.horizon, float)
        return CalibratedState(self.bonus.init(key, spec), jnp.zeros(()), jnp.zeros((), jnp.int32), clock)

    def reward(self, state, batch, *, value=None):
        current = jnp.asarray(bonus_strength(1.0, state.mean, state.clock))
        scale = jnp.where(current > 0, self.strength / jnp.maximum(current, 1e-30), 0.0)
        scale = jnp.where(self.warmup > 0, scale, self.strength)
        return scale * self.bonus.reward(state.inner, batch, value=value)

    def update(self, state, batch, key):
        inner, metrics = self.bonus.update(state.inner, batch, key)
        paid, k = self.bonus.reward(inner, batch).mean(), state.k
        step = jnp.where(k < self.warmup, jnp.maximum(2.0 / jnp.maximum(self.warmup, 1), 1.0 / (k + 1)), 0.0)
        mean = state.mean + step * (paid - state.mean)
        return CalibratedState(inner, mean, k + 1, state.clock), {**metrics, "calibrated/mean": mean}


def bonus_strength(
    bonus_coef: Float[Array, ""] | float,
    mean_bonus: Float[Array, ""] | float,
    horizon: Float[Array, ""] | float,
    largest_return: float = 1.0,
) -> Float[Array, ""] | float:
    """The strength of a bonus: bonus_coef * mean_bonus * horizon / largest_return.

    >>> bonus_strength(0.5, 0.25, 100)
    12.5
    """
    if isinstance(horizon, int | float) and not horizon > 0:
        raise ValueError(f"bonus_strength needs the length of an episode, a positive number, got horizon={horizon}.")
    return bonus_coef * mean_bonus * horizon / largest_return
