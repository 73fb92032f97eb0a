"""From experiments to stored runs: jobs that the store lacks, grouped into lanes, a program for each group.

Two programs run at once on two cores: compiling and running both leave Python free. What the host must step, since its
environments live in processes, goes through the machinery of `made train`, in pieces that go on from a checkpoint.

Which lanes share a program is decided when a sweep is planned, from what is asked and what is stored, and never by who
runs it: the same lanes give the same numbers to the bit, other lanes beside a job may change its last bits.
"""

import contextlib
import fnmatch
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax

from made.core.config import NoSuchField, config_id, override, suggest, to_dict
from made.core.trial import Record, TimeLimitReached, Trial, rows_of
from made.experiments.store.job_lock import LockOwner, locked
from made.experiments.store.store import Job, RunExists, Scale, Store
from made.experiments.types import Experiment
from made.training import signals
from made.training.provenance import provenance
from made.training.run_batch import group_by_program, run_batch

MOST_LANES = 512  # lanes of one program; more only raises memory
_STATES = 3  # of a lane at once: before a step, after it, and what lies between


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
    """A finished group: by index, the jobs that were made now, those stored meanwhile and those others are at."""

    group: Group
    wall_s: float
    made: tuple[int, ...]
    had: tuple[int, ...] = ()
    elsewhere: Mapping[int, LockOwner] = {}


def trials_of(experiment: Experiment, scale: Scale, settings: Sequence[str] = ()) -> dict[str, Trial]:
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


def select_labels(trials: dict[str, Trial], only: Sequence[str]) -> dict[str, Trial]:
    """The trials whose label is one of `only`, or fits one with * and ? in it; all where nothing is named."""
    for pattern in only:
        if not fnmatch.filter(trials, pattern):
            raise ValueError(f"--only {pattern} fits no configuration.{suggest(pattern, list(trials))}")
    return {label: trials[label] for label in trials if not only or any(fnmatch.fnmatchcase(label, x) for x in only)}


def plan(
    experiment: Experiment,
    scale: Scale,
    seeds: Sequence[int],
    store: Store,
    settings: Sequence[str] = (),
    lanes: int = MOST_LANES,
    only: Sequence[str] = (),
) -> tuple[list[Group], int]:
    """The groups still to run, largest first, and how many jobs the store has already. `lanes` is the most of a group.

    `only` names configurations, or patterns of them, where not all are wanted. What cannot be run, for its length or on
    this machine, is refused before anything runs.
    """
    todo, done = [], 0
    for label, trial in select_labels(trials_of(experiment, scale, settings), only).items():
        rows_of(trial)  # refuses a length and cadence that do not fit
        id = config_id(trial)
        for seed in seeds:
            job = Job(experiment.stored_as, label, seed, scale)
            if store.has(job, id):
                done += 1
            else:
                todo.append(Planned(job, trial, id))
    for trial in {planned.id: planned.trial for planned in todo}.values():
        trial.demand()
    made = []
    for indices in group_by_program([planned.trial for planned in todo]):
        first = todo[indices[0]].trial
        lane = {i: todo[i].job.seed if first.on_host else i for i in indices}  # there labels share the run of a seed
        each, most = list(dict.fromkeys(lane.values())), min(lanes, max_batch(first, len(indices)))
        for at in range(0, len(each), most):
            those = set(each[at : at + most])
            made.append(Group(experiment, tuple(todo[i] for i in indices if lane[i] in those)))
    return sorted(made, key=lambda group: -group.work), done


def max_batch(trial: Trial, lanes: int) -> int:
    """How many of so many lanes fit into the memory of the device: all, or the largest power of two that does."""
    from made.training import memory

    free = memory.free()
    if lanes == 1 or free is None or trial.on_host:  # what the host steps is looked at when it is trained
        return lanes
    with jax.enable_x64(trial.float64):
        each = _STATES * memory.size_of(jax.eval_shape(trial.start, jax.random.key(0)))
    return lanes if each * lanes <= free else 2 ** max(0, (free // each).bit_length() - 1)


def sweep(
    work: Sequence[Group],
    store: Store,
    on_work: Callable[..., None] | None = None,
    workers: int | None = None,
    until: float = math.inf,
) -> Iterator[Outcome]:
    """Run the groups, two at a time on two cores, and store each when it is done.

    `on_work` hears iterations that were made, and with made=False those that were there before or came from others.
    An accelerator takes them one after another. What is stored stays stored if the sweep is interrupted; the next one
    goes on from there. After `until`, of `time.monotonic()`, no group is begun, and those that can stop with a
    checkpoint do so before.
    """
    if workers is None:
        workers = min(4, os.cpu_count() or 1) if jax.default_backend() == "cpu" else 1
    pool = ThreadPoolExecutor(workers)
    waiting = list(work)
    running: set[Future[Outcome]] = set()
    saving: set[Future[Outcome]] = set()
    try:
        while running or (waiting and time.monotonic() < until):
            while waiting and len(running) < workers and time.monotonic() < until:
                group = waiting.pop(0)
                running.add(future := pool.submit(run_group, group, store, on_work, until=until))
                if group.jobs[0].trial.on_host:
                    saving.add(future)
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                with contextlib.suppress(TimeLimitReached):
                    yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        if signals.asked():  # what is trained with checkpoints stops with one at the end of its row
            wait(saving)


def run_group(
    group: Group,
    store: Store,
    on_work: Callable[..., None] | None = None,
    sweep: str = "",
    until: float = math.inf,
) -> Outcome:
    """Run what can be claimed of a group and store it.

    A job that somebody else is at is left out. One that was stored since the plan stays a lane as long as others are
    to be made, so that their numbers are those of the plan; it is not stored again.
    """
    with locked(store, [(planned.job, planned.id) for planned in group.jobs], sweep) as (mine, elsewhere):
        had = tuple(i for i in mine if store.has(group.jobs[i].job, group.jobs[i].id))
        missing = tuple(i for i in mine if i not in had)
        tell = on_work or (lambda work, made=True: None)
        if not missing:
            tell(group.work, made=False)
            return Outcome(group, 0.0, (), had, elsewhere)
        every = group.jobs[0].trial.every
        chosen = missing if group.jobs[0].trial.on_host else mine
        lanes = group._replace(jobs=tuple(group.jobs[i] for i in chosen))
        wall_s = _run(lanes, store, lambda rows, **made: tell(rows * every * len(lanes.jobs), **made), until)
        tell(group.work - lanes.work, made=False)
        return Outcome(group, wall_s, missing, had, elsewhere)


def _run(group: Group, store: Store, on_rows: Callable[..., None], until: float) -> float:
    started = time.time()
    if group.jobs[0].trial.on_host:
        _in_pieces(group, store, on_rows, until)
        return time.time() - started
    seeds = [planned.job.seed for planned in group.jobs]
    records = run_batch([planned.trial for planned in group.jobs], seeds, on_rows)
    wall_s = time.time() - started
    made_by = provenance(started, wall_s, len(seeds))
    for planned, record in zip(group.jobs, records, strict=True):
        _store(group, planned, record, store, made_by)
    return wall_s


def _in_pieces(group: Group, store: Store, on_rows: Callable[..., None], until: float) -> None:
    """Labels with the same configuration share its runs, a seed each."""
    from made.experiments import resumable

    seeds = sorted({planned.job.seed for planned in group.jobs})
    first, few = group.jobs[0], seeds if len(seeds) < 20 else [seeds[0], "to", seeds[-1]]
    out = store.unfinished(first.job.experiment, f"{first.id}-s{'-'.join(map(str, few))}")
    for other in (one for one in store.partial_runs(first.job.experiment, first.id) if one != out):
        said = (
            f"{other} is a run of {first.job.label} on other seeds, not finished; it goes on where these are asked for"
        )
        print(f"made: {said}.", file=sys.stderr, flush=True)
    whole = resumable.train_resumable(first.trial, seeds, out, on_rows, until)
    for planned in group.jobs:
        _store(group, planned, whole.records[planned.job.seed], store, whole.made_by)
    resumable.clear_partial(out)


def _store(group: Group, planned: Planned, record: Record, store: Store, made_by: dict[str, Any]) -> None:
    keep = group.experiment.columns
    rows = {name: x for name, x in record.rows.items() if not keep or name in ("step", *keep)}
    arrays = {"step": record.rows["step"], **record.arrays} if record.arrays else None
    # Where it exists it stays: it was stored since the plan, or its owner woke up after being taken for dead.
    with contextlib.suppress(RunExists):
        store.write(planned.job, planned.id, to_dict(planned.trial), rows, arrays, made_by)
