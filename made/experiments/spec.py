"""What an experiment is: what is run, how it is judged and how it is drawn, in one place."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from made.results.store import Scale
from made.results.table import Table
from made.trial import Trial

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


class Drawing(NamedTuple):
    """A figure with its name and the words that belong under it."""

    name: str
    figure: "Figure"
    caption: str


class Search(NamedTuple):
    """What a search is for: a setting for each task and method, and the file from which other experiments read it."""

    choose: Callable[[Table], dict[str, dict[str, Any]]]
    file: Callable[[], Path]
    scale: Callable[[Scale], str] = lambda scale: scale.value  # under which it stands there


class Experiment(NamedTuple):
    """A study: its trials by label, its seeds, its claims and its figures."""

    name: str
    figure: str  # the label of the paper's figure or theorem
    title: str
    about: str
    trials: Callable[[Scale], dict[str, Trial]]
    seeds: Callable[[Scale], range]
    claims: tuple[Claim, ...]
    draw: Callable[[Table], list[Drawing]]
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


class Judged(NamedTuple):
    """A claim with its verdict: one row of `made check`."""

    claim: int
    name: str
    where: str
    holds: bool | None
    observed: str
    scale: str
    seeds: int
    command: str


def judge(experiment: Experiment, table: Table, scale: Scale, command: str) -> list[Judged]:
    """Every claim of an experiment against what was recorded."""
    most = max((len(table.seeds(label)) for label in table.labels()), default=0)
    rows = []
    for claim in experiment.claims:
        holds, observed, seeds = claim.check(table) if most else Verdict(None, "nothing recorded yet")
        seeds = most if seeds is None else seeds
        rows.append(Judged(claim.number, claim.name, claim.where, holds, observed, scale.value, seeds, command))
    return rows


def choose(scale: Scale, **by_scale: Any) -> Any:
    """The entry for a scale; a scale without one takes the next smaller that has one."""
    order = [Scale.SMOKE, Scale.DEMO, Scale.SMALL, Scale.GPU, Scale.PAPER]
    for smaller in reversed(order[: order.index(scale) + 1]):
        if smaller.value in by_scale:
            return by_scale[smaller.value]
    raise ValueError(f"Nothing was given for scale {scale.value} or a smaller one: {', '.join(by_scale)}.")
