"""A trial that the host steps, for `made run`: trained in a folder with checkpoints until it can be stored.

A piece that was killed or ran out of time loses what came after its last checkpoint; the next one goes on from there.
Where the device fails, the next one is begun at once.
"""

import contextlib
import gc
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from jax.errors import JaxRuntimeError

from made.core.trial import Record, TimeLimitReached, Trial
from made.experiments.store.partial_runs import columns
from made.training import checkpoint, run_dir, train_loop, video
from made.training.backends import TrainPlan, control_tasks
from made.training.loggers import JSONL
from made.training.provenance import over_pieces, provenance

SECONDS = 150.0  # between two checkpoints: one of three seeds from pixels is 9 GB
SELDOM = 300.0  # where a piece knows its end and saves there: for a device that fails


class CompletedRun(NamedTuple):
    """A finished run: what each seed recorded, and where, when and how long it was made, over all pieces."""

    records: dict[int, Record]
    made_by: dict[str, Any]


def train_resumable(
    trial: Trial,
    seeds: Sequence[int],
    out: Path,
    on_rows: Callable[..., None] | None = None,
    until: float = math.inf,
) -> CompletedRun:
    """Train one configuration on some seeds to the end, in a folder, going on with what is there.

    Every log record ends with an evaluation. `on_rows` is called with the number of new records; those of earlier
    sessions come first, with made=False. `clear_partial` removes the folder once the records are stored. A session that
    would end after `until`, of `time.monotonic()`, saves a checkpoint and raises `TimeLimitReached`. If the device
    fails after a new checkpoint, training resumes from it; after two failures without one, the error is raised.
    """
    on_progress = _ProgressOnce(on_rows)
    while True:
        before = _saved(out)
        try:
            return _piece(trial, seeds, out, on_progress, until)
        except JaxRuntimeError as error:
            if _saved(out) <= before:
                raise
            said = str(error).partition("\n")[0]
        at = f"{_saved(out):,} of {trial.iterations:,} updates"
        if time.monotonic() >= until:
            raise TimeLimitReached(at)
        print(f"made: the device failed ({said}): going on from the checkpoint at {at}.", file=sys.stderr, flush=True)
        gc.collect()  # what the error held of the device's memory


class _ProgressOnce:
    """Tells of each row once, however often it is made."""

    def __init__(self, on_rows: Callable[..., None] | None):
        self._tell, self._told = on_rows or (lambda rows, made: None), 0

    def __call__(self, rows: int, made: bool = True) -> None:
        """So many are there now; those that are new were made by this piece, or before it."""
        if rows > self._told:
            self._tell(rows - self._told, made=made)
            self._told = rows


def _saved(out: Path) -> int:
    """The update of the newest checkpoint; -1 where there is none."""
    files = checkpoint.files(out / run_dir.CHECKPOINTS)
    return int(files[-1].stem) if files else -1


def _piece(trial: Trial, seeds: Sequence[int], out: Path, on_progress: _ProgressOnce, until: float) -> CompletedRun:
    """From the last checkpoint to the end, or to where the time is up."""
    wanted = TrainPlan(trial, tuple(seeds), trial.every, trial.iterations, trial.episodes)  # type: ignore[arg-type, attr-defined]
    wanted = wanted._replace(checkpoint_seconds=_between(until), keep=1, keep_end=False, until=until)
    with run_dir.lock_run_dir(out):
        held = run_dir.read_run(out, wanted.configuration)
        with contextlib.closing(control_tasks.prepare(wanted)) as backend:
            stand = train_loop.restore_or_init(wanted, backend, out)
            train_loop.record_session(wanted, out, held, "made run", stand.update)
            on_progress(stand.update // trial.every, made=False)
            writer = JSONL(out / run_dir.METRICS)
            try:
                told = lambda lines: on_progress(lines[0]["update"] // trial.every)  # noqa: E731
                stand = train_loop.train(wanted, backend, stand, out, [writer], told)
            finally:
                writer.close()
        dreamt = video.kept(wanted, stand.state, stand.update)
        lines = [json.loads(line) for line in (out / run_dir.METRICS).read_text("utf-8").splitlines()]
        sessions = json.loads((out / run_dir.RUN).read_text("utf-8"))["sessions"]
    records = {seed: record(lines, seed)._replace(arrays=dreamt.get(seed, {})) for seed in seeds}
    return CompletedRun(records, _made_by(sessions, stand.seconds, len(seeds)))


def _between(until: float) -> float:
    """Seconds between two checkpoints; infinite where `MADE_CHECKPOINT_MINUTES` is 0: then only where time is up."""
    asked = os.environ.get("MADE_CHECKPOINT_MINUTES", "")
    if not asked:
        return SECONDS if until == math.inf else SELDOM
    try:
        minutes = float(asked)
    except ValueError:
        minutes = math.nan
    if not minutes >= 0:
        raise ValueError(f"MADE_CHECKPOINT_MINUTES is {asked!r}: set it to minutes, to 0 for none, or leave it unset.")
    return 60 * minutes or math.inf


def record(lines: Sequence[dict[str, Any]], seed: int) -> Record:
    """The rows of one seed of metrics.jsonl."""
    return Record(columns(line for line in lines if line["seed"] == seed), {})


def _made_by(sessions: Sequence[dict[str, Any]], seconds: float, lanes: int) -> dict[str, Any]:
    """Provenance over all pieces: the first start, the time of training, every commit and device that took part."""
    started = datetime.fromisoformat(sessions[0]["started"]).timestamp()
    return {**provenance(started, seconds, lanes), **over_pieces(sessions)}


def clear_partial(out: Path) -> None:
    """Remove the folder of a run that is stored, and those above it that are empty then."""
    shutil.rmtree(out, ignore_errors=True)
    for above in (out.parent, out.parent.parent):
        try:
            above.rmdir()
        except OSError:  # others are at work there
            return
