"""The folder of a run: run.json, metrics.jsonl, checkpoints/. One process at a time writes there."""

import contextlib
import fnmatch
import json
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from made.core import safe_files
from made.core.config import from_dict
from made.core.trial import Trial
from made.training import checkpoint, checkpoint_file
from made.training.backends import TrainPlan
from made.training.paths import make_dir
from made.training.provenance import provenance

RUN, METRICS, CHECKPOINTS, LOCK = "run.json", "metrics.jsonl", "checkpoints", ".lock"
FORMAT = 2  # of run.json: 2 has the whole configuration and the options


def read_run(folder: Path, configuration: Mapping[str, Any]) -> dict[str, Any] | None:
    """The run.json of a folder; None if there is no run yet.

    A run of another configuration, or a folder that holds something else, is an error.
    """
    if not (folder / RUN).exists():
        names = sorted(os.listdir(folder)) if folder.exists() else []
        # A kill can leave the lock and a part of the first run.json.
        if others := [name for name in names if name != LOCK and not fnmatch.fnmatch(name, f".{RUN}*.new")]:
            some = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
            raise ValueError(f"{folder} holds {some} but no run of made train: give another folder with --out.")
        return None
    run = read(folder)
    require_same_config(run["configuration"], configuration, folder / RUN)
    return run


def read(folder: Path) -> dict[str, Any]:
    """run.json; an error if it is damaged or has another layout."""
    path = folder / RUN
    try:
        run = json.loads(path.read_text("utf-8"))
        run |= {"configuration": dict(run["configuration"]), "sessions": list(run["sessions"])}
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: restore it, or give another folder with --out.") from error
    require_layout(run, path)
    return run


def require_layout(run: Mapping[str, Any], path: Path) -> None:
    """Raise an error for a run.json that was written in another layout."""
    if run.get("format") != FORMAT:
        commit = next((str(x["commit"]) for x in run["sessions"] if isinstance(x, dict) and x.get("commit")), "unknown")
        raise ValueError(
            f"{path} has layout {run.get('format')} and this version of made reads layout {FORMAT}: train again "
            f"in another folder, or use the version it was made with, commit {commit}."
        )


def configured(folder: Path, allow: Sequence[str] = ()) -> tuple[Any, tuple[int, ...], dict[str, Any]]:
    """The configuration of a folder's run, its seeds, and run.json. `allow` is that of `from_dict`."""
    content = read(folder)
    fields = dict(content["configuration"])
    seeds = fields.pop("seeds", None)
    try:
        run = from_dict(fields, allow)
    except ValueError as error:
        raise ValueError(f"{folder / RUN}: {error}") from error
    if not isinstance(run, Trial) or not isinstance(seeds, list) or not all(type(seed) is int for seed in seeds):
        raise ValueError(f"{folder / RUN} is damaged: its configuration is no run with a list of seeds.")
    return run, tuple(seeds), content


def require_same_config(found: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    """Raise an error that lists the settings in which two runs differ.

    The number of iterations may differ: a longer run continues a shorter one.
    """
    wanted = {name: x for name, x in {**dict.fromkeys(found), **wanted}.items() if name != "iterations"}
    try:
        checkpoint_file.check(found, wanted, path)
    except ValueError as error:
        raise ValueError(f"{error} Give another folder with --out, or the settings of that run.") from None


@contextlib.contextmanager
def lock_run_dir(folder: Path) -> Iterator[None]:
    """Keep other processes out while the block runs. The operating system releases the lock of a killed process.

    If the disk fills up, the error names the last checkpoint and says how to resume.
    """

    def disk_full() -> str:
        kept = checkpoint.files(folder / CHECKPOINTS)
        safe = f"its last checkpoint, {kept[-1]}, is whole" if kept else "it had no checkpoint yet"
        return (
            f"The disk is full: the run in {folder} stopped, and {safe}. Free some room and give the same command, "
            "which goes on from there."
        )

    with safe_files.disk_full_message(disk_full):
        make_dir(folder, "--out")
        with safe_files.opened(folder / LOCK, "a") as file:
            with contextlib.suppress(ImportError):  # not a POSIX system: there is no lock
                import fcntl

                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise ValueError(
                        f"Another process is training in {folder}: wait for it, or use another --out."
                    ) from None
            yield


def record_session(
    plan: TrainPlan,
    out: Path,
    run: Mapping[str, Any] | None,
    command: str,
    update: int,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Write run.json: the configuration, and the code and machine of each session that trains it.

    `run` is what run.json held before, `command` is for people, and `options` are those of `made train`, None for a
    part of `made run`.
    """
    about = provenance(time.time(), 0.0, len(plan.seeds))
    del about["wall_s"]  # metrics.jsonl has the time of every log record
    content = {
        "command": command,
        "options": options,
        "steps": plan.run.iterations * plan.frames_per_update,
        "frames_per_update": plan.frames_per_update,
        "configuration": plan.configuration,
        "sessions": [*(run["sessions"] if run else []), {"from_update": update, **about}],
    }
    write_run(out, content)


def write_run(folder: Path, run: Mapping[str, Any]) -> None:
    """Write run.json, complete or not at all."""
    safe_files.write_atomic(folder / RUN, json.dumps({"format": FORMAT, **run}, indent=1) + "\n")


def truncate_metrics(path: Path, update: int) -> list[str]:
    """Drop the lines after that update, which will be measured again, and a last line that a kill cut short.

    Returns the lines that stay.
    """
    lines = path.read_text("utf-8", errors="replace").split("\n") if path.exists() else []
    lines = lines[: -1 if lines and not lines[-1] else None]
    kept = [line for line in lines if _update_of(line) <= update]
    if len(kept) < len(lines):
        safe_files.write_atomic(path, "".join(line + "\n" for line in kept))
    return kept


def resume_metrics(path: Path, kept: Path, update: int) -> None:
    """Truncate the metrics to a checkpoint `kept` after that update; warn if lines before it are missing."""
    there, lines = path.exists(), truncate_metrics(path, update)
    last = max(map(_update_of, lines), default=0)
    if last >= update:
        return
    what = f"ends at update {last:,.0f}" if lines else "is empty" if there else "is missing"
    warnings.warn(
        f"{path} {what}, but the checkpoint {kept} is at update {update:,}: the rows between them are lost, and the "
        "run goes on without them.",
        stacklevel=3,
    )


def _update_of(line: str) -> float:
    try:
        return float(json.loads(line)["update"])
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return float("inf")


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left half written."""
    for path in (*(folder / CHECKPOINTS).glob(".*.safetensors.*"), *folder.glob(".*.new")):
        path.unlink(missing_ok=True)
