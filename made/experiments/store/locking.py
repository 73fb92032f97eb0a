"""What one command at a time does in a store: each has jobs of its own, and one packs runs into few files.

The operating system holds the locks. They go with their process, however it ends.
"""

import contextlib
import hashlib
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from made.core import safe_files
from made.experiments.store import Job, Scale, Store, files
from made.training.paths import remove_empty

POLL_S = 2.0  # between two attempts while waiting for a lock
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
            path = _lock_file(store, job, run_id)
            try:
                stack.enter_context(_lock(path, 0.0))
            except Timeout:
                others[i] = "another process"
                with contextlib.suppress(OSError, ValueError, IndexError):
                    others[i] = path.read_text("utf-8").splitlines()[-1][:100]
                continue
            mine.append(i)
            with safe_files.opened(path, "a") as file:
                file.write(f"process {os.getpid()} on {platform.node()}\n".encode())
        yield mine, others


def wait_for(store: Store, job: Job, run_id: str, seconds: float) -> bool:
    """Wait until nobody holds a job; False where that takes longer."""
    try:
        with _lock(_lock_file(store, job, run_id), seconds):
            return True
    except Timeout:
        return False


def _lock_file(store: Store, job: Job, run_id: str) -> Path:
    label = hashlib.sha256(job.label.encode()).hexdigest()[:8]
    return store.unfinished(job.experiment, f"locks-{job.scale}") / f"{run_id}-{label}-s{job.seed}.lock"


@contextlib.contextmanager
def _lock(path: Path, seconds: float = -1) -> Iterator[None]:
    """Hold a lock file, which is gone afterwards; `Timeout` where another process holds it for so long."""
    lock = FileLock(path, timeout=seconds)
    while not lock.is_locked:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(poll_interval=POLL_S)
        except (FileNotFoundError, FileExistsError):  # another process removed the folder with the last lock in it
            if path.parent.is_file():
                raise
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held: who has opened it meanwhile sees that it is gone
        lock.release()
        remove_empty(path.parent)


def _allow_open_files() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # not there on every system

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class Packed(NamedTuple):
    """What `export` did at one scale: the table, how many runs it holds, and how many folders were removed."""

    table: Path
    runs: int
    removed: int


def export(store: Store, experiment: str, to: Path | None = None, remove: bool = False) -> Iterator[Packed]:
    """Merge the run folders of an experiment into packed files, of this store or of the one at `to`, by scale.

    A run that is packed already is not replaced. With `remove`, a run folder is deleted once the packed files were
    read again and hold the same run, to the bit. Damaged packed files are never written over: ValueError.
    """
    target = Store(store.root if to is None else to)
    for scale in store.scales(experiment):
        with _lock(target.unfinished(experiment, f"export-{scale}.lock")):  # one export at a time
            for one in (store, target):
                if one.packed(experiment, scale) is None:
                    raise ValueError(f"Packed files are damaged: {one.problems[-1]}. Restore them, or move them away.")
            runs = {folder.relative_to(store.root): record for folder, record in store.records(experiment, scale)}
            before = {path.relative_to(target.root): r for path, r in (target.packed(experiment, scale) or {}).items()}
            base = target.root / experiment / scale
            base.parent.mkdir(parents=True, exist_ok=True)
            table, about = (files.packed_file(base, end) for end in (files.PACKED_TABLE, files.PACKED_RUNS))
            if runs.keys() - before.keys() or files.new_file(about).exists():  # or a kill came between the files
                files.write_packed(base, (runs | before).values())
            removed = _remove(store, experiment, scale) if remove else 0
        if runs or before:
            yield Packed(table, len(runs | before), removed)


def _remove(store: Store, experiment: str, scale: Scale) -> int:
    """Delete the run folders whose packed run, read again, is the same."""
    removed = 0
    for folder, packed in (Store(store.root).packed(experiment, scale) or {}).items():
        if (record := store.read_folder(folder)) is None:
            continue
        if not files.same(record, packed):
            path = folder.relative_to(store.root)
            store.problems.append(f"{path}: differs from the packed run of the same name, so it was not removed")
            continue
        shutil.rmtree(folder)
        removed += 1
        with contextlib.suppress(OSError):  # these are not empty
            folder.parent.rmdir()
            folder.parents[1].rmdir()
    return removed
