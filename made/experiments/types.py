"""What an experiment is: what is run, how it is judged and how it is drawn, in one place."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from made.core import safe_files
from made.core.trial import Trial
from made.experiments.statistics import Interval, paired_interval
from made.experiments.store.store import Scale
from made.experiments.store.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Verdict(NamedTuple):
    """Whether a claim holds in the recorded runs (None: this scale cannot tell), and the numbers it rests on."""

    holds: bool | None
    observed: str
    seeds: int | None = None  # that it rests on, where not all labels have as many; 0 where nothing of it was run


class Claim(NamedTuple):
    """One testable sentence of the paper."""

    number: int
    name: str
    text: str
    where: str  # in the paper
    check: Callable[[Table], Verdict]


class PaperFigure(NamedTuple):
    """A figure with its name and the words that belong under it."""

    name: str
    figure: "Figure"
    caption: str


Settings = dict[str, dict[str, Any]]  # of a method, by task and method


class Search(NamedTuple):
    """What a search is for: a setting for each task and method, and the file from which other experiments read it."""

    choose: Callable[[Table], Settings]
    file: Callable[[], Path]
    scale: Callable[[Scale], str] = lambda scale: scale.value  # under which it stands there


def read_settings(file: Path) -> dict[str, Settings]:
    """All that was chosen, by scale; nothing where no search was taken over yet."""
    return json.loads(file.read_text("utf-8")) if file.exists() else {}


def take_settings(search: Search, table: Table, scale: Scale, replace: bool = False) -> Settings:
    """Write what a search chose where experiments read it, and give it back; all else in that file stays.

    A setting that stands there already is kept, and one that differs refused, unless it is to be replaced: what was
    run with it would no longer belong to the experiment.
    """
    found, file, name = search.choose(table), search.file(), search.scale(scale)
    kept = read_settings(file)
    old = kept.get(name, {})
    other = [
        f"{task}/{method} {old[task][method]} in place of {setting}"
        for task, of in found.items()
        for method, setting in of.items()
        if old.get(task, {}).get(method, setting) != setting
    ]
    if other and not replace:
        raise ValueError(
            f"{file.name} has other settings at scale {name}: {', '.join(other)}. "
            "With --replace they are written over, and runs that were made with them no longer count."
        )
    merged = {task: {**old.get(task, {}), **found.get(task, {})} for task in (*old, *found)}
    safe_files.write_atomic(file, json.dumps({**kept, name: merged}, indent=1) + "\n")
    return found


class Experiment(NamedTuple):
    """A study: its trials by label, its seeds, its claims and its figures."""

    name: str
    figure: str  # the label of the paper's figure or theorem
    title: str
    about: str
    trials: Callable[[Scale], dict[str, Trial]]
    seeds: Callable[[Scale], range]
    claims: tuple[Claim, ...]
    draw: Callable[[Table], list[PaperFigure]]
    tables: Callable[[Table], list[tuple[str, list[str], list[list[str]]]]]
    columns: tuple[str, ...] = ()  # the scalars worth storing; empty: all of them
    in_demo: bool = True  # False where its networks would take the two minutes of the demo
    in_pieces: bool = False  # True: judged and drawn from what was run of it, and what was not is named
    shares: str = ""  # the experiment whose recorded runs it judges and draws, where it has none of its own
    search: Search | None = None  # where it looks for settings that other experiments use: `made choose`

    @property
    def stored_as(self) -> str:
        """The name under which its runs are stored."""
        return self.shares or self.name


class ClaimResult(NamedTuple):
    """A claim with its verdict: one row of `made check`."""

    claim: int
    name: str
    where: str
    holds: bool | None
    observed: str
    scale: str
    seeds: int
    command: str


def check_claims(experiment: Experiment, table: Table, scale: Scale, command: str) -> list[ClaimResult]:
    """Every claim of an experiment against what was recorded."""
    most = max((len(table.seeds(label)) for label in table.labels()), default=0)
    rows = []
    for claim in experiment.claims:
        holds, observed, seeds = claim.check(table) if most else Verdict(None, "nothing recorded yet")
        seeds = most if seeds is None else seeds
        rows.append(ClaimResult(claim.number, claim.name, claim.where, holds, observed, scale.value, seeds, command))
    return rows


def choose(scale: Scale, **by_scale: Any) -> Any:
    """The entry for a scale; a scale without one takes the next smaller that has one."""
    order = [Scale.SMOKE, Scale.DEMO, Scale.SMALL, Scale.GPU, Scale.PAPER]
    for smaller in reversed(order[: order.index(scale) + 1]):
        if smaller.value in by_scale:
            return by_scale[smaller.value]
    raise ValueError(f"Nothing was given for scale {scale.value} or a smaller one: {', '.join(by_scale)}.")


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
