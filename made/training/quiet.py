"""Compiling beside a GPU that other processes compile for too: one after the other.

XLA times kernels while it compiles and keeps the fastest. Two processes that do so at the same moment disturb each
other: a layer's slope was seen to take 1 ms in place of 80 us, for the whole run. In turn, each finds the choices of
those before it in the folder of compiled programs.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import jax

LONGEST = 600.0  # seconds to wait: whoever takes longer than that is no longer compiling
PAUSE = 0.2
_LOCK = ".compiling"


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Keep other processes with the same folder of compiled programs from compiling while the block runs.

    The operating system holds the lock, so that one whose process was killed is free. On a CPU, without such a folder
    and where files cannot be locked nobody waits.
    """
    folder = getattr(jax.config, "jax_compilation_cache_dir", None)
    if jax.default_backend() == "cpu" or not folder:
        yield
        return
    with contextlib.ExitStack() as held:
        with contextlib.suppress(ImportError, OSError):
            Path(folder).mkdir(parents=True, exist_ok=True)
            _locked(held.enter_context((Path(folder) / _LOCK).open("w")))
        yield


def _locked(file) -> None:
    """Wait for the lock in small steps, which an interruption can end, and not for ever."""
    import fcntl  # not there on every system

    until = time.monotonic() + LONGEST
    while time.monotonic() < until:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(PAUSE)
