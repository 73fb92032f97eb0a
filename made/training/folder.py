"""The folder of a run: run.json, metrics.jsonl, checkpoints/. One process at a time writes there."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from made import saving

RUN, METRICS, CHECKPOINTS, LOCK = "run.json", "metrics.jsonl", "checkpoints", ".lock"


def held(folder: Path, configuration: Mapping[str, Any]) -> dict[str, Any] | None:
    """What run.json says of the run in a folder; None where none has begun.

    A folder that holds a run of another configuration, or something else, is refused.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, not a folder: give another one with --out.")
    if not (folder / RUN).exists():
        others = [name for name in sorted(os.listdir(folder)) if name != LOCK] if folder.exists() else []
        if others:
            some = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
            raise ValueError(f"{folder} holds {some} but no run of made train: give another folder with --out.")
        return None
    try:
        read = json.loads((folder / RUN).read_text("utf-8"))
        run = {name: read[name] for name in ("configuration", "sessions")}
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(f"{folder / RUN} is damaged: restore it, or give another folder with --out.") from error
    demand_same(run["configuration"], configuration, folder / RUN)
    return run


def demand_same(found: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    """Refuse to go on with a run of another configuration; the sentence names the first setting that differs."""
    try:
        saving.check(found, wanted, path)
    except ValueError as error:
        raise ValueError(f"{error} Give another folder with --out, or the settings of that run.") from None


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep other processes out while the block runs. The lock goes with the process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "w") as file:
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
    replace(folder / RUN, json.dumps(run, indent=1) + "\n")


def replace(path: Path, text: str) -> None:
    """Put a text in the place of a file, so that a kill leaves the old one or the new one."""
    temporary = path.with_name(f".{path.name}.new")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def cut_back(path: Path, update: int) -> int:
    """Drop the rows after that update, which will be measured again, and a last line that a kill cut short.

    Returns how many rows stay.
    """
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    kept = [line for line in lines if _update_of(line) <= update]
    if len(kept) < len(lines):
        replace(path, "".join(line + "\n" for line in kept))
    return len(kept)


def _update_of(line: str) -> float:
    try:
        return json.loads(line)["update"]
    except (ValueError, LookupError, TypeError):
        return float("inf")


def tidy(folder: Path) -> None:
    """Remove what a killed process left half written."""
    for path in (folder / CHECKPOINTS).glob(".*.safetensors.*"):
        path.unlink(missing_ok=True)
