"""Live progress: a bar with speed and time left on a terminal, plain lines elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

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
