"""From experiments to stored runs: jobs that the store lacks, grouped into lanes, a program for each group.

Two programs run at once on two cores: compiling and running both leave Python free.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NamedTuple

import jax

from made.describe import NoSuchField, describe, override, run_id
from made.experiments.spec import Experiment
from made.results.provenance import provenance
from made.results.store import Job, RunExists, Scale, Store
from made.trial import Trial, execute, groups, rows_of

MOST_LANES = 512  # lanes of one program; more only raises memory


class Planned(NamedTuple):
    """A job and the trial that its names stand for."""

    job: Job
    trial: Trial
    id: str


class Group(NamedTuple):
    """Jobs that share one compiled program."""

    experiment: Experiment
    jobs: tuple[Planned, ...]

    @property
    def work(self) -> int:
        """Iterations over all lanes."""
        return sum(planned.trial.iterations for planned in self.jobs)


class Outcome(NamedTuple):
    """A finished group."""

    group: Group
    wall_s: float


def configured(experiment: Experiment, scale: Scale, settings: Sequence[str] = ()) -> dict[str, Trial]:
    """The trials of an experiment by label, with `path=value` overrides applied wherever the path exists.

    A path that no trial has is an error that names the nearest field.
    """
    trials = experiment.trials(scale)
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals or not path:
            raise ValueError(f"--set takes path=value, such as bonus.recent.window=500, not {setting!r}.")
        changed, error = {}, None
        for label, trial in trials.items():
            try:
                changed[label] = override(trial, path, value)
            except NoSuchField as missing:
                error = missing
        if not changed:
            raise ValueError(str(error))
        trials |= changed
    return trials


def plan(
    experiment: Experiment, scale: Scale, seeds: Sequence[int], store: Store, settings: Sequence[str] = ()
) -> tuple[list[Group], int]:
    """The groups still to run, largest first, and how many jobs the store has already."""
    todo, done = [], 0
    for label, trial in configured(experiment, scale, settings).items():
        rows_of(trial)  # refuses a length and cadence that do not fit, before anything runs
        id = run_id(trial)
        for seed in seeds:
            job = Job(experiment.stored_as, label, seed, scale)
            if store.has(job, id):
                done += 1
            else:
                todo.append(Planned(job, trial, id))
    made = []
    for indices in groups([planned.trial for planned in todo]):
        for at in range(0, len(indices), MOST_LANES):
            made.append(Group(experiment, tuple(todo[i] for i in indices[at : at + MOST_LANES])))
    return sorted(made, key=lambda group: -group.work), done


def sweep(
    work: Sequence[Group],
    store: Store,
    on_work: Callable[[int], None] | None = None,
    workers: int | None = None,
) -> Iterator[Outcome]:
    """Run the groups, two at a time on two cores, and store each when it is done. `on_work` hears iterations done.

    An accelerator takes them one after another. What is stored stays stored if the sweep is interrupted; the next one
    goes on from there.
    """
    if workers is None:
        workers = min(4, os.cpu_count() or 1) if jax.default_backend() == "cpu" else 1
    pool = ThreadPoolExecutor(workers)
    waiting = list(work)
    running: set[Future[Outcome]] = set()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.add(pool.submit(_run_group, waiting.pop(0), store, on_work))
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _run_group(group: Group, store: Store, on_work: Callable[[int], None] | None) -> Outcome:
    started = time.time()
    trials = [planned.trial for planned in group.jobs]

    def on_rows(rows: int) -> None:
        if on_work is not None:
            on_work(rows * trials[0].every * len(trials))

    records = execute(trials, [planned.job.seed for planned in group.jobs], on_rows)
    wall_s = time.time() - started
    made_by = provenance(started, wall_s, len(trials))
    keep = group.experiment.columns
    for planned, record in zip(group.jobs, records, strict=True):
        rows = {name: x for name, x in record.rows.items() if not keep or name in ("step", *keep)}
        arrays = {"step": record.rows["step"], **record.arrays} if record.arrays else None
        try:
            store.write(planned.job, planned.id, describe(planned.trial), rows, arrays, made_by)
        except RunExists:  # another process did the same job meanwhile, with the same numbers
            continue
    return Outcome(group, wall_s)
