"""Exploration bonuses. To add one, write a file here and a line in `made.bonuses.registry`."""

from made.bonuses.amigo import AMIGo
from made.bonuses.combinators import (
    Calibrated,
    Clipped,
    ConstantBonus,
    FirstVisit,
    Normalized,
    Scaled,
    Sum,
    bonus_strength,
)
from made.bonuses.count import Bernstein, Count, NoBonus
from made.bonuses.densities.recent_counts import (
    Factorized,
    GeometricMixture,
    HashedRecentCounts,
    RecentCounts,
    Standardized,
)
from made.bonuses.densities.vae import VAE
from made.bonuses.disagreement import Disagreement
from made.bonuses.e3b import E3B
from made.bonuses.episodic import VisitCounts
from made.bonuses.hashed_count import HashedCount
from made.bonuses.icm import ICM
from made.bonuses.made import MADE
from made.bonuses.ngu import NGU
from made.bonuses.noveld import NovelD
from made.bonuses.re3 import RE3
from made.bonuses.registry import list_bonuses, make_bonus
from made.bonuses.release.release_rnd import made_released
from made.bonuses.ride import RIDE
from made.bonuses.rnd import RND

__all__ = [
    "E3B",
    "ICM",
    "MADE",
    "NGU",
    "RE3",
    "RIDE",
    "RND",
    "VAE",
    "AMIGo",
    "Bernstein",
    "Calibrated",
    "Clipped",
    "ConstantBonus",
    "Count",
    "Disagreement",
    "Factorized",
    "FirstVisit",
    "GeometricMixture",
    "HashedCount",
    "HashedRecentCounts",
    "NoBonus",
    "Normalized",
    "NovelD",
    "RecentCounts",
    "Scaled",
    "Standardized",
    "Sum",
    "VisitCounts",
    "bonus_strength",
    "list_bonuses",
    "made_released",
    "make_bonus",
]
