"""How a sweep stands: counts while it runs, a table of labels and reasons at its end."""

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from made.experiments.executors.job_format import STATES, JobDone, JobResult, SweepJob, WorkerLost

WORDS = {"made": "made", "had": "stored already", "elsewhere": "in another sweep", "failed": "failed"}
SECONDS_BETWEEN_LINES = 5.0


class SweepProgress:
    """Counts jobs as they come in, and says how it stands: on a terminal in one line that changes."""

    def __init__(self, tasks: Sequence[SweepJob], work: Sequence[int], had: int):
        self.total = had + sum(len(task.jobs) for task in tasks)
        self.had, self.lost, self.done = had, 0, []
        self._work: Mapping[SweepJob, int] = dict(zip(tasks, work, strict=True))
        self._finished, self._began, self._spoke = 0, time.monotonic(), 0.0
        self._live = sys.stderr.isatty()

    def add(self, task: SweepJob, answer: JobResult) -> None:
        """A task came back."""
        self.done += answer.done
        self._finished += self._work[task]
        for one in answer.done:
            if one.state == "failed":
                self._say(f"failed: {one.label} seed {one.seed}: {one.why}")
        self.tick(now=True)

    def lose(self, task: SweepJob, lost: WorkerLost, times: int) -> None:
        """A worker died."""
        self.lost += 1
        self._say(f"{task} was lost, for the {_nth(times)} time: {lost.why}")

    def tick(self, now: bool = False) -> None:
        """Say how it stands, if it is time."""
        wait = 0.5 if self._live else SECONDS_BETWEEN_LINES
        if (now and self._live) or time.monotonic() - self._spoke > wait:
            self._spoke = time.monotonic()
            ends = {"end": "\x1b[K\r"} if self._live else {"end": "\n"}
            print(f"made: {self.line()}", file=sys.stderr, flush=True, **ends)

    def counts(self) -> dict[str, int]:
        """Jobs by state."""
        found = Counter(one.state for one in self.done)
        return {state: found[state] + (self.had if state == "had" else 0) for state in STATES}

    def line(self) -> str:
        """How it stands, in one line."""
        said = ", ".join(f"{n} {WORDS[state]}" for state, n in self.counts().items() if n) or "none done"
        return f"{said}, of {self.total} jobs{self._ahead()}"

    def _ahead(self) -> str:
        """The time left, from the share of iterations that is done; compiling is in it, so it shrinks faster."""
        whole = sum(self._work.values())
        if not 0 < self._finished < whole:
            return ""
        left = (time.monotonic() - self._began) * (whole - self._finished) / self._finished
        return f", about {left:.0f} s left" if left < 120 else f", about {left / 60:.0f} min left"

    def _say(self, text: str) -> None:
        print(f"{chr(27) + '[K' if self._live else ''}made: {text}", file=sys.stderr, flush=True)

    def table(self) -> str:
        """One line a label that something was done for, and one for all."""
        by_label: dict[str, list[JobDone]] = {}
        for one in self.done:
            by_label.setdefault(one.label, []).append(one)
        rows = [["label", *(WORDS[state] for state in STATES), "why"]]
        for label, ones in by_label.items():
            found = Counter(one.state for one in ones)
            why = next((one.why for one in ones if one.why), "")
            rows.append([label, *(str(found[state] or "") for state in STATES), why])
        counts = self.counts()
        rows.append(["all", *(str(counts[state]) for state in STATES), ""])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
        lines = [
            "  ".join([*(f"{x:{w}}" for x, w in zip(row, widths, strict=False)), row[-1]]).rstrip() for row in rows
        ]
        again = f"; {self.lost} tasks were sent again after their worker died" if self.lost else ""
        seconds = time.monotonic() - self._began
        return "\n".join([*lines, f"{self.total} jobs in {seconds:.1f} s{again}."])


def _nth(n: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(n, f"{n}th")
