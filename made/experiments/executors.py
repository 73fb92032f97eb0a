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
from collections.abc import Callable, Iterator, Mapping
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
from made.experiments.store import Scale, Store
from made.training.paths import MARKER
from made.training.sharding import use_compilation_cache

EXECUTORS = ("threads", "processes", "ray", "slurm")
# Options that only some executors read.
READ_BY = {"address": ("ray",), "cluster": ("slurm",), "partition": ("slurm",), "retries": EXECUTORS[1:]}
READ_BY |= dict.fromkeys(("cpus", "gpus"), ("ray", "slurm"))
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


class Workers(NamedTuple):
    """Workers that were started, and `slots` tasks at once that they have room for.

    `call` is `work` in a worker; several threads call it. It raises one of `lost` where the worker dies.
    """

    call: Callable[..., Result]
    lost: tuple[type[Exception], ...]
    slots: int


def work(
    name: str, scale: str, settings: tuple[str, ...], jobs: tuple[tuple[str, int], ...], store: str, deadline: float
) -> Result:
    """Run jobs of an experiment, each a label and a seed: what a worker does.

    `store` is for the checkpoints of runs that have some, and `deadline` a time of `time.time()`.
    """
    use_compilation_cache()
    study = Study(experiment(name), Scale(scale), settings)
    if unknown := [label for label, _ in jobs if label not in study.trials]:
        return Result([], {}, f"a worker has no configuration {unknown[0]!r}: install the driver's version of made")
    with contextlib.ExitStack() as stack:
        root = Path(store)
        if not (root / MARKER).exists():  # this machine does not see the store
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="made-")))
        return run_trials(Group(study, jobs), root, until=time.monotonic() + deadline - time.time())


@contextlib.contextmanager
def start(options: Options, store: Store, groups: int) -> Iterator[tuple[Callable[..., Result], int | None]]:
    """What `schedule` takes as `run` and `workers`; the workers end with the block. `groups` are to be run."""
    if options.on == "threads":
        yield run_trials, options.workers
        return
    tries, closed = options.retries + 1, threading.Event()

    def run(group: Group, root: Path, on_rows: Callable[..., None], until: float) -> Result:
        """Send a group to a worker and wait for its result. If the worker dies, the group is sent again."""
        study, why = group.study, ""
        names = (study.experiment.name, study.scale.value, study.settings, group.jobs)
        deadline = time.time() + until - time.monotonic()
        for losses in range(1, tries + 1):
            try:
                result = workers.call(*names, str(root.resolve()), deadline)
                on_rows(0 if result.error else len(result.records[0].rows["step"]))
                return result
            except (TimeLimitReached, DiskFull):
                raise
            except workers.lost as error:
                if closed.is_set():
                    raise
                why = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
                print(f"made: the worker of {group} died ({losses} of {tries}): {why}", file=sys.stderr, flush=True)
            except Exception as error:  # a worker that cannot import made
                return Result([], {}, reason(error))
        return Result([], {}, f"its worker died {tries} times, the last time: {why}")

    most = min(options.workers or (SLURM_JOBS if options.on == "slurm" else os.cpu_count() or 1), groups)
    open_workers = {"processes": _processes, "ray": _ray, "slurm": _slurm}[options.on]
    with open_workers(options, most, store) as workers:
        try:
            yield run, workers.slots
        finally:
            closed.set()


@contextlib.contextmanager
def _processes(options: Options, workers: int, store: Store) -> Iterator[Workers]:
    """Processes of this machine. Each thread of the driver has its own, so that a dead one takes no other job along."""
    own, pools, environment = threading.local(), [], device_part(workers)
    resource_tracker.ensure_running()  # at its start it unblocks the signals that `call` blocks

    def call(*task: Any) -> Result:
        if hasattr(signal, "pthread_sigmask"):  # Ctrl-C is for the driver, which ends its workers: they inherit this
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        if not hasattr(own, "pool"):
            spawn = multiprocessing.get_context("spawn")
            own.pool = ProcessPoolExecutor(1, spawn, initializer=_start_worker, initargs=(environment,))
            pools.append(own.pool)
        try:
            return own.pool.submit(work, *task).result()
        except BrokenProcessPool:
            del own.pool
            raise

    try:
        yield Workers(call, (BrokenProcessPool,), workers)
    finally:
        for pool in pools:
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


@contextlib.contextmanager
def _ray(options: Options, workers: int, store: Store) -> Iterator[Workers]:
    """A Ray cluster: that of `--address`, or a local one that ends with the block."""
    alone = options.address is None
    if "ray" not in sys.modules and alone:  # its ports are open to the network, so they take a random token
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    with needs("--on ray", "ray", "ray"):
        import ray
        from ray.exceptions import RayError, RayTaskError
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
    remote = ray.remote(work).options(num_cpus=options.cpus, num_gpus=options.gpus, max_retries=0)
    running = set()

    def call(*task: Any) -> Result:
        running.add(one := remote.remote(*task))
        try:
            return ray.get(one)
        except RayTaskError as error:  # a kind of `lost`, yet the worker has not died
            raise error.cause or RuntimeError(str(error)) from None
        finally:
            running.discard(one)

    try:
        yield Workers(call, (RayError,), _slots(options, ray.cluster_resources()))
    finally:
        for one in list(running):
            ray.cancel(one, force=True)
        ray.shutdown()


def _slots(options: Options, has: Mapping[str, float]) -> int:
    """How many tasks a Ray cluster with such resources has room for at once."""
    room = []
    for name, each in (("CPU", options.cpus), ("GPU", options.gpus)):
        if each > has.get(name, 0):
            most = f"{has.get(name, 0):g} {name}s"
            raise ValueError(f"--{name.lower()}s {each:g} asks for more than the cluster has, {most}.")
        room += [int(has[name] // each)] if each else []
    return min(room)


@contextlib.contextmanager
def _slurm(options: Options, workers: int, store: Store) -> Iterator[Workers]:
    """Jobs of a SLURM cluster, through submitit. Its files are pickled: their folder is for the owner alone."""
    with needs("--on slurm", "slurm", "submitit"):
        import submitit
        from submitit.core.utils import FailedJobError, UncompletedJobError
    if options.cluster == "slurm" and shutil.which("srun") is None:
        raise ValueError("--on slurm needs SLURM's commands, and srun is not here: start it on a login node.")
    folder = store.unfinished("slurm", secrets.token_hex(4)).resolve()
    folder.mkdir(parents=True, mode=0o700)
    executor = submitit.AutoExecutor(folder=folder, cluster=options.cluster)
    given: dict[str, Any] = {"timeout_min": math.ceil(options.minutes or SLURM_MINUTES), "name": "made"}
    given |= {"gpus_per_node": round(options.gpus)} if options.gpus else {}
    if options.partition is not None and options.cluster == "slurm":
        given["slurm_partition"] = options.partition
    executor.update_parameters(cpus_per_task=max(1, round(options.cpus)), **given)
    lock, running = threading.Lock(), set()

    def call(*task: Any) -> Result:
        with lock:
            running.add(job := executor.submit(work, *task))
        try:
            return job.result()
        except FailedJobError as error:  # a kind of `lost`, yet the worker has not died
            raise RuntimeError(str(error)) from None
        finally:
            running.discard(job)

    try:
        yield Workers(call, (UncompletedJobError,), workers)
    finally:
        for job in list(running):
            job.cancel(check=False)
        clear_partial(folder)
