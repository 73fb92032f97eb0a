"""What the commands do with experiments: run what is missing, judge, draw, report."""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from made.core.config import config_id, to_dict
from made.core.trial import Trial
from made.experiments import plots
from made.experiments.report.model import Figure, Section
from made.experiments.scheduler import Group, Planned, plan, sweep, trials_of
from made.experiments.store.job_lock import LockOwner, holder
from made.experiments.store.partial_runs import partial_runs, progress_text
from made.experiments.store.store import Scale, Store
from made.experiments.store.table import Table
from made.experiments.types import ClaimResult, Experiment, PaperFigure, check_claims
from made.training.paths import make_dir
from made.training.progress import meter
from made.training.provenance import merged

POLL_S = 2.0  # between two looks at what another process is making
SAID_S = 30.0  # between two lines about it


class Study(NamedTuple):
    """An experiment at a scale, with the settings it was asked to change."""

    experiment: Experiment
    scale: Scale
    settings: tuple[str, ...] = ()

    @property
    def trials(self) -> dict[str, Trial]:
        """Its configurations by their labels."""
        return trials_of(self.experiment, self.scale, self.settings)

    @property
    def command(self) -> str:
        """The command that makes these runs."""
        changed = "".join(f" --set {setting}" for setting in self.settings)
        return f"made run {self.experiment.name} --scale {self.scale.value}{changed}"


def run(
    studies: Sequence[Study],
    store: Store,
    seeds: int | None = None,
    only: Sequence[str] = (),
    minutes: float = math.inf,
) -> int:
    """Run whatever the store lacks, of `only` some configurations where they are named; returns how many were made.

    After about so many minutes it stops: what is trained with checkpoints goes on from them another time. Runs that
    another process is making are waited for, and made here where it dies.
    """
    until, made, first = time.monotonic() + 60 * minutes, 0, True
    while True:
        work: list[Group] = []
        have = 0
        for study in _each_once(studies):
            chosen = range(seeds) if seeds is not None else study.experiment.seeds(study.scale)
            groups, done = plan(study.experiment, study.scale, chosen, store, study.settings, only=only)
            work += groups
            have += done
        missing = sum(len(group.jobs) for group in work)
        if have and first:
            print(f"{have} runs are stored already, {missing} are to be made.", flush=True)
        if not work:
            return made
        make_dir(store.root, "--out")  # or it would be refused after the first minutes of work
        work.sort(key=lambda group: -group.work)
        names = ", ".join(dict.fromkeys(group.experiment.name for group in work))
        with meter(sum(group.work for group in work), "iterations", names) as progress:
            done = list(sweep(work, store, progress.add, until=until))
        now = sum(len(outcome.made) for outcome in done)
        if now or first:
            print(
                f"{now} runs made, {progress.made:,} iterations at {progress.speed()}, compiling included.", flush=True
            )
        made, first = made + now, False
        others = [(outcome.group.jobs[i], who) for outcome in done for i, who in outcome.elsewhere.items()]
        if left := missing - now - len(others) - sum(len(outcome.had) for outcome in done):
            print(f"The time is up and {left} runs are not finished; the same command goes on from there.")
        if left or not others or not _waited(others, store, until):
            return made


def _waited(others: Sequence[tuple[Planned, LockOwner]], store: Store, until: float) -> bool:
    """Wait until nobody is at any of these jobs: each is stored then, or was given up; False where the time is up."""
    left, spoke = [planned for planned, _ in others], -math.inf
    who = ", ".join(sorted({str(owner) for _, owner in others}))
    many = f"{len(others)} run{'s' * (len(others) > 1)}"
    while True:
        while left and holder(store, left[-1].job, left[-1].id) is None:
            left.pop()
        if not left:
            return True
        if time.monotonic() >= until:
            print(f"The time is up and {len(left)} runs are still being made by {who}.")
            return False
        if time.monotonic() - spoke >= SAID_S:
            spoke, stored = time.monotonic(), sum(store.folder(one.job, one.id).is_dir() for one, _ in others)
            said = (
                f"waiting for {many} that {who} is making: {stored} of {len(others)} stored; Ctrl-C ends the waiting."
            )
            print(f"made: {said}", file=sys.stderr, flush=True)
        time.sleep(POLL_S)


def _each_once(studies: Sequence[Study]) -> list[Study]:
    """Without those that share the runs of another one in the list."""
    return list({(s.experiment.stored_as, s.scale, s.settings): s for s in reversed(studies)}.values())[::-1]


def largest_scale(experiment: Experiment, store: Store) -> Scale | None:
    """The largest scale at which the store has this experiment."""
    recorded = scales(experiment, store)
    order = [Scale.PAPER, Scale.GPU, Scale.SMALL, Scale.DEMO, Scale.SMOKE]
    return next((scale for scale in order if scale in recorded), None)


def scales(experiment: Experiment, store: Store) -> list[Scale]:
    """The scales at which the store has any run of an experiment; where none is whole, those at which one is begun."""
    recorded = store.scales(experiment.stored_as)
    if recorded or not store.partial_runs(experiment.stored_as):
        return recorded
    return [scale for scale in Scale if with_partial_runs(Study(experiment, scale), store, Table()).labels()]


def load(study: Study, store: Store) -> tuple[Table, str | None]:
    """The recorded table, and why it cannot be judged if it cannot.

    What takes days may be judged from a part of it: then the experiment says so (`in_pieces`).
    """
    trials = study.trials
    table = store.table(study.experiment.stored_as, study.scale, _ids(trials))
    have = {label: tuple(table.seeds(label)) for label in table.labels()}
    if not have:
        return table, f"nothing recorded; run: {study.command}"
    missing = [label for label in trials if label not in have]
    if (missing or len(set(have.values())) > 1) and not study.experiment.in_pieces:
        lacking = f"{len(missing)} of {len(trials)} configurations" if missing else "some seeds"
        return table, f"incomplete, {lacking} are missing; the same command goes on from there: {study.command}"
    return table, None


def with_partial_runs(study: Study, store: Store, table: Table) -> Table:
    """The table to be drawn: of what comes in pieces also labels that are begun, where no seed of them is whole."""
    if not study.experiment.in_pieces:
        return table
    trials = study.trials
    descriptions = {label: to_dict(trial) for label, trial in trials.items()}
    return table.joined(partial_runs(store, study.experiment.stored_as, _ids(trials), descriptions), trials)


def plottable(study: Study, store: Store, table: Table, problem: str | None) -> tuple[Table, str | None]:
    """What `load` found, with what is begun: where an experiment comes in pieces that is enough to be drawn."""
    if not study.experiment.in_pieces:
        return table, problem
    shown = with_partial_runs(study, store, table)
    return shown, None if shown.labels() else problem


def _ids(trials: Mapping[str, Trial]) -> dict[str, str]:
    """The run-id of each configuration."""
    return {label: config_id(trial) for label, trial in trials.items()}


def not_run(study: Study, table: Table) -> list[str]:
    """The configurations of an experiment of which some were run that were not, or on fewer seeds than others.

    Of those that are begun (`with_partial_runs`) it says how far they are.

    >>> from made.experiments import experiment
    >>> not_run(Study(experiment("lock"), Scale.SMOKE), Table())
    []
    """
    runs = {label: table.runs(label) for label in table.labels()}
    far = {label: f"begun: {progress_text(ones[0])} steps" for label, ones in runs.items() if "begun" in ones[0]}
    have = {label: len(ones) for label, ones in runs.items() if label not in far}
    most = max(have.values(), default=1 if far else 0)
    some = {label: f"{n} of {most} seeds" for label, n in have.items()}
    absent = [label for label in study.trials if have.get(label, 0) < most or label in far]
    return [f"{label} ({said})" if (said := (far | some).get(label)) else label for label in absent]


def check(study: Study, store: Store) -> list[ClaimResult]:
    """Every claim of the study with its verdict."""
    table, problem = load(study, store)
    return check_claims(study.experiment, table, study.scale, study.command, problem)


def unchecked_claims(study: Study, problem: str) -> list[ClaimResult]:
    """The claims of a study whose runs are not there."""
    return check_claims(study.experiment, Table(), study.scale, study.command, problem)


def draw(study: Study, store: Store, folder: Path) -> list[tuple[PaperFigure, Path]]:
    """Draw the figures of the study into a folder, as PNG and SVG."""
    table, problem = plottable(study, store, *load(study, store))
    if problem:
        raise ValueError(f"{study.experiment.name} cannot be drawn: {problem}.")
    make_dir(folder, "--to")  # before the work of drawing
    return [(drawn, plots.save(drawn.figure, folder / drawn.name)[0]) for drawn in study.experiment.draw(table)]


def section(study: Study, judged: Sequence[ClaimResult]) -> Section:
    """The claims of a study as a section of the report, without runs."""
    one = study.experiment
    texts = {claim.number: f"{claim.text}." for claim in one.claims}
    return Section(one.name, one.title, one.about, claims=[{**x._asdict(), "text": texts[x.claim]} for x in judged])


def publish(study: Study, store: Store, folder: Path, mark: str = "") -> Section:
    """A study as a section of the report. Its figures go to `folder` as PNG and SVG; their names end with `mark`."""
    table, problem = load(study, store)
    found = section(study, check_claims(study.experiment, table, study.scale, study.command, problem))
    table, problem = plottable(study, store, table, problem)
    if problem:
        return found
    figures = []
    for drawn in study.experiment.draw(table):
        file = plots.save(drawn.figure, folder / f"{drawn.name}{mark}")[0]
        figures.append(Figure(file, drawn.caption, f"Figure {drawn.name}: {drawn.caption}"))
    runs = {label: table.runs(label) for label in table.labels()}
    tables = study.experiment.tables(table)
    if absent := not_run(study, table):
        tables = [*tables, ("Not run at this scale", ["configuration"], [[label] for label in absent])]
    settings = {label: ones[0]["description"] for label, ones in runs.items()}
    made_by = merged(one["provenance"] for ones in runs.values() for one in ones)
    return found._replace(figures=figures, tables=tables, settings=settings, provenance=made_by)
