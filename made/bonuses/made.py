"""MADE as a combinator: any bonus that stands for 1/sqrt(rho_cov), divided by the root of any recent density."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from made.bonuses.combinators import StatefulWrapper
from made.bonuses.count import Count
from made.bonuses.densities.recent_counts import GeometricMixture, HashedRecentCounts, RecentCounts, Standardized
from made.bonuses.densities.vae import VAE
from made.bonuses.episodic import scoped
from made.bonuses.rnd import RND
from made.core import Bonus, Density


class MADEState(NamedTuple):
    """The cover's state and the recent density's."""

    cover: PyTree
    recent: PyTree


class MADE(Bonus):
    """The intrinsic reward of MADE.

        b(s, a) = cover(s, a) / sqrt(recent(s, a))  ~  1 / sqrt(rho_cov^k(s, a) d^{pi_mix,k}(s, a))

    Eq. (6), eq:bonus_design. With counts it is 1/sqrt(N_k B_k) of Appendix B.1; with RND as cover and a VAE as
    recent density it is the deep reward of Section 5.
    Differs from the paper: (1 - gamma) tau_k / 2 of Eq. (6) is left to the bonus coefficient, as in the authors' code.

    >>> MADE.tabular(window=100).recent.window
    100
    """

    cover: Bonus
    recent: Density

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys((*self.cover.reads, "obs", "action")))

    @property
    def memory(self):  # type: ignore[override]
        return scoped(self.cover.memory, 0)  # of MADEState, the cover's part

    @classmethod
    def tabular(cls, window: int = 1000, capacity: int | None = None) -> "MADE":
        """1 / sqrt(N_k(s, a) B_k(s, a)), Appendix B.1."""
        return cls(Count(power=0.5), RecentCounts(window, window if capacity is None else capacity))

    @classmethod
    def geometric(cls, eta: float = 0.02) -> "MADE":
        """The same with the geometric mixture of the theory in place of a window."""
        return cls(Count(power=0.5), GeometricMixture(eta))

    @classmethod
    def deep(cls, window: int = 10_000, *, cover: Bonus = RND(), scale: float = 1.0, clip: float = 3.0) -> "MADE":
        """norm(phi(s') - phi'(s')) / sqrt(d(s, a)) with RND as cover and a VAE over the last `window` pairs, Section 5.

        The logarithm of the density is centered, scaled and clipped (`Standardized`). Differs from the paper: RND takes
        the next observation, as in the authors' code, not (s, a). `made.bonuses.release` holds what that
        code computes.
        """
        return cls(cover, Standardized(VAE(window, capacity=window), scale, clip))

    @classmethod
    def hashed(cls, window: int = 10_000, *, cover: Bonus = RND(), scale: float = 1.0, clip: float = 3.0) -> "MADE":
        """The same with counts of hashed pairs (o, a) in place of the VAE: what it should learn."""
        return cls(cover, Standardized(HashedRecentCounts(window, capacity=window), scale, clip))

    def init(self, key, spec):
        k_cover, k_recent = jax.random.split(key)
        return MADEState(self.cover.init(k_cover, spec), self.recent.init(k_recent, spec))

    def reward(self, state, batch, *, value=None):
        cover = self.cover.reward(state.cover, batch, value=value)
        return cover * jnp.exp(-0.5 * self.recent.log_density(state.recent, batch))

    def update(self, state, batch, key):
        k_cover, k_recent = jax.random.split(key)
        cover, of_cover = self.cover.update(state.cover, batch, k_cover)
        recent, of_recent = self.recent.update(state.recent, batch, k_recent)
        return MADEState(cover, recent), {**of_cover, **of_recent}


class CoverAtMadeScaleState(NamedTuple):
    """MADE's own state, and what it pays for each unit of its cover, over the latest batch."""

    made: PyTree
    level: Float[Array, ""]


class CoverAtMadeScale(StatefulWrapper):
    """The cover of MADE alone, paid as much as MADE would pay in all: the control that tells what the density adds.

        b(s, a) = cover(s, a) * mean(MADE) / mean(cover),   means over the latest batch

    The mean of the density's factor would not do: it is large where the cover is.
    """

    bonus: MADE

    def init(self, key, spec):
        return CoverAtMadeScaleState(self.bonus.init(key, spec), jnp.ones(()))

    def reward(self, state, batch, *, value=None):
        return state.level * self.bonus.cover.reward(state.made.cover, batch, value=value)

    def update(self, state, batch, key):
        made, metrics = self.bonus.update(state.made, batch, key)
        cover = self.bonus.cover.reward(made.cover, batch).mean()
        level = self.bonus.reward(made, batch).mean() / jnp.maximum(cover, 1e-30)
        return CoverAtMadeScaleState(made, level), {**metrics, "factor/level": level}
