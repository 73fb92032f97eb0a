"""What a worker does with a task: rebuild the trials from their names, run them, store them, say how it went."""

import _thread
import contextlib
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable

from made.experiments.executors.job_format import JobDone, JobResult, SweepJob, group_of, pack, seal, task_of, to_text
from made.experiments.scheduler import run_group
from made.experiments.store.store import Store
from made.training.compile_cache import use_compilation_cache

LONGEST = 300  # characters of a reason
INTERRUPTS = 3  # of a task whose driver is gone
PATIENCE = 5.0  # seconds that an interrupted task has to give back what it claimed


def work(task: SweepJob) -> JobResult:
    """Do a task. An exception becomes a reason: what fails once fails again, so it is told and not tried again."""
    started = time.time()
    try:
        store = Store(task.store) if sees(task) else None
        if store is None:
            done, parcels = _carried(task)
        else:
            done, parcels = _stored(task, store), ()
    except Exception as error:  # whatever a study may raise is its jobs' reason, and the others go on
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"[:LONGEST]
        done, parcels = tuple(JobDone(label, seed, "failed", why) for label, seed in task.jobs), ()
    return JobResult(done, round(time.time() - started, 3), os.getpid(), parcels)


def sees(task: SweepJob) -> bool:
    """Whether the store of the task is the one that the driver sees."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return not task.token or seal(task.store, task.sweep).read_text("utf-8") == task.token
    return False


def _stored(task: SweepJob, store: Store) -> tuple[JobDone, ...]:
    outcome = run_group(group_of(task), store, sweep=task.sweep)
    states = dict.fromkeys(outcome.made, "made") | dict.fromkeys(outcome.had, "had")
    who = {i: str(owner) for i, owner in outcome.elsewhere.items()}
    return tuple(
        JobDone(label, seed, states.get(i, "elsewhere"), who.get(i, ""))  # type: ignore[arg-type]
        for i, (label, seed) in enumerate(task.jobs)
    )


def _carried(task: SweepJob) -> tuple[tuple[JobDone, ...], tuple[dict[str, bytes], ...]]:
    """The same into a store of its own, whose runs go home as bytes. The driver holds the claims meanwhile."""
    with tempfile.TemporaryDirectory(prefix="made-worker-") as folder:
        group, own = group_of(task), Store(folder)
        run_group(group, own)
        folders = [own.folder(planned.job, planned.id) for planned in group.jobs]
        return tuple(JobDone(*job, "made") for job in task.jobs), tuple(map(pack, folders))


def answer(text: str) -> tuple[str, list[dict[str, bytes]]]:
    """Do a task that came as text: (the answer as text, parcels)."""
    use_compilation_cache()
    answered = work(task_of(text))
    return to_text(answered), list(answered.parcels)


def serve() -> None:
    """Do one task a line of the standard input and answer with a line each, until the input ends.

    The standard output is kept for answers; whatever else is printed goes to the standard error.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell runs behind it does not have one
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        waiting: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_listen, args=(sys.stdin, waiting), daemon=True).start()
        while line := waiting.get():
            print(answer(line)[0], file=out, flush=True)
            waiting.task_done()


def _listen(asked: Iterable[str], waiting: "queue.Queue[str]") -> None:
    """Hand on what is asked, until nobody asks any more: a driver that is gone in the middle of a task ends it too.

    It is interrupted as Ctrl-C does, so that its claims and its part of a GPU are free again. Once may not be
    enough: what is raised within a callback of the garbage collector, and JAX has one, is dropped by Python.
    Whatever does not end by that is ended as a kill does, after which its claims count for nothing.
    """
    for line in asked:
        waiting.put(line)
    for _ in range(INTERRUPTS):
        if waiting.unfinished_tasks:
            _thread.interrupt_main()
            time.sleep(PATIENCE)
    if waiting.unfinished_tasks:
        os._exit(130)
    waiting.put("")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):  # whoever asked is gone
        serve()
