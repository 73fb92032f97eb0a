"""A sweep as it goes: tasks out, answers in, what was lost with its worker sent again, a bounded number of times."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from made.experiments.executors.job_format import JobDone, JobResult, SweepJob, WorkerLost
from made.experiments.executors.run_transfer import received
from made.experiments.store.store import Store

RETRIES = 3  # of a task whose worker died; one that raises is not tried again
TICK_S = 0.5


class BackEnd(Protocol):
    """Where tasks are done: entered, it takes any number of them and gives them back answered, in any order."""

    def __enter__(self) -> "BackEnd": ...

    def __exit__(self, *problem: object) -> None: ...

    def submit(self, task: SweepJob) -> None:
        """Take a task."""
        ...

    def take(self, seconds: float) -> tuple[SweepJob, JobResult | WorkerLost] | None:
        """A task with its answer; None if none comes within so many seconds."""
        ...


def schedule(
    tasks: Sequence[SweepJob],
    back_end: BackEnd,
    store: Store,
    retries: int = RETRIES,
    on_lost: Callable[[SweepJob, WorkerLost, int], None] | None = None,
) -> Iterator[tuple[SweepJob, JobResult] | None]:
    """Do the tasks: each with its answer, as they come, and None now and then while none does.

    `on_lost` hears of a task whose worker died, why, and how often that has happened to it.
    """
    losses: Counter[SweepJob] = Counter()
    for task in tasks:
        back_end.submit(task)
    left = len(tasks)
    while left:
        got = back_end.take(TICK_S)
        if got is None:
            yield None
            continue
        task, found = got
        if isinstance(found, WorkerLost):
            losses[task] += 1
            if on_lost is not None:
                on_lost(task, found, losses[task])
            if losses[task] <= retries:
                back_end.submit(task)
                continue
            why = f"lost {losses[task]} times, the last time: {found.why}"
            found = JobResult(tuple(JobDone(label, seed, "failed", why) for label, seed in task.jobs))
        left -= 1
        yield task, received(task, found, store)
