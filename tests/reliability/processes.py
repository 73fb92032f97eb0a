"""The command `made` in processes of its own, for checks that kill it, fill its disk or watch its memory."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from made.training import checkpoint, checkpoint_file, run_dir

CLOCKED = ("seconds", "frames_per_second")  # what a clock measured: the only numbers that may differ
PATIENCE = 600.0  # seconds for one small process on a busy machine


class Ended(NamedTuple):
    """How a process ended and what it said."""

    status: int
    err: str

    @property
    def lines(self) -> list[str]:
        """What it said to stderr besides its progress."""
        return [line for line in self.err.splitlines() if line.startswith("made:") and "compiling" not in line]


def start(words: list[str], cache: Path, err: Path, **more: Any) -> subprocess.Popen:
    """`made WORDS` in the background, on the CPU, with compiled programs kept in `cache`."""
    environment = {**os.environ, "MADE_CACHE": str(cache), "JAX_PLATFORMS": "cpu"}
    with open(err, "wb") as file:
        command = [sys.executable, "-m", "made", *words]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=file, **more)


def finish(process: subprocess.Popen, err: Path, patience: float = PATIENCE) -> Ended:
    """Wait for its end, and end it by force where it does not come."""
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        kill(process)
    return Ended(process.returncode, err.read_text("utf-8", "replace"))


def run(words: list[str], cache: Path, err: Path, **more: Any) -> Ended:
    """`made WORDS` from beginning to end."""
    return finish(start(words, cache, err, **more), err)


def kill(process: subprocess.Popen) -> None:
    """kill -9, and nothing else: whatever the process was in the middle of stays as it is."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def rows(out: Path) -> list[dict[str, Any]]:
    """The rows of a run without what a clock measured."""
    lines = [json.loads(line) for line in (out / run_dir.METRICS).read_text("utf-8").splitlines()]
    return [{name: x for name, x in line.items() if name not in CLOCKED} for line in lines]


def end(out: Path) -> checkpoint_file.Arrays:
    """The arrays of the newest checkpoint, which must be whole."""
    return checkpoint.read(checkpoint.files(out / run_dir.CHECKPOINTS)[-1]).arrays


def same(one: Path, other: Path) -> str:
    """Where two finished runs differ in a row or a bit; empty where they do not."""
    if rows(one) != rows(other):
        return "their rows differ"
    a, b = end(one), end(other)
    if a.keys() != b.keys():
        return "their states have other arrays"
    odd = [name for name in a if not np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f")]
    return f"{odd[0]} differs" if odd else ""


def tail(ended: Ended) -> str:
    """The last thing it said, for a report of what went wrong."""
    return f"exit {ended.status}: {(ended.err.strip().splitlines() or ['nothing'])[-1][:200]}"


def listening(pid: int | str) -> set[str]:
    """The ports on which a process listens, as Linux tells them."""
    open_files = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            open_files.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in open_files:  # 0A: it waits for others to connect
                found.add(fields[1])
    return found
