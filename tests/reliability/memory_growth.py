"""Does a long run grow? A real training is watched from outside: its memory, its open files, its threads.

    growth = slope of a least-squares line through the resident memory after the warm-up x the time since then

The warm-up is the first third: until then programs are compiled and buffers reach their size. Memory is flat where the
growth is less than 2% of what the run holds, or 8 MiB, within which a run of a minute cannot be told from a flat one.
"""

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.reliability import processes

SHARE, LEAST = 0.02, 8.0  # of what is held, and in MiB
SECONDS = 1800.0
# Rows, evaluations and checkpoints come many times a minute, so that all that a run does is done thousands of times.
TRAINING = (
    "train --env DoorKey-5x5 --agent impala --bonus made --steps 100G --seeds 2 --no-video "
    "--every 1280 --eval-every 12800 --checkpoint-every 12800 --set n_envs=8 --set unroll=20 "
    "--set bonus.recent.density.window=2000 --set bonus.recent.density.capacity=2000"
)


def soak(folder: Path, seconds: float = SECONDS) -> dict[str, Any]:
    """Watch a training for so long, stop it as Ctrl-C does, and judge how its memory went."""
    out, every = folder / "soak", max(0.5, seconds / 400)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="made-cache-") as cache:
        process = processes.start([*TRAINING.split(), "--out", str(out)], Path(cache), folder / "soak.err")
        seen = probe_states(process, out / "metrics.jsonl", seconds, every)
        process.send_signal(signal.SIGINT)
        ended = processes.finish(process, folder / "soak.err", 60)
    judged = judge(*(np.array([row[i] for row in seen]) for i in (0, 1)))
    rows = len(processes.rows(out))
    flat = judged["growth_mib"] <= max(SHARE * judged["mean_mib"], LEAST)
    return {
        "passed": bool(flat and ended.status == 130 and rows and seen[-1][2] <= seen[len(seen) // 3][2]),
        "what": f"memory of a training over {seconds:.0f} s",
        "command": f"made {TRAINING}",
        "rows_written": rows,
        "exit_status": ended.status,
        **judged,
        "columns": ["seconds", "resident_mib", "open_files", "threads"],
        "samples": seen,
    }


def probe_states(process: Any, rows: Path, seconds: float, every: float) -> list[list[float]]:
    """[seconds, MiB, files, threads] over time, from the first row on; until then it compiles."""
    begins = time.monotonic()
    while not (rows.exists() and rows.stat().st_size) and process.poll() is None:
        if time.monotonic() - begins > processes.PATIENCE:
            raise ValueError(f"The training wrote no row in {processes.PATIENCE:.0f} s: look into soak.err beside it.")
        time.sleep(0.2)
    begins, seen = time.monotonic(), []
    while process.poll() is None and time.monotonic() - begins < seconds:
        seen.append([round(time.monotonic() - begins, 1), *looked_at(process.pid)])
        time.sleep(every)
    if len(seen) < 6:
        raise ValueError("The training ended before it could be watched: look into soak.err beside it.")
    return seen


def looked_at(pid: int | str) -> tuple[float, int, int]:
    """Resident memory in MiB, open files and threads of a process, as Linux tells them."""
    told = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return round(int(told["VmRSS"].split()[0]) / 1024, 2), len(os.listdir(f"/proc/{pid}/fd")), int(told["Threads"])


def judge(seconds: np.ndarray, mib: np.ndarray) -> dict[str, float]:
    """The line through what came after the warm-up.

    >>> judge(np.arange(6.0), np.array([1.0, 5.0, 9.0, 9.0, 9.0, 9.0]))["growth_mib"]
    0.0
    """
    later = seconds >= seconds[-1] / 3
    slope = float(np.polyfit(seconds[later], mib[later], 1)[0])
    span = float(seconds[later][-1] - seconds[later][0])
    told = {"slope_mib_per_hour": 3600 * slope, "growth_mib": slope * span, "mean_mib": float(mib[later].mean())}
    return {name: round(x, 3) + 0.0 for name, x in told.items()}
