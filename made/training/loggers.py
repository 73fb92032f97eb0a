"""Where log records go: metrics.jsonl always, TensorBoard and W&B on request, and the progress on stderr."""

import contextlib
import importlib
import json
import math
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from made.core import safe_files
from made.core.plugins import needs

Line = dict[str, Any]  # seed, update, frames, seconds, and every scalar
PLACE = ("seed", "update", "frames")  # the position of a line in the run; all else is measured
SECONDS_BETWEEN_LINES = 5.0
SHOWN = {  # scalar -> its name in the progress, in this order
    "return": "return",
    "eval_return": "return when evaluated",
    "intrinsic_return": "intrinsic return",
    "coverage": "states seen",
    "bonus": "bonus",
    "episodes": "episodes",
    "loss": "loss",
    "entropy": "entropy",
}


class Writer(Protocol):
    """Takes log records: lists with one line for each seed."""

    def write(self, lines: Sequence[Line]) -> None:
        """Take one log record."""

    def sync(self) -> None:
        """Flush what was taken, so that it outlasts the process."""

    def close(self) -> None:
        """Called at the end."""


def extra(name: str) -> Any:
    """The library behind an extra of that name."""
    library = {"tensorboard": "tensorboardX"}.get(name, name)
    with needs(f"--{name}", name, library):
        return importlib.import_module(library)


class JSONL:
    """One JSON object a line, appended; what is not a number is null.

    If the disk fills up in the middle of a log record, its beginning is removed.
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
    """One log a seed under tensorboard/; log records that a resumed run measures again replace the earlier ones."""

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
        held = folder / "wandb-id"  # a resumed run continues the same page
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


class Meter:
    """The progress of a command on stderr: a live table on a terminal, elsewhere a line every few seconds.

    Args:
        total: Units of work.
        unit: Their name.
        title: What is run.
        done: Units that were done before.
        seeds: Training runs this many seeds in parallel: the speed counts the units of each.
    """

    def __init__(self, total: int, unit: str, title: str = "", done: int = 0, seeds: int = 0):
        self.total, self.unit, self.title, self.seeds = max(total, 1), unit, title, seeds
        self.done, self.made = done, 0  # `made` counts the work that the speed is measured by
        self.metrics: dict[str, float] = {}
        self.span: dict[str, tuple[float, float]] = {}  # over the seeds
        self.started, self._printed = time.monotonic(), (-math.inf, done)
        self._lock, self._live = threading.Lock(), None

    def add(self, amount: int, made: bool = True) -> None:
        """Count work, from any thread; `made` is False if it was done before, or by another process."""
        with self._lock:
            self.done += amount
            self.made += amount if made else 0
            if self._live is not None:
                self._live.update(self.table())
            elif time.monotonic() - self._printed[0] > SECONDS_BETWEEN_LINES:
                self._print()

    def row(self, lines: Sequence[Line]) -> None:
        """A log record of training, one line a seed."""
        self.metrics |= means(lines)  # what this record lacks, such as an evaluation, stays as it was
        for name in SHOWN:
            if values := [line[name] for line in lines if line.get(name) == line.get(name) and name in line]:
                self.span[name] = min(values), max(values)
        self.add(lines[0]["frames"] - self.done)

    def speed(self) -> str:
        """Work a second so far."""
        return f"{self._per_second() * max(self.seeds, 1):,.0f} {self.unit}/s"

    def left(self) -> str:
        """The time left at the speed so far."""
        if not self.made:
            return "?"
        seconds = (self.total - self.done) / self._per_second()
        if seconds < 100:
            return f"{seconds:.0f} s"
        minutes = round(seconds / 60)
        return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"

    def _per_second(self) -> float:
        return self.made / max(time.monotonic() - self.started, 1e-9)

    def table(self):
        """The progress as a panel."""
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        seeds = f" x {self.seeds} seeds" if self.seeds else ""
        bar, (speed, _, unit) = ProgressBar(self.total, self.done, width=40), self.speed().partition(" ")
        table.add_row(self.unit, bar, f"{self.done:,} of {self.total:,}{seeds}")
        table.add_row(unit, speed, f"{self.left()} left")
        for name, words in SHOWN.items():
            if name in self.metrics:
                low, high = self.span.get(name, (self.metrics[name],) * 2)
                spread = f"{_short(low)} to {_short(high)} over the seeds" if self.seeds > 1 else ""
                table.add_row(words, _short(self.metrics[name]), spread)
        return Panel(table, title=self.title, expand=False)

    @contextlib.contextmanager
    def shown(self) -> Iterator[Self]:
        """Show the progress while the block runs."""
        self.started = time.monotonic()
        if not sys.stderr.isatty():
            yield self
            if self.done != self._printed[1]:
                self._print()
            return
        from rich.console import Console
        from rich.live import Live

        with Live(self.table(), console=Console(stderr=True), refresh_per_second=4) as self._live:
            yield self

    def _print(self) -> None:
        self._printed = time.monotonic(), self.done
        seeds = f" x {self.seeds}" if self.seeds else ""
        shown = [f"{self.done / self.total:4.0%}  {self.done:,} of {self.total:,} {self.unit}{seeds}", self.speed()]
        shown += [f"{words} {_short(self.metrics[name])}" for name, words in SHOWN.items() if name in self.metrics]
        print(", ".join([*shown, f"{self.left()} left"]), file=sys.stderr, flush=True)


def _short(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"
