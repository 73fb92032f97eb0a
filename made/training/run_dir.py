"""The folder of a run: run.json, metrics.jsonl, checkpoints/. One process at a time writes there."""

import contextlib
import fnmatch
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from made.core import safe_files
from made.core.config import from_dict
from made.core.trial import Trial
from made.training import checkpoint, checkpoint_file
from made.training.paths import make_dir

RUN, METRICS, CHECKPOINTS, LOCK = "run.json", "metrics.jsonl", "checkpoints", ".lock"


_HALF = f".{RUN}*.new"  # what a kill leaves of a first run.json


def read_run(folder: Path, configuration: Mapping[str, Any]) -> dict[str, Any] | None:
    """What run.json says of the run in a folder; None where none has begun.

    A folder that holds a run of another configuration, or something else, is refused.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, not a folder: give another one with --out.")
    if not (folder / RUN).exists():
        names = sorted(os.listdir(folder)) if folder.exists() else []
        others = [name for name in names if name != LOCK and not fnmatch.fnmatch(name, _HALF)]
        if others:
            some = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
            raise ValueError(f"{folder} holds {some} but no run of made train: give another folder with --out.")
        return None
    run = read(folder)
    require_same_config(run["configuration"], configuration, folder / RUN)
    return run


def read(folder: Path) -> dict[str, Any]:
    """run.json as it is; damaged ones and those of an older layout are refused."""
    path = folder / RUN
    try:
        run = json.loads(path.read_text("utf-8"))
        run |= {"configuration": dict(run["configuration"]), "sessions": list(run["sessions"])}
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: restore it, or give another folder with --out.") from error
    checkpoint_file.demand_layout(run, path)
    return run


def configured(folder: Path, allow: Sequence[str] = ()) -> tuple[Any, tuple[int, ...]]:
    """The run of a folder and its seeds, from the configuration in run.json. `allow` is that of `from_dict`."""
    fields = dict(read(folder)["configuration"])
    seeds = fields.pop("seeds", None)
    try:
        run = from_dict(fields, allow)
    except ValueError as error:
        raise ValueError(f"{folder / RUN}: {error}") from error
    if not isinstance(run, Trial) or not isinstance(seeds, list) or not all(type(seed) is int for seed in seeds):
        raise ValueError(f"{folder / RUN} is damaged: its configuration is no run with a list of seeds.")
    return run, tuple(seeds)


def require_same_config(found: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    """Refuse to resume a run of another configuration; the message lists the settings that differ.

    The number of iterations may differ: a longer run continues a shorter one.
    """
    wanted = {name: x for name, x in {**dict.fromkeys(found), **wanted}.items() if name != "iterations"}
    try:
        checkpoint_file.check(found, wanted, path)
    except ValueError as error:
        raise ValueError(f"{error} Give another folder with --out, or the settings of that run.") from None


@contextlib.contextmanager
def lock_run_dir(folder: Path) -> Iterator[None]:
    """Keep other processes out while the block runs. The lock goes with the process, however that ends.

    Where the disk fills up meanwhile, a sentence says what is safe and how to go on.
    """
    with safe_files.disk_full_message(lambda: _full(folder)), _locked(folder):
        yield


def _full(folder: Path) -> str:
    kept = checkpoint.files(folder / CHECKPOINTS)
    safe = f"its last checkpoint, {kept[-1]}, is whole" if kept else "it had no checkpoint yet"
    return (
        f"The disk is full: the run in {folder} stopped, and {safe}. Free some room and give the same command, which "
        "goes on from there."
    )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The operating system holds the lock, not the file: a process that is killed leaves none behind."""
    make_dir(folder, "--out")
    with safe_files.opened(folder / LOCK, "a") as file:
        try:
            import fcntl
        except ImportError:  # not a POSIX system: nobody is kept out
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"Another process is training in {folder}: wait for it, or use another --out.") from None
        yield


def write_run(folder: Path, run: Mapping[str, Any]) -> None:
    """Write run.json, whole or not at all."""
    safe_files.write_atomic(folder / RUN, json.dumps({"format": checkpoint_file.RUN_FORMAT, **run}, indent=1) + "\n")


def truncate_metrics(path: Path, update: int) -> int:
    """Drop the rows after that update, which will be measured again, and a last line that a kill cut short.

    Returns how many rows stay.
    """
    lines = path.read_text("utf-8", errors="replace").split("\n") if path.exists() else []
    lines = lines[: -1 if lines and not lines[-1] else None]
    kept = [line for line in lines if _update_of(line) <= update]
    if len(kept) < len(lines):
        safe_files.write_atomic(path, "".join(line + "\n" for line in kept))
    return len(kept)


def warn_of_lost_rows(path: Path, kept: Path, update: int) -> None:
    """Warn where rows are missing that were written before the checkpoint `kept`, whose state is after that update."""
    lines = path.read_text("utf-8", errors="replace").splitlines() if path.exists() else []
    last = max(map(_update_of, lines), default=0)
    if last >= update:
        return
    what = f"ends at update {last:,.0f}" if lines else "is empty" if path.exists() else "is missing"
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


def set_aside(path: Path) -> None:
    """Keep a file under NAME.damaged, so that another can take its place."""
    if path.exists():
        path.replace(path.with_name(f"{path.name}.damaged"))


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left half written."""
    for path in (*(folder / CHECKPOINTS).glob(".*.safetensors.*"), *folder.glob(".*.new")):
        path.unlink(missing_ok=True)
