"""Back ends on this machine: threads of this process (`here`), or processes that are asked line by line (`pool`)."""

import contextlib
import os
import queue
import subprocess
import sys
import threading
from typing import Self

from made.experiments.executors import worker
from made.experiments.executors.job_format import JobResult, SweepJob, WorkerLost, answer_of, to_text


class ThreadExecutor:
    """Threads of this process: compiling and running both leave Python free."""

    def __init__(self, workers: int):
        self._waiting: queue.SimpleQueue[SweepJob | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[SweepJob, JobResult | WorkerLost]] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(workers)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        for _ in self._threads:
            self._waiting.put(None)

    def submit(self, task: SweepJob) -> None:
        """Put a task into the queue."""
        self._waiting.put(task)

    def take(self, seconds: float) -> tuple[SweepJob, JobResult | WorkerLost] | None:
        """A task with its answer; None if none comes within so many seconds."""
        with contextlib.suppress(queue.Empty):
            return self._answers.get(timeout=seconds)
        return None

    def _serve(self) -> None:
        while (task := self._waiting.get()) is not None:
            try:
                found = worker.work(task)
            except BaseException as error:  # such as SystemExit: a thread that ends unheard would be waited for
                found = WorkerLost(f"{type(error).__name__} {error}".strip())
            self._answers.put((task, found))


def shared(workers: int) -> dict[str, str]:
    """The environment of so many processes on one device: each takes memory as it needs it, and no more than its part.

    Left to itself the first would take three quarters of a GPU at once. What the user has set stays as it is.
    """
    part = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if "XLA_CLIENT_MEM_FRACTION" not in os.environ:  # its other name, refused beside this one
        part["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / workers:.3f}"
    return {**(part if workers > 1 else {}), **os.environ}


class Pool(ThreadExecutor):
    """Processes of this machine, each with its own Python. One that dies is replaced, and its task counts as lost."""

    def __init__(self, workers: int):
        super().__init__(workers)
        self._running: set[subprocess.Popen[str]] = set()
        self._closed, self._environment = False, shared(workers)

    def __exit__(self, *problem: object) -> None:
        self._closed = True
        super().__exit__()
        for process in list(self._running):
            process.terminate()
        for thread in self._threads:
            thread.join(timeout=10)

    def pids(self) -> list[int]:
        """The processes of the workers that run now."""
        return [process.pid for process in list(self._running)]

    def _serve(self) -> None:
        process = None
        while (task := self._waiting.get()) is not None and not self._closed:
            process = process or self._start()
            found = _ask(process, task)
            if isinstance(found, WorkerLost):
                process = self._stop(process)
            self._answers.put((task, found))
        if process is not None:
            self._stop(process)

    def _start(self) -> subprocess.Popen[str]:
        words, pipe = [sys.executable, "-m", "made.experiments.executors.worker"], subprocess.PIPE
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, encoding="utf-8", env=self._environment)
        self._running.add(process)
        return process

    def _stop(self, process: subprocess.Popen[str]) -> None:
        self._running.discard(process)
        with contextlib.suppress(BrokenPipeError):
            process.communicate()  # its input ends, and so does it


def _ask(process: subprocess.Popen[str], task: SweepJob) -> JobResult | WorkerLost:
    assert process.stdin is not None and process.stdout is not None
    try:
        print(to_text(task), file=process.stdin, flush=True)
        line = process.stdout.readline()
    except BrokenPipeError:
        line = ""
    if line.endswith("\n"):  # else it was killed in the middle of it
        return answer_of(line)
    code = process.wait()
    return WorkerLost(
        f"the worker was killed by signal {-code}" if code < 0 else f"the worker ended with status {code}"
    )
