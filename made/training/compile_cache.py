"""Compiling beside a GPU that other processes compile for too: one after the other.

XLA times kernels while it compiles and keeps the fastest. Two processes that do so at the same moment disturb each
other: a layer's slope was seen to take 1 ms in place of 80 us, for the whole run. In turn, each finds the choices of
those before it in the folder of compiled programs.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jax

from made.core import safe_files


def use_compilation_cache() -> None:
    """Compiled programs outlive the process. MADE_CACHE names another folder, or switches it off when empty."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "made"
    folder = os.environ.get("MADE_CACHE", str(default))
    if not folder:
        return
    import jax

    jax.config.update("jax_compilation_cache_dir", str(Path(folder) / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


LONGEST = 600.0  # seconds to wait: whoever takes longer than that is no longer compiling
PAUSE = 0.2
_LOCK = ".compiling"
_thread = threading.local()


@contextlib.contextmanager
def compile_lock() -> Iterator[None]:
    """Keep other processes with the same folder of compiled programs from compiling while the block runs.

    The operating system holds the lock, so that one whose process was killed is free. On a CPU, without such a folder
    and where files cannot be locked nobody waits.
    """
    folder = getattr(jax.config, "jax_compilation_cache_dir", None)
    if jax.default_backend() == "cpu" or not folder:
        yield
        return
    with contextlib.ExitStack() as held:
        with contextlib.suppress(ImportError, OSError, ValueError):  # the last where the lock is a link
            Path(folder).mkdir(parents=True, exist_ok=True)
            _lock(held.enter_context(safe_files.opened(Path(folder) / _LOCK, "a")), held)
        yield


def cancel_on(over: threading.Event) -> None:
    """This thread gives up waiting once that is set. Ctrl-C is heard by the main thread alone, which then sets it."""
    _thread.over = over


def _lock(file, held: contextlib.ExitStack) -> None:
    """Wait for the lock in small steps, and not for ever; it is given back where `held` ends."""
    import fcntl  # not there on every system

    stop, over = time.monotonic() + LONGEST, getattr(_thread, "over", threading.Event())
    while time.monotonic() < stop:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(PAUSE)
            if over.is_set():
                raise KeyboardInterrupt from None
        else:  # closing the file would not do where a process that was forked meanwhile has it too
            held.callback(fcntl.flock, file, fcntl.LOCK_UN)
            return
