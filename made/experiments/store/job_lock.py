"""One lock for each job of a store, so that several commands share the work and no job is done twice.

The operating system holds the locks. They go with their process, however it ends.
"""

import contextlib
import hashlib
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from made.core import safe_files
from made.experiments.store.store import Job, Store
from made.training.paths import remove_empty

POLL_S = 2.0  # between two attempts while waiting
MOST_FILES = 10_240  # open at once: one for each job of the programs that run


@contextlib.contextmanager
def locked(store: Store, jobs: Sequence[tuple[Job, str]]) -> Iterator[tuple[list[int], dict[int, str]]]:
    """Lock what is free of (job, run-id) while the block runs: (which of them, the holders of the others).

    Look into the store again after locking: a job may have been finished in between.
    """
    _allow_open_files()
    with contextlib.ExitStack() as stack:
        mine, others = [], {}
        for i, (job, run_id) in enumerate(jobs):
            path = _path(store, job, run_id)
            try:
                lock = _acquire(path, 0.0)
            except Timeout:
                others[i] = _holder(path)
                continue
            stack.callback(_release, lock, path)
            mine.append(i)
            with safe_files.opened(path, "a") as file:
                file.write(f"process {os.getpid()} on {platform.node()}\n".encode())
        yield mine, others


def wait_for(store: Store, job: Job, run_id: str, seconds: float) -> bool:
    """Wait until nobody holds a job; False where that takes longer."""
    path = _path(store, job, run_id)
    try:
        _release(_acquire(path, seconds), path)
    except Timeout:
        return False
    return True


def _path(store: Store, job: Job, run_id: str) -> Path:
    label = hashlib.sha256(job.label.encode()).hexdigest()[:8]
    return store.unfinished(job.experiment, f"locks-{job.scale}") / f"{run_id}-{label}-s{job.seed}.lock"


def _acquire(path: Path, seconds: float) -> FileLock:
    lock = FileLock(path, timeout=seconds)
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(poll_interval=POLL_S)
            return lock
        except (FileNotFoundError, FileExistsError):  # another process removed the folder with the last lock in it
            if path.parent.is_file():
                raise


def _release(lock: FileLock, path: Path) -> None:
    path.unlink(missing_ok=True)  # while it is held: who has opened it meanwhile sees that it is gone
    lock.release()
    remove_empty(path.parent)


def _holder(path: Path) -> str:
    """Who holds a lock: its file ends with a line that says so."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return path.read_text("utf-8").splitlines()[-1][:100]
    return "another process"


def _allow_open_files() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # not there on every system

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
