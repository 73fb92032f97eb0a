"""Where the arrays of a run are, on one device or spread over devices and processes; how programs are compiled.

Seeds are independent, so each device runs its own part of them (`jax.shard_map`). If there are more devices than seeds,
the environments of a seed are spread: arrays are placed by environment and the compiler splits the program and adds up
what must be added. That is the same computation up to the order of its sums.

The devices may belong to several processes. Then every process makes the same calls and holds the arrays of its own
devices, and all of them get the metrics.
"""

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from filelock import FileLock, Timeout
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from made.core import trees
from made.training.on_policy import RunState

LANES, ENVS = "lanes", "envs"
WAIT_S = 120  # for the other processes to join
DEAD_S = 30  # without a sign of life from one of them, all end: JAX aborts what waits for it
T = TypeVar("T")


def mesh_of(devices: int, seeds: int, n_envs: int) -> Mesh | None:
    """The devices as seeds x environments; None for one device."""
    there = len(jax.devices())
    if not 1 <= devices <= there:
        few, accepted = ("there is 1", "1") if there == 1 else (f"there are {there}", f"1 to {there}")
        raise ValueError(f"--devices {devices}, but {few} here: give {accepted}.")
    if devices == 1 and jax.process_count() == 1:
        return None
    over_lanes = math.gcd(devices, seeds)
    over_envs = devices // over_lanes
    if n_envs % over_envs:
        raise ValueError(
            f"{seeds} seeds of {n_envs} environments cannot be spread evenly over {devices} devices: take a number of "
            f"seeds that {devices} divides, or of environments (--set n_envs=...) that {over_envs} divides."
        )
    processes, kinds = jax.process_count(), (AxisType.Auto, AxisType.Auto)
    by_process = [[one for one in jax.devices() if one.process_index == i] for i in range(processes)]
    each, rest = divmod(devices, processes)
    most = min(map(len, by_process))
    if rest or each > most:
        raise ValueError(
            f"--devices {devices} is not the same number on each of {processes} hosts: up to {processes * most} can be."
        )
    chosen = [one for those in by_process for one in those[:each]]
    return jax.make_mesh((over_lanes, over_envs), (LANES, ENVS), kinds, devices=chosen)


def places(state: RunState, mesh: Mesh) -> RunState:
    """Where each array of a state [L, ...] goes: all by seed, and those of the environments [L, N, ...] by both."""
    by_seed, by_both = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((LANES,), (LANES, ENVS)))
    spread = jax.tree.map(lambda _: by_seed, state)
    both = {name: jax.tree.map(lambda _: by_both, getattr(state, name)) for name in ("streams", "reserve")}
    return spread._replace(**both)


def place(tree: PyTree, mesh: Mesh | None, where: PyTree = None) -> PyTree:
    """The arrays on their devices: spread by seed unless `where` says otherwise."""
    if mesh is None:
        return jax.device_put(tree)
    by_seed = NamedSharding(mesh, PartitionSpec(LANES))
    if jax.process_count() == 1:
        return jax.device_put(tree, where or by_seed)
    return jax.tree.map(_spread, tree, where or jax.tree.map(lambda _: by_seed, tree))


def _spread(x: Any, where: NamedSharding) -> jax.Array:
    """An array that every process holds, as one whose parts are on the devices of all processes."""
    if trees.is_key(x):
        data = _spread(trees.key_data(x), where)
        return jax.jit(lambda data: trees.wrap_key_data(data, x), out_shardings=where)(data)
    complete = np.asarray(x)
    return jax.make_array_from_callback(complete.shape, where, lambda part: complete[part])


def gathered(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """The complete arrays on one device of this process; every process must call this."""
    if mesh is None or jax.process_count() == 1:
        return tree
    everywhere = NamedSharding(mesh, PartitionSpec())
    data = jax.jit(lambda tree: jax.tree.map(trees.key_data, tree), out_shardings=everywhere)(tree)
    return jax.tree.map(lambda x, like: trees.wrap_key_data(x.addressable_data(0), like), data, tree)


# Compilation

LOCK_S = 600.0  # longest wait for another process: one that takes longer is no longer compiling
_thread = threading.local()


def use_compilation_cache() -> None:
    """Compiled programs outlive the process. MADE_CACHE names another folder; an empty value turns the cache off."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "made"
    if folder := os.environ.get("MADE_CACHE", str(default)):
        jax.config.update("jax_compilation_cache_dir", str(Path(folder) / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@contextlib.contextmanager
def compile_lock() -> Iterator[None]:
    """Keep other processes with the same folder of compiled programs from compiling for a GPU while the block runs.

    XLA times kernels while it compiles and keeps the fastest. Two processes that do so at the same moment disturb each
    other: the gradient of one layer then took 1 ms in place of 80 us, for the whole run. In turn, each finds the
    choices of those before it in the folder. The operating system releases the lock of a killed process. On a CPU,
    without such a folder and where files cannot be locked there is no lock.
    """
    folder = getattr(jax.config, "jax_compilation_cache_dir", None)
    with contextlib.ExitStack() as held:
        if folder and jax.default_backend() != "cpu":
            over = getattr(_thread, "over", threading.Event())
            lock = FileLock(Path(folder) / ".compiling", timeout=LOCK_S, poll_interval=0.2)
            try:
                Path(folder).mkdir(parents=True, exist_ok=True)
                held.enter_context(lock.acquire(cancel_check=over.is_set))
            except Timeout:
                if over.is_set():
                    raise KeyboardInterrupt from None
            except OSError:
                pass  # the folder cannot be locked: programs are compiled at the same time
        yield


def cancel_on(over: threading.Event) -> None:
    """This thread gives up waiting once that is set. Ctrl-C reaches the main thread alone, which then sets it."""
    _thread.over = over


def compiled(lowered: Iterable[jax.stages.Lowered]) -> list[jax.stages.Compiled]:
    """Several programs compiled in parallel threads; XLA releases the GIL."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda one: one.compile(), lowered))


def options(level: int) -> dict[str, Any]:
    """Compiler options for LLVM's optimization level on a CPU: higher levels cost more time than they gain.

    That holds for networks too: their matmuls are library calls, and updates at levels 1, 2 and 3 differed by 3%.
    """
    return {"xla_backend_optimization_level": level} if jax.default_backend() == "cpu" else {}


# Several processes, on one machine or many: the same command on each, with its number. Every process runs the same
# program on its own devices. Only the first reads and writes the folder of the run.


@contextlib.contextmanager
def join_processes(hosts: int, host: int, coordinator: str) -> Iterator[None]:
    """Be process `host` of `hosts` while the block runs; call it before anything is computed.

    The first listens at `coordinator` and nowhere else, so that an address such as 127.0.0.1:9911 stays inside.
    """
    if hosts < 1:
        raise ValueError(f"--hosts must be at least 1, got {hosts}.")
    if hosts < 2 or not 0 <= host < hosts:
        raise ValueError(
            f"--host {host} needs --hosts of 2 or more, and lies between 0 and --hosts less 1; got --hosts {hosts}."
        )
    name, colon, port = coordinator.rpartition(":")
    if not (colon and name and port.isdigit()):
        raise ValueError(
            f"--coordinator takes ADDRESS:PORT of the first host, such as 127.0.0.1:9911, not {coordinator!r}."
        )
    try:
        jax.distributed.initialize(
            coordinator,
            hosts,
            host,
            coordinator_bind_address=coordinator,
            initialization_timeout=WAIT_S,
            heartbeat_timeout_seconds=DEAD_S,
        )
    except RuntimeError as error:
        why = " ".join(str(error).split())[:200]
        raise ValueError(f"The {hosts} hosts did not meet at {coordinator}: {why}") from None
    try:
        yield
    finally:
        jax.distributed.shutdown()


def on_first_process(by_first: Callable[[], T]) -> T | None:
    """What the first process returns, None in the others. If it raises ValueError, every process raises."""
    if jax.process_count() == 1:
        return by_first()
    found, refusal = None, None
    if jax.process_index() == 0:
        try:
            found = by_first()
        except ValueError as error:
            refusal = error
    fine = bool(broadcast(np.int32(refusal is None)))
    if refusal is not None:
        raise refusal
    if not fine:
        raise ValueError("The first host rejected this run, and its message says why.")
    return found


def broadcast(value: Any) -> Any:
    """A tree of numbers from the first process to all; the others give one of the same shapes."""
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(value)


def from_first_process(state: PyTree | None, like: PyTree) -> PyTree:
    """The state that the first process read, for shapes `like`; the others give None."""
    if state is None:
        shapes = jax.eval_shape(lambda state: jax.tree.map(trees.key_data, state), like)
        state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    return jax.tree.map(trees.wrap_key_data, broadcast(jax.tree.map(trees.key_data, state)), like)
