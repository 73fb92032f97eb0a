"""SIGTERM, which clusters send before they kill: a run stops at the end of a row, with a checkpoint."""

import contextlib
import signal
import threading
from collections.abc import Iterator

CODE = 128 + signal.SIGTERM  # the exit code of a shell for it
_asked = threading.Event()
_waits = 0  # blocks of the main thread that look by themselves


class Terminated(BaseException):
    """The process was asked to end. The text, where there is one, says what was saved."""


def asked() -> bool:
    """Whether the process was asked to end. Threads look here at the end of each row."""
    return _asked.is_set()


@contextlib.contextmanager
def raise_on_sigterm() -> Iterator[None]:
    """While the block runs, SIGTERM raises `Terminated` in the main thread; within `deferred` the second one does."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may listen
        yield
        return
    before = signal.signal(signal.SIGTERM, _hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _asked.clear()


def _hear(number: int, frame: object) -> None:
    again = _asked.is_set()
    _asked.set()
    if again or not _waits:
        raise Terminated


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """The block looks at `asked` by itself: what it does in between, such as an update, is not broken off."""
    global _waits
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _waits += 1
    try:
        yield
    finally:
        _waits -= 1
