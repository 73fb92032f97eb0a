"""A Ray cluster as back end: one that is there already (`--address`), or a local one that ends with the sweep.

Ray carries a text there, and a text and bytes back. It is told not to try again what was lost: `drive` does that.
Its processes listen on every interface, whatever they are told. So a local cluster lets nobody in who does not know a
token that is drawn for it.
"""

import os
import secrets
import sys
from typing import Any, Self

from made.core.plugins import install
from made.experiments.executors import worker
from made.experiments.executors.job_format import JobResult, SweepJob, WorkerLost, answer_of, task_of, to_text

TOLD = ("JAX_PLATFORMS", "XLA_FLAGS", "MADE_CACHE", "MADE_COMMIT", "PYTHONPATH")  # what workers must agree on


def library(alone: bool = False) -> Any:
    """Ray, or a sentence that says how to install it. `alone`: its clusters are to be closed to others."""
    if "ray" not in sys.modules:  # it reads these when it is imported, and hands them to its processes
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")  # the tally tells that itself
        if alone:
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError:
        raise ValueError(f"--on ray needs Ray: {install('ray')}, or take --on pool.") from None
    return ray


class Ray:
    """Tasks of a Ray cluster, each with the CPUs and GPUs it needs."""

    def __init__(self, address: str | None, workers: int, cpus: float, gpus: float):
        self._ray, self._address, self._cpus, self._gpus = library(alone=address is None), address, cpus, gpus
        self._room = {"num_cpus": max(1, round(workers * cpus))} | ({"num_gpus": workers * gpus} if gpus else {})
        self._running: dict[Any, SweepJob] = {}

    def __enter__(self) -> Self:
        ray, quiet = self._ray, {"log_to_driver": False, "logging_level": "error"}
        if ray.is_initialized():
            raise ValueError("This process is connected to a Ray cluster already: call ray.shutdown() first.")
        if self._address is None:
            ray.init(address="local", include_dashboard=False, **self._room, **quiet)
        else:
            told = {name: os.environ[name] for name in TOLD if name in os.environ}
            try:
                ray.init(address=self._address, runtime_env={"env_vars": told}, **quiet)
            except (ConnectionError, RuntimeError, ValueError) as error:
                why = " ".join(str(error).split())[:200]
                raise ValueError(f"There is no Ray cluster at --address {self._address!r}: {why}") from None
        self._demand_room()
        needs = {"num_cpus": self._cpus, "num_gpus": self._gpus, "max_retries": 0}
        self._remote = ray.remote(worker.answer).options(**needs)
        return self

    def __exit__(self, *problem: object) -> None:
        for running in self._running:
            self._ray.cancel(running, force=True)
        self._ray.shutdown()

    def submit(self, task: SweepJob) -> None:
        """Hand a task to Ray, which waits until there is room for it."""
        self._running[self._remote.remote(to_text(task))] = task

    def take(self, seconds: float) -> tuple[SweepJob, JobResult | WorkerLost] | None:
        """A task with its answer; None if none comes within so many seconds."""
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        return None if not ready else (self._running.pop(ready[0]), self._answer(ready[0]))

    def slots(self) -> int:
        """How many tasks the cluster has room for at once."""
        there = self._ray.cluster_resources()
        needs = {"CPU": self._cpus, "GPU": self._gpus}
        return max(1, min(int(there.get(name, 0) // each) for name, each in needs.items() if each))

    def all_see(self, task: SweepJob) -> bool:
        """Whether every node of the cluster sees the store of the task; each is asked."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as At

        nodes = [node["NodeID"] for node in self._ray.nodes() if node["Alive"]]
        asked = self._ray.remote(_sees)
        there = [asked.options(num_cpus=0, scheduling_strategy=At(node, soft=False)) for node in nodes]
        each = [at.remote(to_text(task)) for at in there]
        return all(self._ray.get(each))

    def _demand_room(self) -> None:
        there = self._ray.cluster_resources()
        for kind, each in (("CPU", self._cpus), ("GPU", self._gpus)):
            if each > there.get(kind, 0):
                word = f"--{kind.lower()}s"
                self._ray.shutdown()
                raise ValueError(f"{word} {each:g} asks for more than the cluster has, {there.get(kind, 0):g} {kind}s.")

    def _answer(self, ready: Any) -> JobResult | WorkerLost:
        """What became of a task. Its own errors are answers already: one that Ray raises is of a worker that is gone,
        or of one that cannot import made.
        """
        errors = self._ray.exceptions
        try:
            text, parcels = self._ray.get(ready)
        except errors.RayTaskError as error:
            why = " ".join(str(error).strip().splitlines()[-1].split())
            return WorkerLost(f"a worker of the cluster cannot run made, is it installed there? {why}")
        except errors.RayError as error:
            return WorkerLost(f"{type(error).__name__}: {' '.join(str(error).split())[:120]}")
        return answer_of(text, parcels)


def _sees(text: str) -> bool:
    return worker.sees(task_of(text))
