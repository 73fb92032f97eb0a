"""Exploration bonuses. To add one, write a file here and a line in `made.bonuses.registry`."""

from made.bonuses.amigo import AMIGo
from made.bonuses.calibrated import Calibrated
from made.bonuses.categorical import Factorised
from made.bonuses.combine import Clipped, FirstVisit, Flat, Normalised, Scaled, Sum
from made.bonuses.count import Bernstein, Count, NoBonus
from made.bonuses.density import GeometricMixture, HashedRecentCounts, RecentCounts, Standardised
from made.bonuses.disagreement import Disagreement
from made.bonuses.e3b import E3B
from made.bonuses.episodic import VisitCounts
from made.bonuses.family import FAMILY, Family
from made.bonuses.hashed import HashedCounts
from made.bonuses.icm import ICM
from made.bonuses.made import MADE
from made.bonuses.ngu import NGU
from made.bonuses.noveld import NovelD
from made.bonuses.re3 import RE3
from made.bonuses.registry import list_bonuses, make_bonus
from made.bonuses.released import made_released
from made.bonuses.ride import RIDE
from made.bonuses.rnd import RND
from made.bonuses.strength import bonus_strength
from made.bonuses.vae import VAE

__all__ = [
    "E3B",
    "FAMILY",
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
    "Count",
    "Disagreement",
    "Factorised",
    "Family",
    "FirstVisit",
    "Flat",
    "GeometricMixture",
    "HashedCounts",
    "HashedRecentCounts",
    "NoBonus",
    "Normalised",
    "NovelD",
    "RecentCounts",
    "Scaled",
    "Standardised",
    "Sum",
    "VisitCounts",
    "bonus_strength",
    "list_bonuses",
    "made_released",
    "make_bonus",
]
