"""The bonuses of the control experiments with the settings of the paper and of the releases (Section 5.2)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from made.bonuses.combinators import Normalized, StatefulWrapper
from made.bonuses.feature_cache import CachedRND
from made.bonuses.made import MADE
from made.bonuses.re3 import RE3
from made.bonuses.release.release_rnd import (
    FactorNormalizedState,
    OrthogonalRND,
    ReleasedRND,
    made_released,
    running_variance,
    update_variance,
)
from made.bonuses.release.release_vae import ReleasedVAE
from made.bonuses.replay_data import FromBatch
from made.bonuses.rnd import RND
from made.core import Bonus
from made.nets.fit import Fit

MEMORY = 100_000  # steps among which RE3 looks for neighbours: the release's replay
DREAMER_WINDOW = (
    1000  # steps of the recent density: the last two episodes of 1000 frames at repeat 2, as in the release
)


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


class Re3ReleaseNormalized(StatefulWrapper):
    """A bonus over the running deviation of RE3's release, whose mean has a slip (`released.take_in`).

        b = inner / sqrt(variance(inner) + 1/n)   after n updates

    `Normalized` has the right one. A bonus that deviates by 0.01 is divided by 3.3 times as much after 1,000 updates
    and by 1.4 times as much after 10,000: what is paid grows as training goes on.
    """

    bonus: Bonus

    def init(self, key, spec):
        return FactorNormalizedState(self.bonus.init(key, spec), running_variance())

    def reward(self, state, batch, *, value=None):
        return self.bonus.reward(state.inner, batch, value=value) / _root(state.stats.variance)

    def update(self, state, batch, key):
        inner, metrics = self.bonus.update(state.inner, batch, key)
        stats = update_variance(state.stats, self.bonus.reward(inner, batch).reshape(-1), "released")
        return FactorNormalizedState(inner, stats), {**metrics, "bonus_deviation": _root(stats.variance)}


def _root(variance: Float[Array, ""]) -> Float[Array, ""]:
    return jnp.sqrt(jnp.maximum(variance, 1e-12))


def control_rnd(pixels: bool, kind: type[ReleasedRND] = ReleasedRND) -> Bonus:
    """The cover of the release, trained on the whole batch that the agent learns from; features of images are kept."""
    rnd = kind(Fit(learning_rate=2e-4, clip=1e9))
    return CachedRND(rnd) if pixels else rnd


def control_released(pixels: bool) -> MADE:
    return made_released(cover=control_rnd(pixels, OrthogonalRND))


def control_made(pixels: bool) -> MADE:
    """The deep reward. Entries of a vector have scales of their own; of images the cover is that of "rnd", whose errors
    on fixed features are small and are brought to a known scale, as the release's factor is.
    """
    return MADE.deep(cover=Normalized(control_rnd(pixels)) if pixels else RND(normalize=True))


def control_re3() -> RE3:
    return RE3(embedding=50, capacity=MEMORY, released=True)


def dreamer_rnd(kind: type[ReleasedRND] = ReleasedRND) -> ReleasedRND:
    """The cover of the release, trained on the whole batch that the agent learns from."""
    return kind(Fit(learning_rate=6e-4, clip=100.0))


def dreamer_made() -> MADE:
    """The deep reward over the cover of "rnd", as with RAD."""
    return MADE.deep(DREAMER_WINDOW, cover=Normalized(dreamer_rnd()))


def dreamer_released() -> MADE:
    vae = ReleasedVAE(
        DREAMER_WINDOW, fit=Fit(learning_rate=1e-3, clip=100.0, steps=4, batch=128), capacity=DREAMER_WINDOW
    )
    return made_released("none", cover=dreamer_rnd(OrthogonalRND), density=vae)


def dreamer_re3(steps: int) -> FromBatch:
    """RE3 whose neighbours are the batch itself, of so many steps."""
    return FromBatch(RE3(embedding=50, k=50, capacity=steps, on="next_obs", released=True))
