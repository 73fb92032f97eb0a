"""What each part of a bonus learns from where an agent learns from a replay: fresh steps, recent ones, or drawn ones.

On-policy, a batch is all three. Off-policy they come apart: networks learn from the batch that the agent learns from,
as in the authors' code; counts and memories take in every step once, when it is fresh; a density of recent experience
learns from the last `window` steps, which the replay holds already.
"""

import dataclasses
from typing import NamedTuple

import jax
from jaxtyping import Array, Int

from made.bonuses.combine import Repaid
from made.bonuses.count import Bernstein, Count
from made.bonuses.density import GeometricMixture, HashedRecentCounts, RecentCounts
from made.bonuses.hashed import HashedCounts
from made.bonuses.re3 import RE3
from made.bonuses.released_vae import FRAME, ReleasedVAE
from made.bonuses.vae import VAE
from made.core import Bonus, Density, Picture, Space, Spec, Transition
from made.describe import check_types

DRAWS = 512  # recent steps that a density is handed at each update


class Replayed(NamedTuple):
    """What comes along with a batch drawn from a replay, as its `extras`."""

    fresh: Transition  # [T, N] the steps since the update before
    recent: Transition  # [1, DRAWS] drawn evenly from the last `window` steps
    at: Int[Array, "1 B"] | None = None  # where in the replay the steps of the batch stand, where that is known
    new: Int[Array, "T N"] | None = None  # the same of the fresh ones


def fresh_of(batch: Transition) -> Transition:
    """The steps of a batch that nobody has seen before: of a replayed one what came with it, of a rollout all."""
    return batch.extras.fresh if isinstance(batch.extras, Replayed) else batch


def recent_of(batch: Transition) -> Transition:
    """Recent steps: of a replayed batch those that came with it, of a rollout all."""
    return batch.extras.recent if isinstance(batch.extras, Replayed) else batch


class Fresh(Repaid):
    """A bonus that takes in every step once: counts, memories of neighbours."""

    bonus: Bonus

    def change(self, paid):
        return paid

    def update(self, state, batch, key):
        return self.bonus.update(state, fresh_of(batch), key)


class FreshDensity(Density):
    """A density that takes in every step once: counts of a window."""

    density: Density

    def init(self, key, spec):
        return self.density.init(key, spec)

    def log_density(self, state, batch):
        return self.density.log_density(state, batch)

    def update(self, state, batch, key):
        return self.density.update(state, fresh_of(batch), key)


class Recent(Density):
    """A density that learns from the last `window` steps as the replay holds them, so that none is stored twice.

    Its own ring need only hold the draws of one update: a step on 128 pairs drawn from 512 that were drawn from the
    window is a step on pairs of the window.
    """

    density: Density
    window: int = 10_000

    def __check_init__(self):
        check_types(self)
        if isinstance(self.window, int) and self.window < 1:
            raise ValueError(f"A density of the last `window` steps takes a window of at least 1, got {self.window}.")

    def init(self, key, spec):
        return self.density.init(key, spec)

    def log_density(self, state, batch):
        return self.density.log_density(state, batch)

    def update(self, state, batch, key):
        return self.density.update(state, recent_of(batch), key)


ONCE = (Count, Bernstein, HashedCounts, RE3)
ONCE_DENSITIES = (RecentCounts, GeometricMixture, HashedRecentCounts)
WINDOWED = (VAE, ReleasedVAE)
FED = (Fresh, FreshDensity, Recent)


def fed(bonus: Bonus) -> Bonus:
    """The same bonus with each part learning from what it should of a replay, however deep it stands.

    >>> type(fed(RE3())).__name__
    'Fresh'
    """

    def feed(part):
        if isinstance(part, WINDOWED):
            return Recent(dataclasses.replace(part, window=DRAWS, capacity=DRAWS), part.window)
        if isinstance(part, ONCE_DENSITIES):
            return FreshDensity(part)
        return Fresh(part) if isinstance(part, ONCE) else part

    parts = (*ONCE, *ONCE_DENSITIES, *WINDOWED, *FED)
    return jax.tree.map(feed, bonus, is_leaf=lambda x: isinstance(x, parts))


def window_of(bonus: Bonus) -> Array | int | None:
    """How far back the recent steps go that a bonus made by `fed` asks for; None where it asks for none."""
    parts = jax.tree.leaves(bonus, is_leaf=lambda x: isinstance(x, Recent))
    windows = [part.window for part in parts if isinstance(part, Recent)]
    if len(windows) > 1:
        raise ValueError(f"A bonus may have one density of recent steps, got {len(windows)}: leave the others out.")
    return windows[0] if windows else None


class LastFrame(Repaid):
    """A bonus that looks at the last frame of a stack alone, three channels, as those of the authors' code do."""

    bonus: Bonus

    def init(self, key, spec: Spec):
        if not isinstance(spec.obs, Space) or len(spec.obs.shape) != 3 or spec.obs.shape[-1] < FRAME:
            raise ValueError(
                f"LastFrame reads the last three channels of an image [h, w, c], but the observations are {spec.obs}: "
                "leave it out."
            )
        last = Picture(*spec.obs._replace(shape=(*spec.obs.shape[:2], FRAME)))
        return self.bonus.init(key, spec._replace(obs=last))

    def change(self, paid):
        return paid

    def reward(self, state, batch, *, value=None):
        return self.bonus.reward(state, _cut(batch), value=value)

    def update(self, state, batch, key):
        return self.bonus.update(state, _cut(batch), key)


def _cut(batch: Transition) -> Transition:
    extras = batch.extras
    if isinstance(extras, Replayed):
        extras = extras._replace(fresh=_cut(extras.fresh), recent=_cut(extras.recent))
    last = lambda x: x[..., -FRAME:]  # noqa: E731
    return batch._replace(obs=last(batch.obs), next_obs=last(batch.next_obs), extras=extras)
