"""From experiments to stored runs: which jobs the store lacks, which of them share a program, running and storing them.

Which runs share a program is decided here, from what is asked and what is stored, and never by the executor. The same
runs in one program give the same numbers to the bit; other runs in parallel with a job may change its last bits.
"""

import contextlib
import dataclasses
import fnmatch
import functools
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import Any, NamedTuple

import jax

from made.core.config import NoSuchField, config_id, override, suggest, to_dict
from made.core.safe_files import DiskFull
from made.core.trial import Record, TimeLimitReached, Trial, rows_of
from made.experiments import resumable
from made.experiments.store import Job, RunExists, Scale, Store
from made.experiments.store.locking import locked
from made.experiments.types import Experiment
from made.training import memory, train_loop
from made.training.backends.compiled_envs import group_by_program, run_batch
from made.training.provenance import provenance

MOST_LANES = 512  # runs of one program; more only raises memory
_STATES = 3  # of a run at once: before a step, after it, and what lies between
_REASON = 300  # characters
OnRows = Callable[..., None]  # of a number of rows, with made=False where they were there before


@dataclasses.dataclass(frozen=True)
class Study:
    """An experiment at a scale, with the settings that are changed."""

    experiment: Experiment
    scale: Scale
    settings: tuple[str, ...] = ()

    @functools.cached_property
    def trials(self) -> dict[str, Trial]:
        """The trials by label, with `path=value` overrides applied wherever the path exists.

        A path that no trial has is an error that names the nearest field.
        """
        trials = self.experiment.trials(self.scale)
        for setting in self.settings:
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

    @functools.cached_property
    def ids(self) -> dict[str, str]:
        """The run-id of each configuration."""
        return {label: config_id(trial) for label, trial in self.trials.items()}

    @property
    def command(self) -> str:
        """The command that makes these runs."""
        changed = "".join(f" --set {setting}" for setting in self.settings)
        return f"made run {self.experiment.name} --scale {self.scale.value}{changed}"

    def labels(self, only: Sequence[str] = ()) -> list[str]:
        """The labels that are one of `only`, or match one with * and ? in it. All where `only` is empty."""
        for pattern in only:
            if not fnmatch.filter(self.trials, pattern):
                raise ValueError(f"--only {pattern} fits no configuration.{suggest(pattern, list(self.trials))}")
        return [label for label in self.trials if not only or any(fnmatch.fnmatchcase(label, x) for x in only)]


class Group(NamedTuple):
    """Jobs, as (label, seed), that share one compiled program."""

    study: Study
    jobs: tuple[tuple[str, int], ...]

    @property
    def trials(self) -> list[Trial]:
        """One trial for each job."""
        return [self.study.trials[label] for label, _ in self.jobs]

    @property
    def work(self) -> int:
        """Iterations of all jobs."""
        return sum(trial.iterations for trial in self.trials)

    @property
    def stored_as(self) -> list[tuple[Job, str]]:
        """The job and the run-id of each in the store."""
        name, scale, ids = self.study.experiment.stored_as, self.study.scale, self.study.ids
        return [(Job(name, label, seed, scale), ids[label]) for label, seed in self.jobs]

    def partial_run(self, store: Store) -> Path:
        """The folder for the checkpoints of a group that the host steps."""
        job, run_id = self.stored_as[0]
        seeds = sorted({seed for _, seed in self.jobs})
        few = seeds if len(seeds) < 20 else [seeds[0], "to", seeds[-1]]
        return store.unfinished(job.experiment, f"{run_id}-s{'-'.join(map(str, few))}")

    def __str__(self) -> str:
        labels = list(dict.fromkeys(label for label, _ in self.jobs))
        shown = ", ".join(labels[:2]) + (", ..." if len(labels) > 2 else "")
        return f"{self.study.experiment.name}: {shown} ({len(self.jobs)} run{'s' * (len(self.jobs) > 1)})"


class Result(NamedTuple):
    """What a worker returns: a record for each job of its group and the provenance, or why it failed."""

    records: list[Record]
    made_by: Mapping[str, Any]
    error: str = ""


class Outcome(NamedTuple):
    """A finished group: by index, the jobs stored now, those stored in between, and who holds the others."""

    group: Group
    made: tuple[int, ...] = ()
    had: tuple[int, ...] = ()
    held: Mapping[int, str] = {}
    error: str = ""


def plan(
    study: Study, seeds: Sequence[int], store: Store, lanes: int = MOST_LANES, only: Sequence[str] = ()
) -> tuple[list[Group], int]:
    """The groups of at most `lanes` runs that the store lacks, and how many jobs it has.

    `only` selects configurations by label or pattern. What cannot run on this machine raises before anything runs.
    """
    labels = study.labels(only)
    wanted = Group(study, tuple((label, seed) for label in labels for seed in seeds))
    jobs = [one for one, stored in zip(wanted.jobs, wanted.stored_as, strict=True) if not store.has(*stored)]
    for label in labels:
        rows_of(study.trials[label])  # raises for a length and cadence that do not fit
    for trial in {study.ids[label]: study.trials[label] for label, _ in jobs}.values():
        trial.demand()
    groups, trials = [], Group(study, tuple(jobs)).trials
    for indices in group_by_program(trials):
        first = trials[indices[0]]
        lane = {i: jobs[i][1] if first.on_host else i for i in indices}  # there labels share the run of a seed
        each, most = list(dict.fromkeys(lane.values())), min(lanes, max_batch(first, len(indices)))
        for at in range(0, len(each), most):
            part = set(each[at : at + most])
            groups.append(Group(study, tuple(jobs[i] for i in indices if lane[i] in part)))
    return groups, len(wanted.jobs) - len(jobs)


def max_batch(trial: Trial, lanes: int) -> int:
    """How many of so many runs fit into the memory of the device: all, or the largest power of two that does."""
    free = memory.free()
    if lanes == 1 or free is None or trial.on_host:  # what the host steps is looked at when it is trained
        return lanes
    with jax.enable_x64(trial.float64):
        each = _STATES * memory.size_of(jax.eval_shape(trial.start, jax.random.key(0)))
    return lanes if each * lanes <= free else 2 ** max(0, (free // each).bit_length() - 1)


def run_trials(
    group: Group, root: Path, on_rows: OnRows = lambda rows, made=True: None, until: float = math.inf
) -> Result:
    """Run the trials of a group in this process. An error is the reason of a result without records.

    `on_rows` is called with the number of new log records of each run. What the host steps keeps its checkpoints below
    `root`, and raises `TimeLimitReached` before the time `until` of `time.monotonic()`.
    """
    started, trials, seeds = time.time(), group.trials, [seed for _, seed in group.jobs]
    try:
        if trials[0].on_host:  # labels with the same configuration share its runs
            folder = group.partial_run(Store(root))
            by_seed, made_by = resumable.train_resumable(trials[0], sorted(set(seeds)), folder, on_rows, until)
            return Result([by_seed[seed] for seed in seeds], made_by)
        records = run_batch(trials, seeds, on_rows)
        return Result(records, provenance(started, time.time() - started, len(seeds)))
    except (TimeLimitReached, DiskFull):
        raise
    except Exception as error:  # the other groups go on
        return Result([], {}, reason(error))


def reason(error: BaseException) -> str:
    """An error in one line, with its place in the code where it is not a ValueError."""
    at = traceback.extract_tb(error.__traceback__)[-1:] if not isinstance(error, ValueError) else []
    place = "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in at)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_REASON] + place


def schedule(
    groups: Sequence[Group],
    store: Store,
    on_work: OnRows = lambda work, made=True: None,
    run: Callable[..., Result] = run_trials,
    workers: int | None = None,
    until: float = math.inf,
) -> Iterator[Outcome]:
    """Run the groups, `workers` at once, and store each when it is done.

    On a CPU two programs run at once on two cores: compiling and running both release Python's lock. An accelerator
    runs one after the other. What is stored stays stored if this is interrupted.

    Args:
        groups: What `plan` returns.
        store: Where the runs go. This process alone writes there.
        on_work: Is called with iterations that were made, and with made=False, those that were there before.
        run: `run_trials`, or what does the same with a worker (`made.experiments.executors`).
        workers: Groups at once. Default: one for each core up to 4, and 1 on an accelerator.
        until: A time of `time.monotonic()`. After it no group starts, and those with checkpoints stop.
    """
    if workers is None:
        workers = min(4, os.cpu_count() or 1) if jax.default_backend() == "cpu" else 1
    pool = ThreadPoolExecutor(workers)
    running = {pool.submit(run_group, group, store, on_work, run, until): group for group in groups}
    try:
        for future in as_completed(running):
            with contextlib.suppress(TimeLimitReached):
                yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        if (
            run is run_trials and train_loop.terminating()
        ):  # threads stop with a checkpoint at the end of their interval
            wait(future for future, group in running.items() if group.trials[0].on_host and not future.cancelled())


def run_group(
    group: Group,
    store: Store,
    on_work: OnRows = lambda work, made=True: None,
    run: Callable[..., Result] = run_trials,
    until: float = math.inf,
) -> Outcome:
    """Run and store what nobody else holds of a group; `TimeLimitReached` after the time `until`.

    A job that was stored since the plan stays in the program as long as others are to be made, so that their numbers
    are those of the plan. It is not stored again.
    """
    if time.monotonic() >= until:
        raise TimeLimitReached(str(group))
    jobs, on_host = group.stored_as, group.trials[0].on_host
    with locked(store, jobs) as (mine, held):
        had = tuple(i for i in mine if store.has(*jobs[i]))
        missing = tuple(i for i in mine if i not in had)
        lanes = group._replace(jobs=tuple(group.jobs[i] for i in (missing if on_host or not missing else mine)))
        if stored := group.work - lanes.work:
            on_work(stored, made=False)
        if not missing:
            return Outcome(group, (), had, held)
        folder = lanes.partial_run(store)
        others = store.partial_runs(jobs[0][0].experiment, jobs[0][1]) if on_host else ()
        for other in (one for one in others if one != folder):
            what = f"{other} is a run of {jobs[0][0].label} on other seeds, not finished"
            print(f"made: {what}; it goes on where these are asked for.", file=sys.stderr, flush=True)
        each = lanes.trials[0].every * len(lanes.jobs)
        result = run(lanes, store.root, lambda rows, made=True: on_work(rows * each, made=made), until)
        if result.error:
            return Outcome(group, (), had, held, result.error)
        columns = group.study.experiment.columns
        for (job, run_id), trial, record in zip(lanes.stored_as, lanes.trials, result.records, strict=True):
            rows = {name: x for name, x in record.rows.items() if not columns or name in ("step", *columns)}
            arrays = {"step": record.rows["step"], **record.arrays} if record.arrays else None
            with contextlib.suppress(RunExists):  # stored since the plan
                store.write(job, run_id, to_dict(trial), rows, arrays, result.made_by)
        if on_host:
            resumable.clear_partial(folder)
        return Outcome(group, missing, had, held)
