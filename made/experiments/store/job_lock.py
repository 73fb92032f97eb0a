"""Who is at work on which job of a store, so that two sweeps share the work and none is done twice.

A claim is a file that only one process can make, `<root>/.unfinished/<experiment>/claims-<scale>/<job>.<n>`. It says
who made it, and a thread of that process touches it every few seconds. A claim whose owner is dead is taken over by
making the next one, n + 1, which again only one process can; nothing is locked, so nothing can stay locked.
"""

import contextlib
import errno
import hashlib
import json
import os
import platform
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from made.core import safe_files
from made.experiments.store.store import Job, Store
from made.training.provenance import alive, machine

BEAT_S = 5.0  # between two touches of a claim
DEAD_S = 90.0  # without a touch its owner counts as dead, wherever it is
_LOOKS = 20  # at a claim that does not say yet who made it
_DRAFT = ".draft-"
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


class LockOwner(NamedTuple):
    """Who holds a claim; all of it unknown where the file says nothing yet."""

    host: str = "an unknown host"
    pid: int = 0
    machine: str = ""
    sweep: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class JobLock(NamedTuple):
    """A job that this process may do. The highest of a job's numbers is the one that counts."""

    path: Path  # without the number
    number: int

    @property
    def file(self) -> Path:
        """The file that stands for it."""
        return self.path.with_name(f"{self.path.name}.{self.number}")


def acquire(store: Store, job: Job, run_id: str, sweep: str = "") -> JobLock | LockOwner:
    """The claim to a job, or who has it.

    A claim made in the name of the same sweep gives way: it is of an earlier attempt, whose process is lost. Look into
    the store again after claiming: the job may have been finished in between.
    """
    path = _path(store, job, run_id)
    content = {"host": platform.node(), "pid": os.getpid(), "machine": machine(), "sweep": sweep, "since": time.time()}
    while True:
        held = _newest(path)
        if held is not None:
            owner = _owner(held.file)
            if owner is not None and not _gives_way(held.file, owner, sweep):
                return owner
        wanted = JobLock(path, held.number + 1 if held else 0)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _make(wanted.file, json.dumps(content))
        except (FileExistsError, FileNotFoundError):  # somebody was quicker, or removed the folder with the last claim
            continue
        # Between the look and the claim, what was dead may have been taken over, released and claimed afresh below.
        if held is not None and (owner := _owner(held.file)) and not _gives_way(held.file, owner, sweep):
            wanted.file.unlink(missing_ok=True)
            return owner
        return wanted


def _make(file: Path, content: str) -> None:
    """A claim that says from its first moment whose it is: a kill in the middle of writing would leave one of nobody.

    So it is written under another name, and linked to its own, which only one process can.
    """
    draft = file.with_name(f"{_DRAFT}{secrets.token_hex(4)}")
    try:
        safe_files.create(draft, content).close()
        os.link(draft, file)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _make_in_place(file, content)
    finally:
        draft.unlink(missing_ok=True)


def _make_in_place(file: Path, content: str) -> None:
    """The same where the file system has no links: for a moment it says nothing."""
    with safe_files.opened(file, "x") as made:
        try:
            made.write(content.encode())
        except OSError:  # no room to say whose it is: an empty claim would keep others from the job
            file.unlink(missing_ok=True)
            raise


def release_lock(held: JobLock) -> None:
    """Give a claim back, and remove what it was taken over from; the one that counts goes last."""
    for number in range(held.number + 1):
        JobLock(held.path, number).file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # whose writer has just finished, or whose folder is gone
        for draft in list(held.path.parent.glob(f"{_DRAFT}*")):
            if time.time() - draft.stat().st_mtime > DEAD_S:
                draft.unlink()  # what a kill left
    for above in (held.path.parent, held.path.parent.parent, held.path.parent.parent.parent):
        try:
            above.rmdir()
        except OSError:  # others are at work there
            return


@contextlib.contextmanager
def locked(
    store: Store, jobs: Sequence[tuple[Job, str]], sweep: str = ""
) -> Iterator[tuple[list[int], Mapping[int, LockOwner]]]:
    """Claim what can be had of (job, run-id) while the block runs: (which of them, who has the others)."""
    tried = {i: acquire(store, job, run_id, sweep) for i, (job, run_id) in enumerate(jobs)}
    mine = {i: got for i, got in tried.items() if isinstance(got, JobLock)}
    done = threading.Event()
    beating = threading.Thread(target=_beat, args=([held.file for held in mine.values()], done), daemon=True)
    beating.start()
    try:
        yield list(mine), {i: got for i, got in tried.items() if isinstance(got, LockOwner)}
    finally:
        done.set()
        beating.join()
        for held in mine.values():
            release_lock(held)


def holder(store: Store, job: Job, run_id: str) -> LockOwner | None:
    """Who is at work on a job now; None where nobody is."""
    held = _newest(_path(store, job, run_id))
    owner = None if held is None else _owner(held.file)
    return owner if held and owner and _lives(held.file, owner) else None


def _beat(files: Sequence[Path], done: threading.Event) -> None:
    while not done.wait(BEAT_S):
        for file in files:
            with contextlib.suppress(OSError):  # gone: taken away by hand, or the disk is not there for a while
                os.utime(file)


def _path(store: Store, job: Job, run_id: str) -> Path:
    label = hashlib.sha256(job.label.encode()).hexdigest()[:8]
    return store.unfinished(job.experiment, f"claims-{job.scale}") / f"{run_id}-{label}-s{job.seed}"


def _newest(path: Path) -> JobLock | None:
    try:
        names = os.listdir(path.parent)
    except FileNotFoundError:
        return None
    numbers = [name.rpartition(".") for name in names]
    found = [int(number) for name, _, number in numbers if name == path.name and number.isdigit()]
    return JobLock(path, max(found)) if found else None


def _owner(file: Path) -> LockOwner | None:
    """Who made a claim; None where it is gone. One that was made this moment says so in the next."""
    for _ in range(_LOOKS):
        try:
            content: Any = json.loads(file.read_text("utf-8"))
            return LockOwner(str(content["host"]), int(content["pid"]), str(content["machine"]), str(content["sweep"]))
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError):
            time.sleep(0.01)
    return LockOwner()  # cut short by a kill: its age decides


def _gives_way(file: Path, owner: LockOwner, sweep: str) -> bool:
    return bool(sweep and owner.sweep == sweep) or not _lives(file, owner)


def _lives(file: Path, owner: LockOwner) -> bool:
    if owner.machine == machine() and not alive(owner.pid):
        return False
    try:
        return _now(file.parent) - file.stat().st_mtime < DEAD_S
    except FileNotFoundError:
        return False


def _now(folder: Path) -> float:
    """The time by the clock that stamps the claims: on a shared file system that is not this machine's."""
    probe = folder / f".clock-{secrets.token_hex(4)}"
    safe_files.opened(probe, "x").close()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)
