"""Where the groups of an experiment run: threads, processes, Ray or SLURM.

A worker is sent names, rebuilds the trials from them and returns their records. The driver alone writes to the store.
"""

import contextlib
import math
import multiprocessing
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NamedTuple

from made.core.config import nearest
from made.core.plugins import needs
from made.core.safe_files import DiskFull
from made.core.trial import TimeLimitReached
from made.experiments import experiment
from made.experiments.resumable import clear_partial
from made.experiments.scheduler import Group, Result, Study, reason, run_trials
from made.experiments.store.store import Scale, Store
from made.training.paths import MARKER
from made.training.sharding import use_compilation_cache

EXECUTORS = ("threads", "processes", "ray", "slurm")
# Options that only some executors read.
READ_BY = {"address": ("ray",), "cluster": ("slurm",), "partition": ("slurm",)}
READ_BY |= dict.fromkeys(("cpus", "gpus"), ("ray", "slurm")) | {"retries": EXECUTORS[1:]}
CLUSTERS = ("slurm", "local")
# What the workers of a Ray cluster must agree on with the driver.
ENVIRONMENT = ("JAX_PLATFORMS", "XLA_FLAGS", "MADE_CACHE", "MADE_COMMIT", "PYTHONPATH")
SLURM_JOBS, SLURM_MINUTES = 100, 240


class Options(NamedTuple):
    """Where to run, and with what. The fields are options of `made run`."""

    on: str = "threads"
    workers: int | None = None
    retries: int = 3
    cpus: float = 1.0
    gpus: float = 0.0
    address: str | None = None
    cluster: str = "slurm"
    partition: str | None = None
    minutes: float | None = None

    def validate(self) -> None:
        """Raise for an unknown executor, for values out of range and for options that the executor does not read."""
        if self.on not in EXECUTORS:
            known = f"{', '.join(EXECUTORS[:-1])} or {EXECUTORS[-1]}"
            raise ValueError(f"--on takes {known}, not {self.on!r}.{nearest(self.on, list(EXECUTORS))}")
        for name, value in self._asdict().items():
            readers = READ_BY.get(name, EXECUTORS)
            if self.on not in readers and value != self._field_defaults[name]:
                raise ValueError(f"--{name} is for --on {' or '.join(readers)}, and this is --on {self.on}.")
        for name, least in (("workers", 1), ("retries", 0)):
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"--{name} must be at least {least}, got {value}.")
        if self.minutes is not None and not self.minutes > 0:
            raise ValueError(f"--minutes must be above 0, got {self.minutes}.")
        if not (self.cpus > 0 and self.gpus >= 0):
            raise ValueError(f"--cpus must be above 0 and --gpus not below it, got {self.cpus:g} and {self.gpus:g}.")
        if self.cluster not in CLUSTERS:
            raise ValueError(f"--cluster takes {' or '.join(CLUSTERS)}, not {self.cluster!r}.")


class Task(NamedTuple):
    """A group by names alone."""

    experiment: str
    scale: str
    settings: tuple[str, ...]
    jobs: tuple[tuple[str, int], ...]  # (label, seed)
    store: str  # for the checkpoints of runs that have some
    deadline: float  # of `time.time()`


def work(task: Task) -> Result:
    """Run the trials that a task names: what a worker does."""
    use_compilation_cache()
    study = Study(experiment(task.experiment), Scale(task.scale), task.settings)
    if unknown := [label for label, _ in task.jobs if label not in study.trials]:
        return Result([], {}, f"a worker has no configuration {unknown[0]!r}: install the driver's version of made")
    with contextlib.ExitStack() as stack:
        root = Path(task.store)
        if not (root / MARKER).exists():  # this machine does not see the store
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="made-")))
        return run_trials(Group(study, task.jobs), root, until=time.monotonic() + task.deadline - time.time())


@contextlib.contextmanager
def start(options: Options, store: Store, groups: int) -> Iterator[tuple[Callable[..., Result], int | None]]:
    """What `schedule` takes as `run` and `workers`; the workers end with the block. `groups` are to be run."""
    cores = os.cpu_count() or 1
    workers = min(options.workers or (SLURM_JOBS if options.on == "slurm" else cores), groups)
    if options.on == "threads":
        yield run_trials, options.workers
    elif options.on == "processes":
        with _Processes(options, workers) as executor:
            yield executor, workers
    elif options.on == "ray":
        with _Ray(options, workers) as executor:
            yield executor, executor.slots
    else:
        with _Slurm(options, store.unfinished("slurm", secrets.token_hex(4)).resolve()) as executor:
            yield executor, workers


class _Executor:
    """Sends a group to a worker and waits for its result. If the worker dies, the group is sent again."""

    lost: tuple[type[Exception], ...]  # what `call` raises then

    def __init__(self, options: Options):
        self.options, self.closed = options, False

    def call(self, task: Task) -> Result:
        """The result of a task. Called by several threads."""
        raise NotImplementedError

    def __call__(self, group: Group, root: Path, on_rows: Callable[..., None], until: float) -> Result:
        study, why = group.study, ""
        names = (study.experiment.name, study.scale.value, study.settings, group.jobs)
        task = Task(*names, str(root.resolve()), time.time() + until - time.monotonic())
        tries = self.options.retries + 1
        for losses in range(1, tries + 1):
            try:
                result = self.call(task)
                on_rows(0 if result.error else len(result.records[0].rows["step"]))
                return result
            except (TimeLimitReached, DiskFull):
                raise
            except self.lost as error:
                if self.closed:
                    raise
                why = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
                print(f"made: the worker of {group} died ({losses} of {tries}): {why}", file=sys.stderr, flush=True)
            except Exception as error:  # a worker that cannot import made
                return Result([], {}, reason(error))
        return Result([], {}, f"its worker died {tries} times, the last time: {why}")

    def __enter__(self):
        return self

    def __exit__(self, *problem: object) -> None:
        self.closed = True


class _Processes(_Executor):
    """Processes of this machine. Each thread of the driver has its own, so that a dead one takes no other job along."""

    lost = (BrokenProcessPool,)

    def __init__(self, options: Options, workers: int):
        super().__init__(options)
        self._own, self._pools, self._environment = threading.local(), [], device_part(workers)
        resource_tracker.ensure_running()  # at its start it unblocks the signals that `call` blocks

    def call(self, task: Task) -> Result:
        """The result of a task, from the process of this thread."""
        if hasattr(signal, "pthread_sigmask"):  # Ctrl-C is for the driver, which ends its workers: they inherit this
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        if (pool := getattr(self._own, "pool", None)) is None:
            spawn, given = multiprocessing.get_context("spawn"), (self._environment,)
            pool = self._own.pool = ProcessPoolExecutor(1, spawn, initializer=_start_worker, initargs=given)
            self._pools.append(pool)
        try:
            return pool.submit(work, task).result()
        except BrokenProcessPool:
            del self._own.pool
            raise

    def __exit__(self, *problem: object) -> None:
        super().__exit__()
        for pool in self._pools:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(cancel_futures=True)


def _start_worker(environment: dict[str, str]) -> None:
    os.environ.update(environment)
    driver = multiprocessing.parent_process()
    assert driver is not None

    def follow() -> None:
        driver.join()
        os._exit(1)  # killed: nobody takes the result

    threading.Thread(target=follow, daemon=True).start()


def device_part(workers: int) -> dict[str, str]:
    """The environment of so many processes on one device: each takes memory as needed, at most its part.

    By default the first would take three quarters of a GPU at once. What the user has set stays as it is.
    """
    if workers == 1:
        return {}
    part = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if "XLA_CLIENT_MEM_FRACTION" not in os.environ:  # its newer name; JAX refuses both
        part["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / workers:.3f}"
    return {name: value for name, value in part.items() if name not in os.environ}


class _Ray(_Executor):
    """A Ray cluster: that of `--address`, or a local one that ends with the block."""

    def __init__(self, options: Options, workers: int):
        super().__init__(options)
        alone = options.address is None
        if "ray" not in sys.modules and alone:  # its ports are open to the network, so they take a random token
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        with needs("--on ray", "ray", "ray"):
            import ray
            from ray.exceptions import RayError, RayTaskError
        self._ray, self._running = ray, set()
        self.lost, self._own_error = (RayError,), RayTaskError
        if ray.is_initialized():
            raise ValueError("This process is connected to a Ray cluster already: call ray.shutdown() first.")
        log: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        warnings.filterwarnings("ignore", r".*os\.fork", RuntimeWarning)  # of how it starts its processes
        on_sigterm = signal.getsignal(signal.SIGTERM)
        if alone:
            room = {"num_cpus": max(1, round(workers * options.cpus)), "num_gpus": workers * options.gpus or None}
            ray.init(address="local", include_dashboard=False, **room, **log)
        else:
            given = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
            try:
                ray.init(address=options.address, runtime_env={"env_vars": given}, **log)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ValueError(f"There is no Ray cluster at --address {options.address!r}: {error}") from None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own handler aborts the process
        self.slots = self._slots()
        resources = {"num_cpus": options.cpus, "num_gpus": options.gpus, "max_retries": 0}
        self._work = ray.remote(work).options(**resources)

    def _slots(self) -> int:
        """How many tasks the cluster has room for at once."""
        there, room = self._ray.cluster_resources(), []
        for name, each in (("CPU", self.options.cpus), ("GPU", self.options.gpus)):
            if each > there.get(name, 0):
                self._ray.shutdown()
                has = f"{there.get(name, 0):g} {name}s"
                raise ValueError(f"--{name.lower()}s {each:g} asks for more than the cluster has, {has}.")
            room += [int(there[name] // each)] if each else []
        return min(room)

    def call(self, task: Task) -> Result:
        """The result of a task."""
        self._running.add(running := self._work.remote(task))
        try:
            return self._ray.get(running)
        except self._own_error as error:  # a kind of `lost`, yet the worker has not died
            raise error.cause or RuntimeError(str(error)) from None
        finally:
            self._running.discard(running)

    def __exit__(self, *problem: object) -> None:
        super().__exit__()
        for running in list(self._running):
            self._ray.cancel(running, force=True)
        self._ray.shutdown()


class _Slurm(_Executor):
    """Jobs of a SLURM cluster, through submitit. Its files are pickled: their folder is for the owner alone."""

    def __init__(self, options: Options, folder: Path):
        super().__init__(options)
        with needs("--on slurm", "slurm", "submitit"):
            import submitit
            from submitit.core.utils import FailedJobError, UncompletedJobError
        if options.cluster == "slurm" and shutil.which("srun") is None:
            raise ValueError("--on slurm needs SLURM's commands, and srun is not here: start it on a login node.")
        folder.mkdir(parents=True, mode=0o700)
        self._folder, self._lock, self._running = folder, threading.Lock(), set()
        self.lost, self._own_error = (UncompletedJobError,), FailedJobError
        self._executor = submitit.AutoExecutor(folder=folder, cluster=options.cluster)
        given: dict[str, Any] = {"timeout_min": math.ceil(options.minutes or SLURM_MINUTES), "name": "made"}
        given |= {"gpus_per_node": round(options.gpus)} if options.gpus else {}
        if options.partition is not None and options.cluster == "slurm":
            given["slurm_partition"] = options.partition
        self._executor.update_parameters(cpus_per_task=max(1, round(options.cpus)), **given)

    def call(self, task: Task) -> Result:
        """The result of a task."""
        with self._lock:
            job = self._executor.submit(work, task)
            self._running.add(job)
        try:
            return job.result()
        except self._own_error as error:  # a kind of `lost`, yet the worker has not died
            raise RuntimeError(str(error)) from None
        finally:
            self._running.discard(job)

    def __exit__(self, *problem: object) -> None:
        super().__exit__()
        for job in list(self._running):
            job.cancel(check=False)
        clear_partial(self._folder)
