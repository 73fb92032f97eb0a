"""What is seen of a run while it goes on: a panel on a terminal, a line every few seconds elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from made.training.loggers import Line, means

SECONDS_BETWEEN_LINES = 5.0


class Meter:
    """Counts work done, from any thread, and says how fast it goes."""

    def __init__(self, total: int, unit: str):
        self.total, self.unit, self.done, self.made = max(total, 1), unit, 0, 0
        self.started = self._spoke = time.monotonic()
        self._lock = threading.Lock()
        self._bar = None

    def add(self, amount: int, made: bool = True) -> None:
        """More work is done; what was not made now, but before or by others, says nothing of how fast it goes."""
        with self._lock:
            self.done += amount
            self.made += amount if made else 0
            if self._bar is not None:
                self._bar[0].update(self._bar[1], completed=self.done, speed=self.speed())
            elif time.monotonic() - self._spoke > SECONDS_BETWEEN_LINES:
                self._spoke = time.monotonic()
                print(self.line(), file=sys.stderr, flush=True)

    def speed(self) -> str:
        """Work a second so far."""
        return f"{self.made / max(time.monotonic() - self.started, 1e-9):,.0f} {self.unit}/s"

    def line(self) -> str:
        """Where things stand, in one line."""
        elapsed = time.monotonic() - self.started
        left = elapsed * (self.total - self.done) / max(self.made, 1)
        ahead = f", about {left:.0f} s left" if self.made else ""
        return f"{self.done / self.total:4.0%}  {self.done:,} of {self.total:,} {self.unit}, {self.speed()}{ahead}"

    def attach(self, progress, task) -> None:
        """Show it as a bar from now on."""
        self._bar = progress, task


@contextlib.contextmanager
def meter(total: int, unit: str, what: str) -> Iterator[Meter]:
    """Show progress of `total` units of work while the block runs."""
    counter = Meter(total, unit)
    if not sys.stderr.isatty():
        print(f"{what}: {counter.total:,} {unit}", file=sys.stderr, flush=True)
        yield counter
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as progress:
        counter.attach(progress, progress.add_task(what, total=counter.total, speed=""))
        yield counter


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


class Panel:
    """Where a run stands: hears each row, says it in words."""

    def __init__(self, steps: int, seeds: int, first_frame: int = 0):
        self.steps, self.seeds, self.first_frame = steps, seeds, first_frame
        self.frames, self.began = first_frame, time.monotonic()
        self.now: dict[str, float] = {}
        self.span: dict[str, tuple[float, float]] = {}
        self._spoke = -SECONDS_BETWEEN_LINES
        self._live = None

    def row(self, lines: Sequence[Line]) -> None:
        """A row was measured."""
        self.frames = lines[0]["frames"]
        self.now |= means(lines)  # what this row lacks, such as an evaluation, stays as it was
        for name in SHOWN:
            if values := [line[name] for line in lines if line.get(name) == line.get(name) and name in line]:
                self.span[name] = min(values), max(values)
        if self._live is not None:
            self._live.update(self.table())
        elif time.monotonic() - self._spoke > SECONDS_BETWEEN_LINES or self.frames >= self.steps:
            self._spoke = time.monotonic()
            print(self.line(), file=sys.stderr, flush=True)

    def speed(self) -> float:
        """Frames a second, all seeds together, since this process began."""
        return (self.frames - self.first_frame) * self.seeds / max(time.monotonic() - self.began, 1e-9)

    def left(self) -> str:
        """How long it still takes, at the speed so far."""
        if self.frames == self.first_frame:
            return "?"
        return clock((self.steps - self.frames) * self.seeds / self.speed())

    def line(self) -> str:
        """All of it in one line."""
        said = [f"{self.frames / self.steps:4.0%}  {self.frames:,} of {self.steps:,} frames x {self.seeds}"]
        said += [f"{self.speed():,.0f} frames/s"]
        said += [f"{words} {short(self.now[name])}" for name, words in SHOWN.items() if name in self.now]
        return ", ".join([*said, f"{self.left()} left"])

    def table(self):
        """All of it as a panel."""
        from rich.panel import Panel as Box
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        progress = ProgressBar(self.steps, self.frames, width=40)
        table.add_row("frames", progress, f"{self.frames:,} of {self.steps:,} x {self.seeds} seeds")
        table.add_row("frames/s", f"{self.speed():,.0f}", f"{self.left()} left")
        for name, words in SHOWN.items():
            if name in self.now:
                low, high = self.span.get(name, (self.now[name],) * 2)
                spread = f"{short(low)} to {short(high)} over the seeds" if self.seeds > 1 else ""
                table.add_row(words, short(self.now[name]), spread)
        return Box(table, title="made train", expand=False)

    @contextlib.contextmanager
    def shown(self) -> Iterator["Panel"]:
        """Keep a live panel on the terminal while the block runs; without a terminal, lines do."""
        self.began = time.monotonic()
        if not sys.stderr.isatty():
            yield self
            return
        from rich.console import Console
        from rich.live import Live

        with Live(self.table(), console=Console(stderr=True), refresh_per_second=4) as self._live:
            yield self


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
