"""Runs that the host steps, for `made run`: trained in a folder of the store, with checkpoints, until they are stored.

A session that was killed or ran out of time loses what came after its last checkpoint; the next one resumes there.
After a device error training resumes at once.
"""

import gc
import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from jax.errors import JaxRuntimeError

from made.core.trial import Record, TimeLimitReached, Trial
from made.experiments.store import Store, table
from made.experiments.store.files import UNREADABLE
from made.training import checkpoint, run_dir, train_run, video
from made.training.backends import TrainPlan
from made.training.paths import remove_empty
from made.training.provenance import over_pieces, provenance

SECONDS = 150.0  # between two checkpoints: one of three seeds from pixels is 9 GB
SELDOM = 300.0  # where a session knows its end and saves there: for a device that fails
EVALUATION = "eval_return"  # what each log record ends with
PLACE = ("seed", "update", "seconds")  # what says where a record belongs; all else in it was measured


def train_resumable(
    trial: Trial,
    seeds: Sequence[int],
    out: Path,
    on_rows: Callable[..., None] = lambda rows, made: None,
    until: float = math.inf,
) -> tuple[dict[int, Record], dict[str, Any]]:
    """Train one configuration on some seeds to the end, in a folder, resuming what is there.

    Returns what each seed recorded, and the provenance over all sessions. Every log record ends with an evaluation.
    `on_rows` is called with the number of new records, once for each however often it is made; those of earlier
    sessions come first, with made=False. `clear_partial` removes the folder once the records are stored. A session that
    would end after `until`, of `time.monotonic()`, saves a checkpoint and raises `TimeLimitReached`. If the device
    fails after a new checkpoint, training resumes from it; after two failures without one, the error is raised.
    """
    reported = 0

    def on_progress(rows: int, made: bool = True) -> None:
        nonlocal reported
        if rows > reported:
            on_rows(rows - reported, made=made)
            reported = rows

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


def _saved(out: Path) -> int:
    """The update of the newest checkpoint; -1 where there is none."""
    files = checkpoint.files(out / run_dir.CHECKPOINTS)
    return int(files[-1].stem) if files else -1


def _session(trial: Trial, seeds: Sequence[int], out: Path, on_progress: Callable[..., None], until: float):
    """From the last checkpoint to the end, or to where the time is up."""
    plan = TrainPlan(trial, tuple(seeds), trial.every, trial.iterations, trial.episodes)  # type: ignore[arg-type, attr-defined]
    seconds = SECONDS if until == math.inf else SELDOM
    plan = plan._replace(checkpoint_seconds=seconds, keep=1, keep_end=False, until=until)
    on_progress(max(_saved(out), 0) // trial.every, made=False)
    report = lambda lines: on_progress(lines[0]["update"] // trial.every)  # noqa: E731
    state = train_run.run_plan(plan, out, 1, train_run.Session("made run", progress=False, on_lines=report))
    dreams = video.kept(plan, state.state, state.update)
    lines = [json.loads(line) for line in (out / run_dir.METRICS).read_text("utf-8").splitlines()]
    sessions = run_dir.read(out)["sessions"]
    rows = {seed: columns([line for line in lines if line["seed"] == seed]) for seed in seeds}
    started = datetime.fromisoformat(sessions[0]["started"]).timestamp()
    made_by = {**provenance(started, state.seconds, len(seeds)), **over_pieces(sessions)}
    return {seed: Record(rows[seed], dreams.get(seed, {})) for seed in seeds}, made_by


def clear_partial(out: Path) -> None:
    """Remove the folder of a run that is stored, and those above it that are empty then."""
    shutil.rmtree(out, ignore_errors=True)
    remove_empty(out.parent)


def columns(lines: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """The log records of one seed as columns; NaN where nothing was measured. "step" counts iterations."""
    names = dict.fromkeys(name for line in lines for name in line if name not in PLACE)
    found = {name: np.array([line.get(name) for line in lines], np.float64) for name in names}
    return {"step": np.array([line["update"] for line in lines]), **found}


def partial_runs(store: Store, experiment: str, ids: Mapping[str, str], descriptions: Mapping[str, Any]) -> table.Table:
    """Runs that are not complete: of each label the one that got furthest, with the records that all its seeds have.

    They can be plotted, and are left out of verdicts. `run` of a record also has `begun`: the steps that are there and
    those that are to be made. Nothing is written, so another process may be training them.
    """
    records: list[table.Record] = []
    for label, run_id in ids.items():
        found = [_read(folder, label, descriptions[label]) for folder in store.partial_runs(experiment, run_id)]
        records += max(filter(None, found), key=lambda one: (one[0].run["begun"]["steps"], len(one)), default=[])
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
        by_seed = {int(seed): {} for seed in sorted(run["configuration"]["seeds"])}
        # A last line that is still being written, or that a kill cut short, has no end.
        for line in (folder / run_dir.METRICS).read_text("utf-8", errors="replace").split("\n")[:-1]:
            record = json.loads(line)
            if (value := record.get(EVALUATION)) is not None and math.isfinite(value):
                by_seed[record["seed"]][record["update"]] = record
        updates = sorted(set.intersection(*map(set, by_seed.values())))
        if not updates:
            return []
        first, last = run["sessions"][0], run["sessions"][-1]
        plain = {n: x for n, x in last.items() if isinstance(x, str | int | float | None) and n != "from_update"}
        made_by = {**plain, **over_pieces(run["sessions"]), "lanes": len(by_seed)}
        made_by["wall_s"] = max(float(one[updates[-1]]["seconds"]) for one in by_seed.values())
        made_by |= {"started": str(first["started"])} if "started" in first else {}
        begun = {"steps": int(updates[-1] * run["frames_per_update"]), "of": int(run["steps"])}
        about = {"description": description, "provenance": made_by, "begun": begun}
        rows = {seed: table.checked(columns([one[k] for k in updates])) for seed, one in by_seed.items()}
        return [table.Record(label, seed, row, run=about) for seed, row in rows.items()]
    except UNREADABLE:
        return []
