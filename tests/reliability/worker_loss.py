"""Sweeps on a real Ray cluster while its workers are killed: every job is stored once, with the numbers of a quiet one.

A job is one lane, so that it can be killed alone.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

from made.experiments.store.store import Scale, Store

EXPERIMENT, LABELS, WORKERS = "chain", 20, 2
SETTINGS = ("iterations=6000", "every=600")  # about a second a job
RETRIES = 20  # more than a sweep has by default: here half of all tasks are killed
APART_S = (0.3, 2.0)  # between two kills


def ray_sweep_with_kills(out: Path, jobs: int = 40, kills: int = 20) -> dict[str, Any]:
    """One job a task on a local Ray cluster of two workers; workers at a job are killed (SIGKILL) at random moments.

    Passes where each job was made and stored once, none failed, nothing half written is left, and all metrics are
    byte for byte those of the same sweep in this process, undisturbed.
    """
    started, quiet, rough = time.time(), Store(out / "here"), Store(out / "ray")
    _sweep("here", quiet, jobs)
    with Killer(rough, kills) as killer:
        tally = _sweep("ray", rough, jobs)
    made = [(one.label, one.seed) for one in tally.done if one.state == "made"]
    counts, stored, same = tally.counts(), metrics(rough), metrics(quiet) == metrics(rough)
    left = sorted(path.name for path in rough.root.rglob(".*"))
    # A worker that was killed between storing a job and saying so has made it: its second attempt finds it stored.
    once = len(made) == len(set(made)) and len(stored) == counts["made"] + counts["had"] == jobs
    return {
        "passed": once and same and not counts["failed"] and not left and (len(killer.killed) > 0 or not kills),
        "what": f"a Ray sweep of {jobs} jobs whose workers are killed: all complete once, bit-equal to a quiet sweep",
        "jobs": jobs,
        "stored": len(stored),
        **counts,
        "workers_killed": len(killer.killed),
        "tasks_sent_again": tally.lost,
        "left_behind": left,
        "bit_equal_to_here": same,
        "seconds": round(time.time() - started, 1),
    }


def _sweep(on: str, store: Store, jobs: int) -> Any:
    from made.cli.sweep import Sweep

    seeds = -(-jobs // LABELS)
    asked = Sweep(
        EXPERIMENT, "smoke", on, seeds, set=SETTINGS, out=store.root, workers=WORKERS, lanes=1, retries=RETRIES
    )
    return asked.once(store, Scale.SMOKE)


class Killer:
    """A thread that kills, at random moments, a process that holds a claim in a store."""

    def __init__(self, store: Store, kills: int, seed: int = 0):
        self.killed: list[int] = []
        self._root, self._kills, self._random = store.root, kills, random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True)

    def __enter__(self) -> "Killer":
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._over.set()
        self._thread.join()

    def _go(self) -> None:
        while len(self.killed) < self._kills and not self._over.wait(self._random.uniform(*APART_S)):
            owners = sorted(owners_of(self._root) - {os.getpid()} - set(self.killed))
            if owners:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid := self._random.choice(owners), signal.SIGKILL)
                    self.killed.append(pid)


def owners_of(root: Path) -> set[int]:
    """The processes that hold claims in a store."""
    found = set()
    for file in root.glob(".unfinished/*/claims-*/*-s*.*"):
        with contextlib.suppress(OSError, ValueError):  # released or half written at this moment
            found.add(int(json.loads(file.read_text("utf-8"))["pid"]))
    return found


def metrics(store: Store) -> dict[str, str]:
    """A checksum of the numbers of every stored run."""
    files = sorted(store.root.glob("*/*/*/[!.]*/metrics.csv"))
    return {str(file.relative_to(store.root)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
