"""An experiment on a real Ray cluster while its workers are killed: every run is stored once, with the same numbers.

A program is one run, so that it can be killed alone.
"""

import contextlib
import hashlib
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

from made.experiments import experiment, runner
from made.experiments.executors import Options
from made.experiments.store import Scale, Store

LABELS, WORKERS = 20, 2
STUDY = runner.Study(experiment("chain"), Scale.SMOKE, ("iterations=6000", "every=600"))  # about a second a run
RETRIES = 20  # more than the default: here half of all programs are killed
APART_S = (0.3, 2.0)  # between two kills


def ray_with_kills(out: Path, jobs: int = 40, kills: int = 20) -> dict[str, Any]:
    """One run a program on a local Ray cluster of two workers; workers at a run are killed (SIGKILL) at random moments.

    Passes where each run was made and stored once, nothing half written is left, and all metrics are byte for byte
    those of the same command on threads, undisturbed.
    """
    started, threads, ray = time.time(), Store(out / "threads"), Store(out / "ray")
    seeds = -(-jobs // LABELS)
    runner.run([STUDY], threads, seeds, lanes=1)
    with Killer(kills) as killer:
        made = runner.run([STUDY], ray, seeds, lanes=1, options=Options("ray", WORKERS, RETRIES))
    stored, same = metrics(ray), metrics(threads) == metrics(ray)
    left = sorted(path.name for path in ray.root.rglob(".*"))
    return {
        "passed": made == len(stored) == jobs and same and not left and (len(killer.killed) > 0 or not kills),
        "what": f"{jobs} runs on Ray whose workers are killed: each stored once, bit-equal to threads, undisturbed",
        "jobs": jobs,
        "made": made,
        "stored": len(stored),
        "workers_killed": len(killer.killed),
        "left_behind": left,
        "bit_equal_to_threads": same,
        "seconds": round(time.time() - started, 1),
    }


class Killer:
    """A thread that kills, at random moments, a worker of this process's Ray cluster that is at a task."""

    def __init__(self, kills: int, seed: int = 0):
        self.killed: list[int] = []
        self._kills, self._random, self._over = kills, random.Random(seed), threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True)

    def __enter__(self) -> "Killer":
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._over.set()
        self._thread.join()

    def _go(self) -> None:
        while len(self.killed) < self._kills and not self._over.wait(self._random.uniform(*APART_S)):
            if workers := sorted(workers_at_a_task() - set(self.killed)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid := self._random.choice(workers), signal.SIGKILL)
                    self.killed.append(pid)


def workers_at_a_task() -> set[int]:
    """The processes below this one that Ray has named after the function they run."""
    parents, titles = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended at this moment
            titles[int(folder.name)] = (folder / "cmdline").read_bytes()
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])

    def below(pid: int) -> bool:
        return pid == os.getpid() or (pid in parents and below(parents[pid]))

    return {pid for pid, title in titles.items() if title.startswith(b"ray::work") and below(pid)}


def metrics(store: Store) -> dict[str, str]:
    """A checksum of the numbers of every stored run."""
    files = sorted(store.root.glob("*/*/*/[!.]*/metrics.csv"))
    return {str(file.relative_to(store.root)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
