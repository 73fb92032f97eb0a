"""The bonuses of the control experiments with the settings of the paper and of the releases, by name (Section 5.2)."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from made.bonuses.combine import Normalised
from made.bonuses.count import NoBonus
from made.bonuses.icm import ICM
from made.bonuses.made import MADE
from made.bonuses.re3 import RE3
from made.bonuses.released import DividedByDeviation, ReleasedRND, made_released
from made.bonuses.released_vae import ReleasedVAE
from made.bonuses.replayed import LastFrame, fed
from made.bonuses.rnd import RND
from made.bonuses.stored import StoredRND
from made.core import Bonus, Density
from made.describe import suggest
from made.learning import Fit


class LevelledState(NamedTuple):
    """The density's own state, and the mean of its factor over the latest batch."""

    inner: PyTree
    mean: Float[Array, ""]


class Levelled(Density):
    """A density whose factor d^{-1/2} is the same everywhere: its mean over the latest batch.

    MADE with this in the place of the density pays the cover alone, at MADE's own scale all through training: the
    control that tells what the density adds.
    """

    density: Density

    def init(self, key, spec):
        return LevelledState(self.density.init(key, spec), jnp.ones(()))

    def log_density(self, state, batch):
        return jnp.broadcast_to(-2 * jnp.log(jnp.maximum(state.mean, 1e-30)), batch.reward.shape)

    def update(self, state, batch, key):
        inner, metrics = self.density.update(state.inner, batch, key)
        mean = jnp.exp(jnp.minimum(-0.5 * self.density.log_density(inner, batch), 40.0)).mean()
        return LevelledState(inner, mean), {**metrics, "factor/level": mean}


def _rnd(pixels: bool) -> Bonus:
    """The cover of the release, trained on the whole batch that the agent learns from; features of images are kept."""
    rnd = ReleasedRND(Fit(learning_rate=2e-4, clip=1e9))
    return StoredRND(rnd) if pixels else rnd


def _made(pixels: bool) -> MADE:
    """The deep reward. Entries of a vector have scales of their own; of images the cover is that of "rnd", whose errors
    on fixed features are small and are brought to a known scale, as the release's factor is.
    """
    return MADE.deep(cover=Normalised(_rnd(pixels)) if pixels else RND(normalise=True))


CONTROL_BONUSES: dict[str, Callable[[bool], Bonus]] = {  # with pixels or with vectors
    "none": lambda pixels: NoBonus(),
    "rnd": lambda pixels: Normalised(_rnd(pixels)),
    "icm": lambda pixels: ICM(fit=Fit(learning_rate=2e-4)),
    "re3": lambda pixels: Normalised(RE3(embedding=50, capacity=100_000, released=True)),
    "made": _made,
    "made-released": lambda pixels: made_released(cover=_rnd(pixels)),
    "rnd-at-made": lambda pixels: MADE(_rnd(pixels), Levelled(DividedByDeviation(ReleasedVAE()))),
}


def control_bonus(name: str, pixels: bool) -> Bonus:
    """A bonus for an agent that learns from a replay; with pixels it looks at the last frame of a stack.

    >>> control_bonus("made", pixels=False).recent.density.window
    10000
    """
    if name not in CONTROL_BONUSES:
        raise ValueError(f"There is no bonus {name!r} for control.{suggest(name, list(CONTROL_BONUSES))}")
    bonus = fed(CONTROL_BONUSES[name](pixels))
    return LastFrame(bonus) if pixels and name != "none" else bonus
