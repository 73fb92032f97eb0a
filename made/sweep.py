"""From experiments to stored runs: jobs that the store lacks, grouped into lanes, a program for each group.

Two programs run at once on two cores: compiling and running both leave Python free. What the host must step, since its
environments live in processes, goes through the machinery of `made train`, in pieces that go on from a checkpoint.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax

from made.describe import NoSuchField, describe, override, run_id
from made.experiments.spec import Experiment
from made.results.provenance import provenance
from made.results.store import Job, RunExists, Scale, Store
from made.trial import Record, Trial, execute, groups, rows_of

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
    """The groups still to run, largest first, and how many jobs the store has already.

    What cannot be run, for its length or on this machine, is refused before anything runs.
    """
    todo, done = [], 0
    for label, trial in configured(experiment, scale, settings).items():
        rows_of(trial)  # refuses a length and cadence that do not fit
        id = run_id(trial)
        for seed in seeds:
            job = Job(experiment.stored_as, label, seed, scale)
            if store.has(job, id):
                done += 1
            else:
                todo.append(Planned(job, trial, id))
    for trial in {planned.id: planned.trial for planned in todo}.values():
        trial.demand()
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
    trial = group.jobs[0].trial
    seeds = [planned.job.seed for planned in group.jobs]

    def on_rows(rows: int) -> None:
        if on_work is not None:
            on_work(rows * trial.every * len(seeds))

    if trial.by_host:
        _in_pieces(group, store, on_rows)
        return Outcome(group, time.time() - started)
    records = execute([planned.trial for planned in group.jobs], seeds, on_rows)
    wall_s = time.time() - started
    made_by = provenance(started, wall_s, len(seeds))
    for planned, record in zip(group.jobs, records, strict=True):
        _store(group, planned, record, store, made_by)
    return Outcome(group, wall_s)


def _in_pieces(group: Group, store: Store, on_rows: Callable[[int], None]) -> None:
    """Labels with the same configuration share its runs, a seed each."""
    from made.training import pieces

    seeds = sorted({planned.job.seed for planned in group.jobs})
    first, few = group.jobs[0], seeds if len(seeds) < 20 else [seeds[0], "to", seeds[-1]]
    out = store.unfinished(first.job.experiment, f"{first.id}-s{'-'.join(map(str, few))}")
    whole = pieces.complete(first.trial, seeds, out, on_rows)
    for planned in group.jobs:
        _store(group, planned, whole.records[planned.job.seed], store, whole.made_by)
    pieces.clear(out)


def _store(group: Group, planned: Planned, record: Record, store: Store, made_by: dict[str, Any]) -> None:
    keep = group.experiment.columns
    rows = {name: x for name, x in record.rows.items() if not keep or name in ("step", *keep)}
    arrays = {"step": record.rows["step"], **record.arrays} if record.arrays else None
    # Where it exists, another process did the same job meanwhile, with the same numbers.
    with contextlib.suppress(RunExists):
        store.write(planned.job, planned.id, describe(planned.trial), rows, arrays, made_by)
