"""SLURM as back end, through submitit: one job of the cluster a task. `--cluster local` tries it on this machine.

submitit hands a function's name and the task's text over in files that it pickles, and reads answers the same way: the
folder for them is inside the store and readable by its owner alone.
"""

import shutil
import time
from pathlib import Path
from typing import Any, Self

from made.core.plugins import install
from made.experiments.executors import worker
from made.experiments.executors.job_format import JobResult, SweepJob, WorkerLost, answer_of, clear, to_text

CLUSTERS = ("slurm", "local")


def library() -> Any:
    """submitit, or a sentence that says how to install it."""
    try:
        import submitit
    except ImportError:
        raise ValueError(f"--on slurm needs submitit: {install('slurm')}, or take --on pool.") from None
    return submitit


class Slurm:
    """Jobs of a SLURM cluster, which share the file system of the store."""

    def __init__(
        self, folder: Path, cluster: str, workers: int, cpus: float, gpus: float, minutes: int, partition: str | None
    ):
        submitit = library()
        if cluster not in CLUSTERS:
            raise ValueError(f"--cluster takes {' or '.join(CLUSTERS)}, not {cluster!r}.")
        if cluster == "slurm" and shutil.which("srun") is None:
            raise ValueError("--on slurm needs SLURM's commands, and srun is not here: start it on a login node.")
        folder.mkdir(parents=True, mode=0o700)
        self._folder, self._most = folder, workers
        self._executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        self._executor.update_parameters(timeout_min=minutes, cpus_per_task=max(1, round(cpus)), name="made")
        if gpus:
            self._executor.update_parameters(gpus_per_node=round(gpus))
        if partition is not None and cluster == "slurm":
            self._executor.update_parameters(slurm_partition=partition)
        self._waiting: list[SweepJob] = []
        self._running: list[tuple[Any, SweepJob]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        for job, _ in self._running:
            job.cancel()
        clear(self._folder)

    def submit(self, task: SweepJob) -> None:
        """Queue a task; at most so many jobs of the cluster as there are workers are in its queue at once."""
        self._waiting.append(task)

    def take(self, seconds: float) -> tuple[SweepJob, JobResult | WorkerLost] | None:
        """A task with its answer; None if none comes within so many seconds."""
        while self._waiting and len(self._running) < self._most:
            task = self._waiting.pop(0)
            self._running.append((self._executor.submit(worker.answer, to_text(task)), task))
        deadline = time.monotonic() + seconds
        while True:
            for i, (job, task) in enumerate(self._running):
                if job.done():
                    del self._running[i]
                    return task, self._answer(job)
            if time.monotonic() > deadline:
                return None
            time.sleep(0.2)

    def _answer(self, job: Any) -> JobResult | WorkerLost:
        error = job.exception()
        if error is None:
            return answer_of(job.result()[0])
        return WorkerLost(f"job {job.job_id} of the cluster: {' '.join(str(error).split())[:120]}")
