"""What the commands do with experiments: run what is missing, check the claims, draw the figures."""

import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from made.core.config import to_dict
from made.core.trial import RunsFailed
from made.experiments import executors, plots
from made.experiments.executors import Options
from made.experiments.resumable import partial_runs, progress_text
from made.experiments.scheduler import MOST_LANES, Group, Outcome, Study, plan, schedule
from made.experiments.store import Job, Scale, Store
from made.experiments.store.locking import wait_for
from made.experiments.store.table import Table
from made.experiments.types import ClaimResult, Experiment, PaperFigure, Verdict
from made.training.loggers import Meter
from made.training.paths import make_dir


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
        if failed := [outcome for outcome in done if outcome.error]:
            n = sum(len(outcome.group.jobs) - len(outcome.had) - len(outcome.held) for outcome in failed)
            why = f"{failed[0].group} failed: {failed[0].error}"
            raise RunsFailed(f"{n} run{'s' * (n > 1)} failed, the others are stored. {why}")
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


def _wait_for_others(held: Sequence[tuple[tuple[Job, str], str]], store: Store, until: float, wait: bool) -> bool:
    """Wait until nobody makes any of these jobs; False where that is not asked for, or the time is up."""
    who = f"{len(held)} run{'s' * (len(held) > 1)} that {', '.join(sorted({name for _, name in held}))} makes"
    if not wait:
        print(f"Left out: {who}. With --wait this command waits for them.")
        return False
    print(f"made: waiting for {who}. Ctrl-C stops.", file=sys.stderr, flush=True)
    for (job, run_id), _ in held:
        if not wait_for(store, job, run_id, max(0.0, until - time.monotonic())):
            print(f"The time is up; left out: {who}.")
            return False
    return True


def scales(experiment: Experiment, store: Store) -> list[Scale]:
    """The scales at which the store has any run of an experiment, smallest first.

    If no run is complete, those at which there are partial runs.
    """
    recorded = store.scales(experiment.stored_as)
    if recorded or not store.partial_runs(experiment.stored_as):
        return recorded
    return [scale for scale in Scale if load(Study(experiment, scale), store, partial=True)[0].labels()]


def load(study: Study, store: Store | None, partial: bool = False) -> tuple[Table, str]:
    """The recorded table, and why its claims cannot be checked; "" where they can.

    An experiment that takes days (`in_pieces`) is checked on what was run of it. For its figures, `partial` adds
    labels of which no seed is complete. Without a store nothing is recorded.
    """
    one, table = study.experiment, Table()
    if store is not None:
        table = store.table(one.stored_as, study.scale, study.ids)
        if partial and one.in_pieces:
            descriptions = {label: to_dict(trial) for label, trial in study.trials.items()}
            table = table.joined(partial_runs(store, one.stored_as, study.ids, descriptions), study.trials)
    have = {label: tuple(table.seeds(label)) for label in table.labels()}
    if not have:
        return table, f"nothing recorded; run: {study.command}"
    missing = [label for label in study.ids if label not in have]
    if (missing or len(set(have.values())) > 1) and not one.in_pieces:
        lacking = f"{len(missing)} of {len(study.ids)} configurations" if missing else "some seeds"
        return table, f"incomplete, {lacking} are missing; the same command goes on from there: {study.command}"
    return table, ""


def not_run(study: Study, table: Table) -> list[str]:
    """The configurations of an experiment of which some were run that were not, or on fewer seeds than others.

    A partial run (`load`) comes with its steps.

    >>> from made.experiments import experiment
    >>> not_run(Study(experiment("lock"), Scale.SMOKE), Table())
    []
    """
    runs = {label: table.runs(label) for label in table.labels()}
    partial = {label: progress_text(ones[0]) for label, ones in runs.items() if "begun" in ones[0]}
    seeds = {label: len(ones) for label, ones in runs.items() if label not in partial}
    most, lacking = max(seeds.values(), default=1 if partial else 0), []
    for label in study.trials:
        if label in partial:
            lacking.append(f"{label} (begun: {partial[label]} steps)")
        elif seeds.get(label, 0) < most:
            lacking.append(f"{label} ({seeds[label]} of {most} seeds)" if label in seeds else label)
    return lacking


def check(study: Study, store: Store | None) -> list[ClaimResult]:
    """Every claim of the study with its verdict."""
    return check_claims(study, *load(study, store))


def check_claims(study: Study, table: Table, problem: str = "") -> list[ClaimResult]:
    """Every claim of the study against what was recorded; where that has a problem, none can be told."""
    most, rows = max(table.seed_counts(), default=0), []
    problem = problem or ("" if most else "nothing recorded yet")
    for claim in study.experiment.claims:
        found = Verdict(None, seeds=0, missing=(problem,) * bool(most)) if problem else claim.check(table)
        seeds = most if found.seeds is None else found.seeds
        effects = [effect.to_dict() for effect in found.effects]
        observed, missing = problem or found.observed, list(found.missing)
        numbers = (found.holds, observed, study.scale.value, seeds, study.command, effects, missing, found.note)
        rows.append(ClaimResult(claim.number, claim.name, claim.where, *numbers))
    return rows


class Evidence(NamedTuple):
    """What the claims of a study that have no verdict still need."""

    study: Study
    store: Store
    claims: tuple[ClaimResult, ...]  # that no verdict is reached on
    missing: dict[str, int]  # runs to be made by configuration
    minutes: float  # that these runs take, by the speed of the runs that are recorded; NaN without one

    @property
    def command(self) -> str:
        """The command that makes the runs."""
        return f"{self.study.command} --out {self.store.root}"


def missing_evidence(experiments: Sequence[Experiment], stores: Sequence[Store]) -> list[Evidence]:
    """The undecided claims of experiments at their largest recorded scale, most claims per minute first.

    Experiments that share runs are one entry.
    """
    found: dict[tuple[str, Scale], Evidence] = {}
    for one in experiments:
        recorded = [(scale, store) for store in stores for scale in scales(one, store)]
        if not recorded or not one.claims:
            continue
        scale, store = max(recorded, key=lambda pair: list(Scale).index(pair[0]))
        study = Study(one, scale)
        claims = tuple(row for row in check(study, store) if row.holds is None)
        if claims and (before := found.get((one.stored_as, scale))):
            found[one.stored_as, scale] = before._replace(claims=(*before.claims, *claims))
        elif claims:
            found[one.stored_as, scale] = _evidence(study, store, claims)
    return sorted(found.values(), key=lambda x: -len(x.claims) / x.minutes if x.minutes > 0 else math.inf)


def _evidence(study: Study, store: Store, claims: tuple[ClaimResult, ...]) -> Evidence:
    table, seeds = store.table(study.experiment.stored_as, study.scale, study.ids), study.experiment.seeds(study.scale)
    have = {label: set(table.seeds(label)) for label in table.labels()}
    missing = {label: len({*seeds} - have.get(label, set())) for label in study.trials}
    missing = {label: n for label, n in missing.items() if n}
    speeds = {label: float(np.median([*_minutes(study, table, label)])) for label in have}  # minutes of an iteration
    tasks = {label: getattr(label, "tags", {}).get("task") for label in study.trials}
    minutes = 0.0 if speeds else math.nan
    for label, n in missing.items() if speeds else ():
        alike = [speed for other, speed in speeds.items() if tasks.get(other) == tasks[label]] or [*speeds.values()]
        minutes += n * study.trials[label].iterations * float(np.median(alike))
    return Evidence(study, store, claims, missing, minutes)


def _minutes(study: Study, table: Table, label: str) -> Iterator[float]:
    """Minutes of an iteration in each recorded run of a configuration; runs of one program share its time."""
    for run in table.runs(label):
        made_by = run["provenance"]
        yield float(made_by["wall_s"]) / float(made_by.get("lanes") or 1) / 60 / study.trials[label].iterations


def draw(study: Study, store: Store, folder: Path) -> list[tuple[PaperFigure, Path]]:
    """Draw the figures of the study into a folder, as PNG and SVG."""
    table, problem = load(study, store, partial=True)
    if problem:
        raise ValueError(f"{study.experiment.name} cannot be plotted: {problem}.")
    make_dir(folder, "--to")  # before the work of drawing
    return [(drawn, plots.save(drawn.figure, folder / drawn.name)[0]) for drawn in study.experiment.draw(table)]
