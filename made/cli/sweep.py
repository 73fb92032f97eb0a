"""`made sweep`: a study on whatever machines there are, into one store."""

import contextlib
import dataclasses
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from made.cli.train import Flag, Several

if TYPE_CHECKING:
    from made.experiments.executors.job_format import SweepJob
    from made.experiments.executors.retries import BackEnd
    from made.experiments.executors.sweep_progress import SweepProgress
    from made.experiments.store.store import Store

PLACES = ("here", "pool", "ray", "slurm")
# Options that only some places read.
READ_BY = {"address": ("ray",), "cluster": ("slurm",), "minutes": ("slurm",), "partition": ("slurm",)}
READ_BY |= {"cpus": ("ray", "slurm"), "gpus": ("ray", "slurm")}
POLL_S = 2.0


@dataclasses.dataclass
class Sweep:
    """Run an experiment on many cores or machines. What is stored, or in another sweep's hands, is not run again."""

    experiment: Annotated[str, tyro.conf.Positional]
    scale: str = "small"  # smoke, demo, small, gpu or paper
    on: str = "here"  # here (threads), pool (processes), ray (a cluster) or slurm
    seeds: int | None = None  # seeds 0 to N-1 instead of the scale's own number
    only: Several = ()  # a configuration, or a pattern such as 'pendulum*/made'; may be given several times
    set: Several = ()  # path=value, such as bonus.recent.window=500; may be given several times
    out: Path = Path("runs")
    workers: int | None = None  # tasks at once: a core each (slurm: 100 jobs in its queue; a cluster of Ray decides)
    lanes: int = 512  # the most jobs of a task, which share a compiled program; another number may change last bits
    cpus: float = 1.0  # that a task needs, on ray and slurm
    gpus: float = 0.0  # that a task needs, on ray and slurm
    retries: int = 3  # of a task whose worker died; one that fails with an error is told and not tried again
    address: str | None = None  # of a Ray cluster, such as auto or 10.0.0.1:6379; else a local one is started and ended
    cluster: str = "slurm"  # for --on slurm; local tries it without SLURM
    minutes: int = 240  # that SLURM is to give a task
    partition: str | None = None  # of SLURM
    wait: Flag = False  # for jobs that another sweep has, and do them if it dies

    def main(self) -> int:
        from made.experiments.store.store import Scale, Store

        self.demand()
        if self.on == "pool":  # the driver looks at the device and leaves its memory to the workers
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        store, scale = Store(self.out), Scale(self.scale)
        failed = 0
        while True:
            tally = self.once(store, scale)
            print(tally.table())
            counts = tally.counts()
            failed += counts["failed"]
            if failed or not (self.wait and counts["elsewhere"]):
                return int(failed > 0)
            self._wait_for_others(store, scale)

    def demand(self) -> None:
        """Refuse options that make no sense."""
        if self.on not in PLACES:
            from made.core.config import nearest

            known = f"{', '.join(PLACES[:-1])} or {PLACES[-1]}"
            raise ValueError(f"--on takes {known}, not {self.on!r}.{nearest(self.on, list(PLACES))}")
        for name, least in (("seeds", 1), ("workers", 1), ("lanes", 1), ("retries", 0), ("minutes", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"--{name} must be at least {least}, got {value}.")
        if not (self.cpus > 0 and self.gpus >= 0):
            raise ValueError(f"--cpus must be above 0 and --gpus not below it, got {self.cpus:g} and {self.gpus:g}.")
        for field in dataclasses.fields(self):
            places = READ_BY.get(field.name, PLACES)
            if self.on not in places and getattr(self, field.name) != field.default:
                raise ValueError(f"--{field.name} is for --on {' or '.join(places)}, and this is --on {self.on}.")

    def _wait_for_others(self, store: "Store", scale: Any) -> None:
        """Until nobody is at a job that is missing: all are stored, or given up."""
        from made.experiments.executors.job_format import group_of, tasks
        from made.experiments.store.job_lock import holder

        while True:
            asked, _, _ = tasks(self.experiment, scale, store, "", self.seeds, self.set, self.lanes, self.only)
            missing = [planned for task in asked for planned in group_of(task).jobs]
            if not any(holder(store, planned.job, planned.id) for planned in missing):
                return
            time.sleep(POLL_S)

    def once(self, store: "Store", scale: Any) -> "SweepProgress":
        """Do what the store lacks, as far as no other sweep has it."""
        from made.experiments.executors.job_format import tasks
        from made.experiments.executors.retries import schedule
        from made.experiments.executors.sweep_progress import SweepProgress
        from made.training.paths import require_dir

        sweep = secrets.token_hex(4)
        asked, work, had = tasks(self.experiment, scale, store, sweep, self.seeds, self.set, self.lanes, self.only)
        if not asked:
            return SweepProgress([], [], had)
        require_dir(store.root, "--out")  # before workers or a cluster are begun
        with self.opened(asked, store, sweep) as (back_end, asked):
            tally = SweepProgress(asked, work, had)
            for got in schedule(asked, back_end, store, self.retries, tally.lose):
                tally.tick() if got is None else tally.add(*got)
        return tally

    @contextlib.contextmanager
    def opened(self, asked: "list[SweepJob]", store: "Store", sweep: str) -> "Iterator[tuple[BackEnd, list[SweepJob]]]":
        """The back end, ready to be used, and the tasks as it is to be given them."""
        from made.experiments.executors import process_pool, slurm
        from made.experiments.executors.ray_cluster import Ray
        from made.experiments.executors.run_transfer import TransferredRuns

        cores = os.cpu_count() or 1
        if self.on == "slurm":
            where = store.unfinished("sweeps", f"slurm-{sweep}").resolve()
            needs = (self.cpus, self.gpus, self.minutes, self.partition)
            with slurm.Slurm(where, self.cluster, self.workers or 100, *needs) as back_end:
                yield back_end, asked
        elif self.on == "ray":
            with (
                Ray(self.address, self.workers or cores, self.cpus, self.gpus) as back_end,
                _sealed(store, sweep) as token,
            ):
                asked = [task._replace(token=token) for task in asked]
                if back_end.all_see(asked[0]):
                    yield back_end, asked
                else:
                    with TransferredRuns(back_end, store) as around:
                        yield around, asked
        else:
            store.unfinished("sweeps", sweep)  # makes the store: where it cannot be made, no job is begun
            kind, most = (
                (process_pool.ThreadExecutor, min(4, cores)) if self.on == "here" else (process_pool.Pool, cores)
            )
            with kind(min(self.workers or most, len(asked))) as back_end:
                yield back_end, asked


@contextlib.contextmanager
def _sealed(store: "Store", sweep: str) -> Iterator[str]:
    """A file in the store by which a worker knows that it sees the same one; yields what is in it."""
    from made.core import safe_files
    from made.experiments.executors.job_format import clear, seal

    path, token = seal(store.root, sweep), secrets.token_hex(16)
    store.unfinished("sweeps", sweep)  # makes the store, if there is none
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            safe_files.write_atomic(path, token)
            break
        except FileNotFoundError:  # another sweep ended at this moment and removed the folder above
            continue
    try:
        yield token
    finally:
        clear(path.parent)
