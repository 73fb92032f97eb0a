"""Runs that the host steps, for `made run`: trained in a folder of the store, with checkpoints, until they are stored.

A session that was killed or ran out of time loses what came after its last checkpoint; the next one resumes there.
After a device error training resumes at once.
"""

import contextlib
import gc
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax.errors import JaxRuntimeError

from made.core.trial import Record, TimeLimitReached, Trial
from made.experiments.store import table
from made.experiments.store.store import UNREADABLE, Store
from made.training import checkpoint, run_dir, train_loop, video
from made.training.backends import TrainPlan, control_tasks
from made.training.loggers import JSONL
from made.training.paths import remove_empty
from made.training.provenance import over_pieces, provenance

SECONDS = 150.0  # between two checkpoints: one of three seeds from pixels is 9 GB
SELDOM = 300.0  # where a session knows its end and saves there: for a device that fails
EVALUATION = "eval_return"  # what each log record ends with
PLACE = ("seed", "update", "seconds")  # what says where a record belongs; all else in it was measured


class CompletedRun(NamedTuple):
    """A finished run: what each seed recorded, and where, when and how long it was made, over all sessions."""

    records: dict[int, Record]
    made_by: dict[str, Any]


def train_resumable(
    trial: Trial, seeds: Sequence[int], out: Path, on_rows: Callable[..., None] | None = None, until: float = math.inf
) -> CompletedRun:
    """Train one configuration on some seeds to the end, in a folder, resuming what is there.

    Every log record ends with an evaluation. `on_rows` is called with the number of new records; those of earlier
    sessions come first, with made=False. `clear_partial` removes the folder once the records are stored. A session that
    would end after `until`, of `time.monotonic()`, saves a checkpoint and raises `TimeLimitReached`. If the device
    fails after a new checkpoint, training resumes from it; after two failures without one, the error is raised.
    """
    on_progress = _ProgressOnce(on_rows)
    while True:
        before = _saved(out)
        try:
            return _session(trial, seeds, out, on_progress, until)
        except JaxRuntimeError as error:
            if _saved(out) <= before:
                raise
            why = str(error).partition("\n")[0]
        at = f"{_saved(out):,} of {trial.iterations:,} updates"
        if time.monotonic() >= until:
            raise TimeLimitReached(at)
        print(f"made: the device failed ({why}): going on from the checkpoint at {at}.", file=sys.stderr, flush=True)
        gc.collect()  # what the error held of the device's memory


class _ProgressOnce:
    """Reports each log record once, however often it is made."""

    def __init__(self, on_rows: Callable[..., None] | None):
        self._report, self._reported = on_rows or (lambda rows, made: None), 0

    def __call__(self, rows: int, made: bool = True) -> None:
        """So many are there now; those that are new were made by this session, or before it."""
        if rows > self._reported:
            self._report(rows - self._reported, made=made)
            self._reported = rows


def _saved(out: Path) -> int:
    """The update of the newest checkpoint; -1 where there is none."""
    files = checkpoint.files(out / run_dir.CHECKPOINTS)
    return int(files[-1].stem) if files else -1


def _session(trial: Trial, seeds: Sequence[int], out: Path, on_progress: _ProgressOnce, until: float) -> CompletedRun:
    """From the last checkpoint to the end, or to where the time is up."""
    plan = TrainPlan(trial, tuple(seeds), trial.every, trial.iterations, trial.episodes)  # type: ignore[arg-type, attr-defined]
    plan = plan._replace(checkpoint_seconds=_between(until), keep=1, keep_end=False, until=until)
    with run_dir.lock_run_dir(out):
        held = run_dir.read_run(out, plan.configuration)
        with contextlib.closing(control_tasks.ControlBackend(plan)) as backend:
            state = train_loop.restore_or_init(plan, backend, out)
            train_loop.record_session(plan, out, held, "made run", state.update)
            on_progress(state.update // trial.every, made=False)
            writer = JSONL(out / run_dir.METRICS)
            try:
                report = lambda lines: on_progress(lines[0]["update"] // trial.every)  # noqa: E731
                state = train_loop.train(plan, backend, state, out, [writer], report)
            finally:
                writer.close()
        dreams = video.kept(plan, state.state, state.update)
        lines = [json.loads(line) for line in (out / run_dir.METRICS).read_text("utf-8").splitlines()]
        sessions = json.loads((out / run_dir.RUN).read_text("utf-8"))["sessions"]
    rows = {seed: columns(line for line in lines if line["seed"] == seed) for seed in seeds}
    started = datetime.fromisoformat(sessions[0]["started"]).timestamp()
    made_by = {**provenance(started, state.seconds, len(seeds)), **over_pieces(sessions)}
    return CompletedRun({seed: Record(rows[seed], dreams.get(seed, {})) for seed in seeds}, made_by)


def _between(until: float) -> float:
    """Seconds between two checkpoints; infinite where `MADE_CHECKPOINT_MINUTES` is 0: then only where time is up."""
    given = os.environ.get("MADE_CHECKPOINT_MINUTES", "")
    if not given:
        return SECONDS if until == math.inf else SELDOM
    try:
        minutes = float(given)
    except ValueError:
        minutes = math.nan
    if not minutes >= 0:
        raise ValueError(f"MADE_CHECKPOINT_MINUTES is {given!r}: set it to minutes, to 0 for none, or leave it unset.")
    return 60 * minutes or math.inf


def clear_partial(out: Path) -> None:
    """Remove the folder of a run that is stored, and those above it that are empty then."""
    shutil.rmtree(out, ignore_errors=True)
    remove_empty(out.parent)


def columns(lines: Iterable[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """The log records of one seed as columns; NaN where nothing was measured. "step" counts iterations."""
    mine = list(lines)
    names = dict.fromkeys(name for line in mine for name in line if name not in PLACE)
    number = lambda x: np.nan if x is None else x  # noqa: E731
    found = {name: np.array([number(line.get(name)) for line in mine], np.float64) for name in names}
    return {"step": np.array([line["update"] for line in mine]), **found}


def partial_runs(store: Store, experiment: str, ids: Mapping[str, str], descriptions: Mapping[str, Any]) -> table.Table:
    """Runs that are not complete: of each label the one that got furthest, with the records that all its seeds have.

    They can be plotted, and are left out of verdicts. `run` of a record also has `begun`: the steps that are there and
    those that are to be made. Nothing is written, so another process may be training them.
    """
    records: list[table.Record] = []
    for label, run_id in ids.items():
        folders = store.partial_runs(experiment, run_id)
        found = [one for folder in folders if (one := _read(folder, label, descriptions[label]))]
        records += max(found, key=lambda one: (one[0].run["begun"]["steps"], len(one)), default=[])
    return table.Table(records)


def progress_text(run: Mapping[str, Any]) -> str:
    """The steps that a partial run has.

    >>> progress_text({"begun": {"steps": 60_000, "of": 100_000}})
    '60,000 of 100,000'
    """
    return f"{run['begun']['steps']:,} of {run['begun']['of']:,}"


def _read(folder: Path, label: str, description: Mapping[str, Any]) -> list[table.Record]:
    """A record a seed; none where the folder holds no log record of all seeds, or cannot be read."""
    try:
        run = json.loads((folder / run_dir.RUN).read_text("utf-8"))
        by_seed = _by_seed((folder / run_dir.METRICS).read_text("utf-8", errors="replace"))
        seeds = sorted({int(seed) for seed in run["configuration"]["seeds"]})
        updates = sorted(set.intersection(*(set(by_seed.get(seed, ())) for seed in seeds)))
        if not updates:
            return []
        rows = {seed: [by_seed[seed][update] for update in updates] for seed in seeds}
        first, last = run["sessions"][0], run["sessions"][-1]
        plain = {name: x for name, x in last.items() if isinstance(x, str | int | float | None)}
        plain.pop("from_update", None)
        made_by = {**plain, **over_pieces(run["sessions"]), "lanes": len(seeds)}
        made_by |= {"wall_s": float(rows[seeds[0]][-1]["seconds"])}
        made_by |= {"started": str(first["started"])} if "started" in first else {}
        about = {
            "description": description,
            "provenance": made_by,
            "begun": {"steps": int(updates[-1] * run["frames_per_update"]), "of": int(run["steps"])},
        }
        return [table.Record(label, seed, table.checked(columns(rows[seed])), run=about) for seed in seeds]
    except UNREADABLE:
        return []


def _by_seed(text: str) -> dict[int, dict[int, Mapping[str, Any]]]:
    """seed -> update -> log record, of those that end with an evaluation.

    A last line that is still being written, or that a kill cut short, is none.
    """
    found: dict[int, dict[int, Mapping[str, Any]]] = {}
    for line in map(json.loads, text.split("\n")[:-1]):
        if (value := line.get(EVALUATION)) is not None and math.isfinite(value):
            found.setdefault(line["seed"], {})[line["update"]] = line
    return found
