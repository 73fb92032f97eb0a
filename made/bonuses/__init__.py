"""Exploration bonuses. Adding one is a file here and a line in `BONUSES`."""

from collections.abc import Callable

from made.bonuses.count import Bernstein, Count, NoBonus
from made.bonuses.density import GeometricMixture, RecentCounts
from made.bonuses.made import MADE
from made.core import Bonus

BONUSES: dict[str, Callable[[], Bonus]] = {
    "none": NoBonus,
    "hoeffding": lambda: Count(power=0.5),
    "inverse": lambda: Count(power=1.0),
    "bernstein": Bernstein,
    "made": MADE.tabular,
    "made-geometric": MADE.geometric,
}

__all__ = ["BONUSES", "MADE", "Bernstein", "Count", "GeometricMixture", "NoBonus", "RecentCounts"]
