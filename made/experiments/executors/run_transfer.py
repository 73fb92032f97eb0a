"""Around a back end whose workers do not see the store: the driver holds the claims, and runs come home as bytes."""

import contextlib
from collections import deque
from typing import Self

from made.experiments.executors.job_format import JobDone, JobResult, SweepJob, WorkerLost, group_of, place
from made.experiments.executors.ray_cluster import Ray
from made.experiments.store.job_lock import LockOwner, locked
from made.experiments.store.store import Store

ELSEWHERE = "carry"  # a token that no seal has: the worker is not to look for the store


class TransferredRuns:
    """Claims a task when there is room for it, not before, so that another sweep can share the work."""

    def __init__(self, within: Ray, store: Store):
        self._within, self._store = within, store
        self._waiting: deque[SweepJob] = deque()
        self._claims: dict[SweepJob, contextlib.ExitStack] = {}
        self._asked: dict[SweepJob, SweepJob] = {}  # what was sent, and the task it is of
        self._others: dict[SweepJob, list[JobDone]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        for stack in self._claims.values():
            stack.close()

    def submit(self, task: SweepJob) -> None:
        """Put a task into the queue."""
        self._waiting.append(task)

    def take(self, seconds: float) -> tuple[SweepJob, JobResult | WorkerLost] | None:
        """A task with its answer; None if none comes within so many seconds."""
        while self._waiting and len(self._asked) < self._within.slots():
            task = self._waiting.popleft()
            if (answer := self._send(task)) is not None:
                return task, answer
        got = self._within.take(seconds) if self._asked else None
        if got is None:
            return None
        sent, found = got
        task = self._asked.pop(sent)
        answer = found if isinstance(found, WorkerLost) else received(sent, found, self._store)
        self._claims.pop(task).close()
        others = self._others.pop(task)
        return task, answer if isinstance(answer, WorkerLost) else answer._replace(done=(*answer.done, *others))

    def _send(self, task: SweepJob) -> JobResult | None:
        """Claim what can be had of a task and send that; an answer at once where nothing can."""
        group, stack = group_of(task), contextlib.ExitStack()
        jobs = [(planned.job, planned.id) for planned in group.jobs]
        mine, others = stack.enter_context(locked(self._store, jobs, task.sweep))
        had = [i for i in mine if self._store.has(*jobs[i])]
        done = [JobDone(*task.jobs[i], "had") for i in had] + [_elsewhere(task, i, who) for i, who in others.items()]
        left = [i for i in mine if i not in had]
        if not left:
            stack.close()
            return JobResult(tuple(done))
        # Lanes stored since the plan are run again with the others, so that the numbers are those of the plan.
        sent = task._replace(jobs=tuple(task.jobs[i] for i in mine), token=ELSEWHERE)
        self._claims[task], self._others[task], self._asked[sent] = stack, done[len(had) :], task
        self._within.submit(sent)
        return None


def _elsewhere(task: SweepJob, i: int, who: LockOwner) -> JobDone:
    return JobDone(*task.jobs[i], "elsewhere", str(who))


def received(task: SweepJob, answer: JobResult, store: Store) -> JobResult:
    """The answer, with the runs that came with it in the store; a run that arrives damaged has failed."""
    if not answer.parcels:
        return answer
    done = []
    for planned, job, files in zip(group_of(task).jobs, task.jobs, answer.parcels, strict=True):
        try:
            done.append(JobDone(*job, "made" if place(files, planned.job, planned.id, store) else "had"))
        except ValueError as error:
            done.append(JobDone(*job, "failed", str(error)))
    return answer._replace(done=tuple(done), parcels=())
