"""One run of `made train` over several processes, on one machine or many: the same command on each, with its number.

Every process runs the same program on its own devices (`made.training.sharding`). The first alone touches the folder of
the run: it reads the checkpoint and sends it to the others, and it writes rows, checkpoints and pictures.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from made.core import trees
from made.training import memory, sharding, train_loop
from made.training.backends import compiled_envs
from made.training.loggers import Writer
from made.training.on_policy import RunState
from made.training.train_loop import Backend, TrainState
from made.training.train_plan import TrainPlan

WAIT_S = 120  # for the others to come
DEAD_S = 30  # without a sign of life from one of them, all end: JAX aborts what waits for it
T = TypeVar("T")


class ProcessGroup(NamedTuple):
    """What a process needs beside its programs: the mesh of all devices."""

    programs: Backend
    mesh: Mesh | None


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


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


def on_first_process(by_first: Callable[[], T]) -> T | None:
    """What the first process finds, None in the others. Where it refuses, all stop: nobody waits for it in vain."""
    found, refusal = None, None
    if is_first():
        try:
            found = by_first()
        except ValueError as error:
            refusal = error
    fine = bool(broadcast(np.int32(refusal is None)))
    if refusal is not None:
        raise refusal
    if not fine:
        raise ValueError("The first host refused this run, and its message says why.")
    return found


def broadcast(value: Any) -> Any:
    """A tree of numbers from the first process to all; the others give one of the same shapes."""
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(value)


def prepare(plan: TrainPlan, count: int | None) -> ProcessGroup:
    """`session.prepare` for the devices of all processes; whether the run fits is said by the first."""
    count = jax.device_count() if count is None else count
    mesh = sharding.mesh_of(count, len(plan.seeds), plan.run.n_envs)
    runs, seeds = compiled_envs.replicate(plan.run, len(plan.seeds)), jnp.asarray(plan.seeds, jnp.uint32)
    like = jax.eval_shape(compiled_envs.begin, runs, seeds)
    each = count // jax.process_count()
    on_first_process(
        lambda: memory.demand(2 * memory.size_of(like) // count, memory.free(each), len(plan.seeds), exact=False)
    )
    advance = sharding.compile_advance(runs, like, mesh)
    on_first_process(lambda: memory.demand(memory.needed(advance), memory.free(each), len(plan.seeds)))
    where = None if mesh is None else sharding.places(like, mesh)
    put = lambda state: sharding.place(state, mesh, where)  # noqa: E731
    begin, examine = sharding.compile_begin(mesh, where), sharding.examiner(plan.episodes, mesh)
    runs, seeds = sharding.place(runs, mesh), sharding.place(seeds, mesh)
    return ProcessGroup(Backend(runs, seeds, like, begin, advance, examine, put), mesh)


def restore_or_init(plan: TrainPlan, all_of: ProcessGroup, out: Path) -> TrainState:
    """Where the run stands: the first process reads the folder and sends the others what it read."""
    programs = all_of.programs
    alone = programs._replace(begin=lambda runs, seeds: None, place=lambda state: state)
    found = on_first_process(lambda: train_loop.restore_or_init(plan, alone, out))
    update, seconds = broadcast((np.int32(found.update if found else 0), np.float32(found.seconds if found else 0)))
    if not update:
        return TrainState(programs.begin(programs.runs, programs.seeds), 0, 0.0)
    blank = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(_numbers, programs.like))
    numbers = broadcast(_numbers(found.state) if found else blank)
    state = jax.tree.map(_like, numbers, programs.like)
    return TrainState(programs.place(state), int(update), found.seconds if found else float(seconds))


def _numbers(state: RunState) -> Any:
    return jax.tree.map(lambda x: jax.random.key_data(x) if trees.is_key(x) else x, state)


def _like(numbers: Any, shape: jax.ShapeDtypeStruct) -> Any:
    return jax.random.wrap_key_data(jnp.asarray(numbers)) if trees.is_key(shape) else numbers


def train(
    plan: TrainPlan,
    all_of: ProcessGroup,
    train_state: TrainState,
    out: Path,
    writers: Sequence[Writer],
    show: Callable[..., None],
) -> TrainState:
    """`train_loop.train` in step with the other processes: all gather the state where it is due, the first saves it."""

    def keep(plan: TrainPlan, train_state: TrainState, out: Path, writers: Sequence[Writer]) -> None:
        whole = train_state._replace(state=sharding.gathered(train_state.state, all_of.mesh))
        on_first_process(lambda: train_loop.save(plan, whole, out, writers))

    plan = plan._replace(checkpoint_seconds=math.inf)  # by its own clock a process would gather alone, and wait
    return train_loop.train(plan, all_of.programs, train_state, out, writers, show, keep)


def follow(plan: TrainPlan, all_of: ProcessGroup, train_state: TrainState, out: Path) -> TrainState:
    """What every process but the first does: the same, without a word and without a file."""
    return train(plan, all_of, train_state, out, [], lambda lines: None)
