"""What the commands do with experiments: run what is missing, judge, draw, report."""

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from made.core.config import to_dict
from made.core.trial import RunsFailed
from made.experiments import executors, plots
from made.experiments.executors import Options
from made.experiments.report.model import Figure, Section
from made.experiments.resumable import partial_runs, progress_text
from made.experiments.scheduler import MOST_LANES, Group, Outcome, Study, plan, schedule
from made.experiments.store.locking import wait_for
from made.experiments.store.store import Job, Scale, Store
from made.experiments.store.table import Table
from made.experiments.types import ClaimResult, Experiment, PaperFigure, check_claims
from made.training.paths import make_dir
from made.training.progress import Meter
from made.training.provenance import merged

FOREVER_S = 1e8  # seconds


def run(
    studies: Sequence[Study],
    store: Store,
    seeds: int | None = None,
    only: Sequence[str] = (),
    lanes: int = MOST_LANES,
    options: Options = Options(),
    wait: bool = False,
) -> int:
    """Run what the store lacks, and return how many runs were made.

    Args:
        studies: What to run.
        store: The store of runs.
        seeds: Seeds 0 to `seeds` - 1. Default: those of the scale.
        only: Labels or patterns of the configurations to run. Default: all.
        lanes: The most runs of one program.
        options: The executor and its options.
        wait: Wait for runs that another process makes, and make them if it dies.

    Raises:
        RunsFailed: A run raised an error, or its worker died too often. The others are stored.
    """
    until = math.inf if options.minutes is None or options.on == "slurm" else time.monotonic() + 60 * options.minutes
    by_runs = {(s.experiment.stored_as, s.scale, s.settings): s for s in reversed(studies)}
    made, first, distinct = 0, True, list(by_runs.values())[::-1]  # some share the runs of another one
    while True:
        planned = [
            plan(one, range(seeds) if seeds is not None else one.experiment.seeds(one.scale), store, lanes, only)
            for one in distinct
        ]
        work = sorted((group for groups, _ in planned for group in groups), key=lambda group: -group.work)
        missing, have = sum(len(group.jobs) for group in work), sum(stored for _, stored in planned)
        if have and first:
            print(f"{have} runs are stored already, {missing} are to be made.", flush=True)
        if not work:
            return made
        done, progress = _run(work, store, options, until)
        now = sum(len(outcome.made) for outcome in done)
        if now or first:
            speed = f"{progress.made:,} iterations at {progress.speed()}"
            print(f"{now} runs made, {speed}, compiling included.", flush=True)
        made, first = made + now, False
        _report_failures(done)
        held = [(outcome.group.stored_as[i], who) for outcome in done for i, who in outcome.held.items()]
        if left := missing - now - len(held) - sum(len(outcome.had) for outcome in done):
            print(f"The time is up and {left} runs are not finished; the same command goes on from there.")
        if left or not held or not _wait_for_others(held, store, until, wait):
            return made


def _run(work: list[Group], store: Store, options: Options, until: float) -> tuple[list[Outcome], Meter]:
    make_dir(store.root, "--out")  # or it would be refused after the first minutes of work
    names = list(dict.fromkeys(group.study.experiment.name for group in work))
    title = names[0] if len(names) == 1 else f"{len(names)} experiments"
    done, progress = [], Meter(sum(group.work for group in work), "iterations", title)
    with executors.start(options, store, len(work)) as (call, workers), progress.shown():
        for outcome in schedule(work, store, progress.add, call, workers, until):
            if outcome.error:
                print(f"made: {outcome.group} failed: {outcome.error}", file=sys.stderr, flush=True)
            done.append(outcome)
    return done, progress


def _report_failures(done: Sequence[Outcome]) -> None:
    if failed := [outcome for outcome in done if outcome.error]:
        n = sum(len(outcome.group.jobs) - len(outcome.had) - len(outcome.held) for outcome in failed)
        first = f"{failed[0].group} failed: {failed[0].error}"
        raise RunsFailed(f"{n} run{'s' * (n > 1)} failed, the others are stored. {first}")


def _wait_for_others(held: Sequence[tuple[tuple[Job, str], str]], store: Store, until: float, wait: bool) -> bool:
    """Wait until nobody makes any of these jobs; False where that is not asked for, or the time is up."""
    who = f"{len(held)} run{'s' * (len(held) > 1)} that {', '.join(sorted({name for _, name in held}))} makes"
    if not wait:
        print(f"Left out: {who}. With --wait this command waits for them.")
        return False
    print(f"made: waiting for {who}. Ctrl-C stops.", file=sys.stderr, flush=True)
    for (job, run_id), _ in held:
        if not wait_for(store, job, run_id, min(until - time.monotonic(), FOREVER_S)):
            print(f"The time is up; left out: {who}.")
            return False
    return True


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
    table = store.table(study.experiment.stored_as, study.scale, study.ids)
    have = {label: tuple(table.seeds(label)) for label in table.labels()}
    if not have:
        return table, f"nothing recorded; run: {study.command}"
    missing = [label for label in study.ids if label not in have]
    if (missing or len(set(have.values())) > 1) and not study.experiment.in_pieces:
        lacking = f"{len(missing)} of {len(study.ids)} configurations" if missing else "some seeds"
        return table, f"incomplete, {lacking} are missing; the same command goes on from there: {study.command}"
    return table, None


def with_partial_runs(study: Study, store: Store, table: Table) -> Table:
    """The table to be drawn: of what comes in pieces also labels that are begun, where no seed of them is whole."""
    if not study.experiment.in_pieces:
        return table
    descriptions = {label: to_dict(trial) for label, trial in study.trials.items()}
    return table.joined(partial_runs(store, study.experiment.stored_as, study.ids, descriptions), study.trials)


def plottable(study: Study, store: Store, table: Table, problem: str | None) -> tuple[Table, str | None]:
    """What `load` found, with what is begun: where an experiment comes in pieces that is enough to be drawn."""
    if not study.experiment.in_pieces:
        return table, problem
    shown = with_partial_runs(study, store, table)
    return shown, None if shown.labels() else problem


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
        raise ValueError(f"{study.experiment.name} cannot be plotted: {problem}.")
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
