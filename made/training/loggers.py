"""Where the rows of a run go: metrics.jsonl always, TensorBoard and W&B where they are asked for."""

import importlib
import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from made.core import safe_files
from made.core.plugins import install

Line = dict[str, Any]  # seed, update, frames, seconds, and every scalar
PLACE = ("seed", "update", "frames")  # what says where a line belongs; all else is measured


class Writer(Protocol):
    """Takes rows: a list with one line for each seed."""

    def write(self, lines: Sequence[Line]) -> None:
        """Take one row."""
        ...

    def sync(self) -> None:
        """See to it that what was taken outlasts the process."""
        ...

    def close(self) -> None:
        """No more rows come."""
        ...


def extra(name: str) -> Any:
    """The library behind an extra of that name; the sentence says how to install it."""
    library = {"tensorboard": "tensorboardX"}.get(name, name)
    try:
        return importlib.import_module(library)
    except ImportError:
        raise ValueError(f"--{name} needs {library}: {install(name)}, or leave --{name} out.") from None


class JSONL:
    """One JSON object a line, appended; what is not a number is null.

    A row is there whole or not at all: where the disk fills up in the middle of one, its beginning is taken back.
    """

    def __init__(self, path: Path):
        self._file = safe_files.opened(path, "a")  # it stays open as long as the run

    def write(self, lines: Sequence[Line]) -> None:
        finite = lambda x: None if isinstance(x, float) and not math.isfinite(x) else x  # noqa: E731
        plain = [{name: finite(x) for name, x in line.items()} for line in lines]
        left = memoryview("".join(json.dumps(line) + "\n" for line in plain).encode())
        before = os.fstat(self._file.fileno()).st_size
        try:
            while left:  # a nearly full disk takes a part of it first
                left = left[self._file.write(left) or 0 :]
        except OSError:
            os.ftruncate(self._file.fileno(), before)
            raise

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """One log a seed under tensorboard/; rows that a resumed run measures again replace those of before."""

    def __init__(self, folder: Path, seeds: Sequence[int], frames: int):
        log = extra("tensorboard").SummaryWriter
        self._logs = {s: log(str(folder / f"seed{s}"), purge_step=frames + 1) for s in seeds}

    def write(self, lines: Sequence[Line]) -> None:
        for line in lines:
            for name, value in _measured(line).items():
                self._logs[line["seed"]].add_scalar(name, value, line["frames"])

    def sync(self) -> None:
        for log in self._logs.values():
            log.flush()

    def close(self) -> None:
        for log in self._logs.values():
            log.close()


class WandB:
    """One W&B run for all seeds: each scalar under its name for the mean, and under seed<n>/ for each."""

    def __init__(self, project: str, name: str, folder: Path, settings: Mapping[str, Any]):
        held = folder / "wandb-id"  # so that a resumed run goes on with the same page
        if not held.exists():
            safe_files.write_atomic(held, secrets.token_hex(4))
        about = {"project": project, "name": name, "id": held.read_text(), "resume": "allow", "dir": str(folder)}
        self._run = extra("wandb").init(**about, config=dict(settings))

    def write(self, lines: Sequence[Line]) -> None:
        each = {f"seed{line['seed']}/{name}": x for line in lines for name, x in _measured(line).items()}
        self._run.log({**means(lines), **each}, step=lines[0]["frames"])

    def sync(self) -> None:
        pass

    def close(self) -> None:
        self._run.finish()


def _measured(line: Line) -> dict[str, float]:
    return {name: x for name, x in line.items() if name not in PLACE and math.isfinite(x)}


def means(lines: Sequence[Line]) -> dict[str, float]:
    """Each scalar's mean over the seeds that have it."""
    found: dict[str, list[float]] = {}
    for line in lines:
        for name, x in _measured(line).items():
            found.setdefault(name, []).append(x)
    return {name: sum(values) / len(values) for name, values in found.items()}
