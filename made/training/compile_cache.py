"""The cache of compiled programs, and a lock that lets one process at a time compile for a GPU.

XLA times kernels while it compiles and keeps the fastest. Two processes that do so at the same moment disturb each
other: the gradient of one layer then took 1 ms in place of 80 us, for the whole run. In turn, each finds the choices of
those before it in the folder of compiled programs.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import jax
from filelock import FileLock, Timeout

LONGEST = 600.0  # seconds to wait: whoever takes longer than that is no longer compiling
PAUSE = 0.2
_LOCK = ".compiling"
_thread = threading.local()


def use_compilation_cache() -> None:
    """Compiled programs outlive the process. MADE_CACHE names another folder; an empty value turns the cache off."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "made"
    if folder := os.environ.get("MADE_CACHE", str(default)):
        jax.config.update("jax_compilation_cache_dir", str(Path(folder) / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@contextlib.contextmanager
def compile_lock() -> Iterator[None]:
    """Keep other processes with the same folder of compiled programs from compiling while the block runs.

    The operating system holds the lock, so that one whose process was killed is free. On a CPU, without such a folder
    and where files cannot be locked nobody waits.
    """
    folder = getattr(jax.config, "jax_compilation_cache_dir", None)
    with contextlib.ExitStack() as held:
        if folder and jax.default_backend() != "cpu":
            over = getattr(_thread, "over", threading.Event())
            lock = FileLock(Path(folder) / _LOCK, timeout=LONGEST, poll_interval=PAUSE)
            try:
                Path(folder).mkdir(parents=True, exist_ok=True)
                held.enter_context(lock.acquire(cancel_check=over.is_set))
            except Timeout:
                if over.is_set():
                    raise KeyboardInterrupt from None
            except OSError:
                pass
        yield


def cancel_on(over: threading.Event) -> None:
    """This thread gives up waiting once that is set. Ctrl-C reaches the main thread alone, which then sets it."""
    _thread.over = over
