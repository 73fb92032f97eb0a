"""Bonuses made of bonuses: scaled, normalized, calibrated, clipped, for first visits alone, added up.

The strength of a bonus is what an episode of full length gets from it in total, in units of the largest return:

    strength = bonus coefficient * mean bonus of a step * episode length / largest return      (`bonus_strength`)

Compare bonuses at equal strength: at equal coefficients their strengths may differ tenfold. `Calibrated` reaches a
strength in training, `made.adapters.reward_mixer.AutoScale` in the loops of other libraries.
"""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from made.bonuses.episodic import VisitCounts, combined, scoped, with_trace
from made.core import Bonus, EpisodeMemory, NoMemory, running_stats
from made.core.config import AT_LEAST_ZERO, COUNT_OR_NONE, SHARE, check_numbers, setting
from made.nets.fit import with_prefix


class ConstantBonus(Bonus):
    """The same pay for everything: b(s, a) = pay. Under `FirstVisit` it is the gate alone."""

    pay: float = 1.0
    memory: EpisodeMemory = NoMemory()
    reads: ClassVar[tuple[str, ...]] = ()

    def init(self, key, spec):
        return ()

    def reward(self, state, batch, *, value=None):
        return jnp.full_like(batch.reward, self.pay)

    def update(self, state, batch, key):
        return state, {}


class RewardWrapper(Bonus):
    """A bonus around another: all that a subclass does not override is that of the bonus inside."""

    bonus: eqx.AbstractVar[Bonus]

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.bonus.reads

    @property
    def memory(self) -> EpisodeMemory:  # type: ignore[override]
        return self.bonus.memory

    def init(self, key, spec):
        return self.bonus.init(key, spec)

    def reward(self, state, batch, *, value=None):
        return self.bonus.reward(state, batch, value=value)

    def update(self, state, batch, key):
        return self.bonus.update(state, batch, key)


class Scaled(RewardWrapper):
    """b = scale * inner: weights for `Sum`, or a bonus in the units of another."""

    bonus: Bonus
    scale: float = 1.0

    def reward(self, state, batch, *, value=None):
        return self.scale * self.bonus.reward(state, batch, value=value)


class Clipped(RewardWrapper):
    """b = min(max(inner, low), high)."""

    bonus: Bonus
    low: float = 0.0
    high: float = 1.0

    def __check_init__(self):
        if isinstance(self.low, int | float) and isinstance(self.high, int | float) and self.low > self.high:
            raise ValueError(f"Clipped keeps a bonus within low <= high, got low={self.low}, high={self.high}.")

    def reward(self, state, batch, *, value=None):
        return jnp.clip(self.bonus.reward(state, batch, value=value), self.low, self.high)


class StatefulWrapper(RewardWrapper):
    """A bonus that measures the bonus inside when it is updated; the state of that one comes first in its own."""

    def __check_init__(self):
        if "value" in self.bonus.reads:
            raise ValueError(
                f"{type(self).__name__} asks for rewards when it is updated, and {type(self.bonus).__name__} has them "
                "only with an agent's values: take a bonus that does not read 'value'."
            )

    @property
    def memory(self) -> EpisodeMemory:  # type: ignore[override]
        return scoped(self.bonus.memory, 0)


class Lanes(NamedTuple):
    """The `extras` of a batch [M, 1, ...] that lacks some transitions of its environments: whose each one was."""

    lane: Int[Array, " M"]


class NormalizedState(NamedTuple):
    """The inner bonus's state, the moments of what it paid, and its discounted sums as they stand, one a lane."""

    inner: PyTree
    paid: running_stats.Moments
    sums: Float[Array, " n"]


class Normalized(StatefulWrapper):
    """A bonus divided by its running standard deviation.

        b = inner / std(inner)              of="reward"
        b = inner / std(sum_t gamma^t inner)    of="return", as in RND (Burda et al. 2019, Section 2.4)

    The deviation is that of all bonuses so far, exactly (Chan et al.'s merge); that of RE3's and MADE's releases
    is sqrt(variance + 1/n) after n updates. The mean stays. Nothing is divided until the bonus varies. A return
    continues past the ends of episodes, as in RND; it needs `n_envs`, the number of environments.
    """

    bonus: Bonus
    of: str = setting("reward", ("reward", "return"), static=True)
    gamma: float = setting(0.99, SHARE)
    n_envs: int = setting(0, COUNT_OR_NONE, static=True)

    def __check_init__(self):
        check_numbers(self)
        if (self.of == "return") != (self.n_envs > 0):
            raise ValueError(
                f"Normalized divides by the deviation of='reward', or of='return' together with n_envs >= 1, the "
                f"number of environments whose returns it follows; got of={self.of!r}, n_envs={self.n_envs}."
            )

    def init(self, key, spec):
        return NormalizedState(self.bonus.init(key, spec), running_stats.empty(), jnp.zeros(self.n_envs))

    def reward(self, state, batch, *, value=None):
        return self.bonus.reward(state.inner, batch, value=value) / running_stats.scale(state.paid)

    def update(self, state, batch, key):
        inner, metrics = self.bonus.update(state.inner, batch, key)
        paid, sums = self.bonus.reward(inner, batch), state.sums
        if self.of == "return" and isinstance(batch.extras, Lanes):

            def follow(sums, step):
                lane, b = step
                total = self.gamma * sums[lane] + b
                return sums.at[lane].set(total), total

            sums, paid = jax.lax.scan(follow, sums, (batch.extras.lane, paid[:, 0]))
        elif self.of == "return":
            if paid.shape[1] != self.n_envs:
                raise ValueError(
                    f"Normalized follows the returns of n_envs={self.n_envs} environments and was given a batch of "
                    f"{paid.shape[1]}: set n_envs to the number of environments of the run."
                )
            sums, paid = jax.lax.scan(lambda total, b: (self.gamma * total + b,) * 2, sums, paid)
        seen = running_stats.merge(state.paid, paid)
        return NormalizedState(inner, seen, sums), {**metrics, "bonus_deviation": running_stats.scale(seen)}


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
    strength: float = setting(0.5, AT_LEAST_ZERO)
    warmup: int = setting(100, COUNT_OR_NONE)
    horizon: int = setting(0, COUNT_OR_NONE, static=True)  # 0: the task's time limit

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


class FirstVisit(RewardWrapper):
    """A bonus at the first visit of a state in an episode only.

        b(s, a, s') = inner(s, a, s') * 1[N_e(s') = 1]

    The mask of BeBold and NovelD by itself, for any bonus: `FirstVisit(RND())` is the ablation of BeBold's Figure 6.
    The inner bonus may have an episodic memory of its own.
    """

    bonus: Bonus = ConstantBonus()
    visits: VisitCounts = VisitCounts()

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys((*self.bonus.reads, "next_note")))

    @property
    def memory(self) -> EpisodeMemory:  # type: ignore[override]
        return combined(self.visits, self.bonus.memory)

    def reward(self, state, batch, *, value=None):
        visits: Array = batch.next_note.trace[0]
        return jnp.where(visits == 1, self.bonus.reward(state, with_trace(batch, 1), value=value), 0.0)

    def update(self, state, batch, key):
        return self.bonus.update(state, with_trace(batch, 1), key)


class Sum(Bonus):
    """b = sum of the bonuses; `Scaled` gives them weights."""

    bonuses: tuple[Bonus, ...] = eqx.field(converter=tuple)

    def __check_init__(self):
        if not self.bonuses:
            raise ValueError("Sum adds up one bonus or more, got none: use NoBonus for no bonus at all.")

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(field for bonus in self.bonuses for field in bonus.reads))

    @property
    def memory(self) -> EpisodeMemory:  # type: ignore[override]
        return combined(*(scoped(bonus.memory, i) for i, bonus in enumerate(self.bonuses)))

    def init(self, key, spec):
        keys = jax.random.split(key, len(self.bonuses))
        return tuple(bonus.init(k, spec) for bonus, k in zip(self.bonuses, keys, strict=True))

    def reward(self, state, batch, *, value=None):
        each = zip(self.bonuses, state, strict=True)
        paid = [bonus.reward(own, with_trace(batch, i), value=value) for i, (bonus, own) in enumerate(each)]
        return jnp.sum(jnp.stack(paid), axis=0)

    def update(self, state, batch, key):
        after, metrics = [], {}
        for i, (bonus, own, k) in enumerate(zip(self.bonuses, state, jax.random.split(key, len(state)), strict=True)):
            own, told = bonus.update(own, with_trace(batch, i), k)
            after.append(own)
            metrics |= with_prefix(told, str(i))
        return tuple(after), metrics
