"""How recorded runs become verdicts: paired differences with intervals, and rules that were fixed beforehand.

Every rule can answer "cannot tell": too few seeds, or an interval that contains the line to be crossed.
"""

from collections.abc import Sequence

import numpy as np

from made.experiments.spec import Verdict
from made.results.bootstrap import Interval, paired_interval
from made.results.table import Table

FEWEST_SEEDS = 5  # below this no interval is taken seriously


def rng() -> np.random.Generator:
    """The generator of every interval, fixed so that a verdict is the same each time it is computed."""
    return np.random.default_rng(20211)


def average(table: Table, label: str, metric: str = "return") -> np.ndarray:
    """The mean over the whole run, one number a seed."""
    return np.nanmean(table.curves(label, metric)[1], axis=1)


def difference(table: Table, a: str, b: str, metric: str = "return") -> Interval:
    """The interquartile mean of a - b over shared seeds, averages over the whole run."""
    return paired_interval(average(table, a, metric), average(table, b, metric), "iqm", rng())


def above(intervals: dict[str, Interval], what: str) -> Verdict:
    """Holds if every interval lies above zero, fails if any lies below, else cannot tell."""
    said = "; ".join(f"{name} {interval}" for name, interval in intervals.items())
    if _too_few(intervals):
        return Verdict(None, f"{what}: {said}. Fewer than {FEWEST_SEEDS} seeds tell nothing")
    if all(i.low > 0 for i in intervals.values()):
        return Verdict(True, f"{what}: {said}")
    holds = False if any(i.high < 0 for i in intervals.values()) else None
    return Verdict(holds, f"{what}: {said}")


def within(intervals: dict[str, Interval], margin: float, what: str) -> Verdict:
    """Holds if every interval lies inside [-margin, margin], fails if any lies wholly outside, else cannot tell."""
    said = "; ".join(f"{name} {interval}" for name, interval in intervals.items())
    if _too_few(intervals):
        return Verdict(None, f"{what}: {said}. Fewer than {FEWEST_SEEDS} seeds tell nothing")
    if all(-margin <= i.low and i.high <= margin for i in intervals.values()):
        return Verdict(True, f"{what}: {said}")
    outside = any(i.low > margin or i.high < -margin for i in intervals.values())
    return Verdict(False if outside else None, f"{what}: {said}")


def present(table: Table, labels: Sequence[str]) -> list[str]:
    """The labels that were recorded, in the order given."""
    have = set(table.labels())
    return [label for label in labels if label in have]


def _too_few(intervals: dict[str, Interval]) -> bool:
    return not intervals or min(i.n for i in intervals.values()) < FEWEST_SEEDS
