"""The progress of a command on stderr: a live table on a terminal, a line every few seconds elsewhere."""

import contextlib
import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Self

from made.training.loggers import Line, means

SECONDS_BETWEEN_LINES = 5.0
SHOWN = {  # scalar -> how it is called, in the order shown
    "return": "return",
    "eval_return": "return when evaluated",
    "intrinsic_return": "intrinsic return",
    "coverage": "states seen",
    "bonus": "bonus",
    "episodes": "episodes",
    "loss": "loss",
    "entropy": "entropy",
}


class Meter:
    """Counts work towards a total, from any thread.

    Args:
        total: Units of work.
        unit: Their name.
        title: What is run.
        done: Units that were done before.
        seeds: Training runs this many seeds in parallel: the speed counts the units of each.
    """

    def __init__(self, total: int, unit: str, title: str = "", done: int = 0, seeds: int = 0):
        self.total, self.unit, self.title, self.seeds = max(total, 1), unit, title, seeds
        self.done, self.made = done, 0  # `made` counts what says how fast it goes
        self.metrics: dict[str, float] = {}
        self.span: dict[str, tuple[float, float]] = {}  # over the seeds
        self.started, self._printed = time.monotonic(), (-math.inf, done)
        self._lock, self._live = threading.Lock(), None

    def add(self, amount: int, made: bool = True) -> None:
        """More work is done; `made` is False where it was done before, or by another process."""
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
        return f"{self._per_second():,.0f} {self.unit}/s"

    def left(self) -> str:
        """The time left at the speed so far."""
        return clock((self.total - self.done) * max(self.seeds, 1) / self._per_second()) if self.made else "?"

    def line(self) -> str:
        """All of it in one line."""
        seeds = f" x {self.seeds}" if self.seeds else ""
        shown = [f"{self.done / self.total:4.0%}  {self.done:,} of {self.total:,} {self.unit}{seeds}", self.speed()]
        shown += [f"{words} {short(self.metrics[name])}" for name, words in SHOWN.items() if name in self.metrics]
        return ", ".join([*shown, f"{self.left()} left"])

    def table(self):
        """All of it as a panel."""
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        seeds = f" x {self.seeds} seeds" if self.seeds else ""
        bar = ProgressBar(self.total, self.done, width=40)
        table.add_row(self.unit, bar, f"{self.done:,} of {self.total:,}{seeds}")
        table.add_row(f"{self.unit}/s", f"{self._per_second():,.0f}", f"{self.left()} left")
        for name, words in SHOWN.items():
            if name in self.metrics:
                low, high = self.span.get(name, (self.metrics[name],) * 2)
                spread = f"{short(low)} to {short(high)} over the seeds" if self.seeds > 1 else ""
                table.add_row(words, short(self.metrics[name]), spread)
        return Panel(table, title=self.title, expand=False)

    @contextlib.contextmanager
    def shown(self) -> Iterator[Self]:
        """Keep a live table on the terminal while the block runs. Without a terminal, print lines."""
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
        print(self.line(), file=sys.stderr, flush=True)

    def _per_second(self) -> float:
        return self.made * max(self.seeds, 1) / max(time.monotonic() - self.started, 1e-9)


def short(x: float) -> str:
    """A number with as many digits as say something.

    >>> short(0.01234), short(1234567.0), short(12.0)
    ('0.0123', '1,234,567', '12')
    """
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"


def clock(seconds: float) -> str:
    """A time for people.

    >>> clock(42), clock(3700)
    ('42 s', '1 h 2 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
