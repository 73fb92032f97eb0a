"""What an experiment is: what is run, how it is judged and how it is drawn, in one place."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from made.core import safe_files
from made.core.trial import Trial
from made.experiments.statistics import Interval, number_text, paired_interval
from made.experiments.store import Scale
from made.experiments.store.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FEWEST_SEEDS = 5  # below this no interval is taken seriously


class Effect(NamedTuple):
    """A number that a verdict rests on, with its 95% interval where it has one (`low` is NaN where not).

    >>> Effect("vi", 0.5, 0.25, math.inf, "return, MADE minus Hoeffding").text
    '0.5 [0.25, not reached]'
    """

    name: str  # of what: a task, an algorithm, a method
    value: float  # infinite: not reached
    low: float = math.nan
    high: float = math.nan
    unit: str = ""  # what is measured; effects of one unit belong together
    null: float = 0.0  # the value that means no effect: 0 of a difference, 1 of a ratio
    seeds: int = 0  # 0: not an estimate over seeds

    @classmethod
    def of(cls, name: str, interval: Interval, unit: str, null: float = 0.0) -> "Effect":
        """An estimate over seeds."""
        value, low, high = (float(x) for x in interval[:3])
        return cls(name, value, low, high, unit, null, interval.n)

    @property
    def text(self) -> str:
        """The number with its interval, in words."""
        few = f" ({self.seeds} seeds)" * (1 < self.seeds < FEWEST_SEEDS)
        if not math.isnan(self.low) and not math.isinf(self.low):
            return f"{number_text(self.value)} [{number_text(self.low)}, {number_text(self.high)}]{few}"
        return number_text(self.value) + (" [one seed, no interval]" if self.seeds == 1 else few)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: null for an end that is infinite or does not exist."""
        plain = {name: x if isinstance(x, str | int) else float(x) for name, x in self._asdict().items()}
        return {name: None if x in (math.inf, -math.inf) or x != x else x for name, x in plain.items()}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "Effect":
        """What `to_dict` was made of."""
        value = math.inf if given["value"] is None else given["value"]
        low = math.nan if given["low"] is None else given["low"]
        high = given["high"] if given["high"] is not None else low + math.inf
        return cls(**{**given, "value": value, "low": low, "high": high})


class Verdict(NamedTuple):
    """Whether a claim holds in the recorded runs (None: they cannot tell), the numbers, and what is missing."""

    holds: bool | None
    effects: tuple[Effect, ...] = ()
    seeds: int | None = None  # that it rests on, where not all labels have as many; 0 where nothing of it was run
    missing: tuple[str, ...] = ()  # what would be needed to tell
    note: str = ""

    @property
    def observed(self) -> str:
        """What is missing, then the numbers, then the note, as one text."""
        parts = [f"Missing: {'; '.join(self.missing)}"] if self.missing else []
        for unit in dict.fromkeys(one.unit for one in self.effects):
            same = "; ".join(f"{one.name} {one.text}".strip() for one in self.effects if one.unit == unit)
            parts.append(f"{unit}: {same}" if unit else same)
        return ". ".join([*(part[:1].upper() + part[1:] for part in parts), *filter(None, [self.note])])

    def also(self, *effects: Effect) -> "Verdict":
        """The same with further numbers."""
        return self._replace(effects=(*self.effects, *effects))


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
    effects: Sequence[Mapping[str, Any]] = ()  # as `Effect.to_dict` has them
    missing: Sequence[str] = ()
    note: str = ""


def choose(scale: Scale, **by_scale: Any) -> Any:
    """The entry for a scale; a scale without one takes the next smaller that has one."""
    for smaller in reversed(list(Scale)[: list(Scale).index(scale) + 1]):
        if smaller.value in by_scale:
            return by_scale[smaller.value]
    raise ValueError(f"Nothing was given for scale {scale.value} or a smaller one: {', '.join(by_scale)}.")


def rng() -> np.random.Generator:
    """The generator of every interval, fixed so that a verdict is the same each time it is computed."""
    return np.random.default_rng(20211)


def average(table: Table, label: str, metric: str = "return") -> np.ndarray:
    """The mean over the whole run, one number a seed."""
    return np.nanmean(table.curves(label, metric)[1], axis=1)


def difference(table: Table, a: str, b: str, metric: str = "return") -> Interval:
    """The interquartile mean of a - b over shared seeds, averages over the whole run."""
    return paired_interval(average(table, a, metric), average(table, b, metric), "iqm", rng())


def above(intervals: Mapping[str, Interval], unit: str) -> Verdict:
    """Holds if every interval lies above zero, fails if any lies below, else cannot tell."""
    return _all_of(intervals, unit, [(i.low > 0, i.high < 0) for i in intervals.values()])


def within(intervals: Mapping[str, Interval], margin: float, unit: str) -> Verdict:
    """Holds if every interval lies inside [-margin, margin], fails if any lies wholly outside, else cannot tell."""
    each = [(-margin <= i.low and i.high <= margin, i.low > margin or i.high < -margin) for i in intervals.values()]
    return _all_of(intervals, unit, each)


def _all_of(intervals: Mapping[str, Interval], unit: str, each: Sequence[tuple[Any, Any]]) -> Verdict:
    """The verdict on intervals of which each is known to hold, to fail, or neither."""
    missing = few_seeds(*(interval.n for interval in intervals.values()))
    holds = together([True if holds else False if fails else None for holds, fails in each])
    return Verdict(None if missing else holds, effects_of(intervals, unit), missing=missing)


def together(verdicts: Sequence[bool | None]) -> bool | None:
    """Holds if all do, fails if any does, else cannot tell."""
    return False if False in verdicts else True if verdicts and all(verdicts) else None


def decide(holds: bool, effects: Sequence[Effect], missing: Sequence[str] = (), fails: bool | None = None) -> Verdict:
    """Holds where nothing is missing, else cannot tell; `fails`, where given, is false whatever is missing."""
    if fails or (fails is None and not holds and not missing):
        return Verdict(False, tuple(effects))
    return Verdict(True if holds and not missing else None, tuple(effects), missing=tuple(missing))


def effects_of(intervals: Mapping[str, Interval], unit: str, null: float = 0.0) -> tuple[Effect, ...]:
    """An effect for each interval that has a seed."""
    return tuple(Effect.of(name, interval, unit, null) for name, interval in intervals.items() if interval.n)


def few_seeds(*counts: int) -> tuple[str, ...]:
    """What is missing where an estimate has too few seeds; empty where none has."""
    fewest = min(counts, default=FEWEST_SEEDS)
    return (f"{fewest} of {FEWEST_SEEDS} seeds",) if fewest < FEWEST_SEEDS else ()
