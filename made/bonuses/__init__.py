"""Exploration bonuses. Adding one is a file here and a line in `BONUSES`."""

from collections.abc import Callable

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
from made.bonuses.released import made_released
from made.bonuses.ride import RIDE
from made.bonuses.rnd import RND
from made.bonuses.strength import bonus_strength
from made.bonuses.vae import VAE
from made.core import Bonus

BONUSES: dict[str, Callable[[], Bonus]] = {
    "none": NoBonus,
    "hoeffding": lambda: Count(power=0.5),
    "inverse": lambda: Count(power=1.0),
    "bernstein": Bernstein,
    "made": MADE.deep,
    "made-counts": MADE.hashed,
    "made-released": made_released,
    "made-tabular": MADE.tabular,
    "made-geometric": MADE.geometric,
    "rnd": RND,
    "icm": ICM,
    "ride": RIDE,
    "noveld": NovelD,
    "bebold": lambda: NovelD(alpha=1.0),
    "amigo": AMIGo,
    "re3": RE3,
    "e3b": E3B,
    "ngu": NGU,
    "disagreement": Disagreement,
    "hashed": HashedCounts,
    "first-visit": FirstVisit,
}

__all__ = [
    "BONUSES",
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
    "made_released",
]
