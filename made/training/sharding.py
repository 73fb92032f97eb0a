"""Where the lanes of a run live: on one device, seeds spread over several, or environments spread too.

Seeds know nothing of each other, so each device runs its own share of them (`jax.shard_map`). Where devices are left
over, the environments of a seed are spread: arrays are placed by environment and the compiler splits the program and
adds up what must be added. That is the same computation up to the order of its sums.

The devices may belong to several processes (`made.training.backends.distributed`). Then every process makes the same
calls and holds the arrays of its own devices, and all of them get the metrics.
"""

import functools
import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from made.core import trees
from made.training.backends import compiled_envs
from made.training.on_policy import RunConfig, RunState

LANES, ENVS = "lanes", "envs"


def mesh_of(devices: int, seeds: int, n_envs: int) -> Mesh | None:
    """The devices as seeds x environments; None for one device."""
    demand(devices)
    if devices == 1 and jax.process_count() == 1:
        return None
    over_lanes = math.gcd(devices, seeds)
    over_envs = devices // over_lanes
    if n_envs % over_envs:
        raise ValueError(
            f"{seeds} seeds of {n_envs} environments cannot be spread evenly over {devices} devices: take a number of "
            f"seeds that {devices} divides, or of environments (--set n_envs=...) that {over_envs} divides."
        )
    kinds = (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh((over_lanes, over_envs), (LANES, ENVS), kinds, devices=_chosen(devices))


def demand(devices: int) -> None:
    """Refuse a number of devices that are not there."""
    there = len(jax.devices())
    if not 1 <= devices <= there:
        few, accepted = ("there is 1", "1") if there == 1 else (f"there are {there}", f"1 to {there}")
        raise ValueError(f"--devices {devices}, but {few} here: give {accepted}.")


def _chosen(devices: int) -> list[Any]:
    """So many devices, as many of each process."""
    processes = jax.process_count()
    if processes == 1:
        return jax.devices()[:devices]
    by_process = [[one for one in jax.devices() if one.process_index == i] for i in range(processes)]
    each, rest = divmod(devices, processes)
    if rest or each > min(map(len, by_process)):
        most = processes * min(map(len, by_process))
        raise ValueError(
            f"--devices {devices} is not the same number on each of {processes} hosts: up to {most} can be."
        )
    return [one for those in by_process for one in those[:each]]


def places(state: RunState, mesh: Mesh) -> RunState:
    """Where each array of a state [L, ...] goes: all by seed, and those of the environments [L, N, ...] by both."""
    by_seed, by_both = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((LANES,), (LANES, ENVS)))
    spread: dict[str, Any] = {name: jax.tree.map(lambda _: by_seed, part) for name, part in state._asdict().items()}
    for name in ("streams", "reserve"):
        spread[name] = jax.tree.map(lambda _: by_both, getattr(state, name))
    return RunState(**spread)


def place(tree: PyTree, mesh: Mesh | None, where: PyTree = None) -> PyTree:
    """The arrays on their devices: spread by seed unless `where` says otherwise."""
    if mesh is None:
        return jax.device_put(tree)
    by_seed = NamedSharding(mesh, PartitionSpec(LANES))
    if jax.process_count() == 1:
        return jax.device_put(tree, where or by_seed)
    return jax.tree.map(_spread, tree, where or jax.tree.map(lambda _: by_seed, tree))


def _spread(x: Any, where: NamedSharding) -> jax.Array:
    """An array that every process has whole, as one whose parts are on the devices of all processes."""
    if trees.is_key(x):
        data, kind = _spread(jax.random.key_data(x), where), jax.random.key_impl(x)
        return jax.jit(lambda numbers: jax.random.wrap_key_data(numbers, impl=kind), out_shardings=where)(data)
    whole = np.asarray(x)
    return jax.make_array_from_callback(whole.shape, where, lambda part: whole[part])


def gathered(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """The arrays, whole, on one device of this process; every process must ask."""
    if mesh is None or jax.process_count() == 1:
        return tree
    plain = lambda x: jax.random.key_data(x) if trees.is_key(x) else x  # noqa: E731
    everywhere = NamedSharding(mesh, PartitionSpec())
    numbers = jax.jit(lambda tree: jax.tree.map(plain, tree), out_shardings=everywhere)(tree)

    def own(x: jax.Array, was: jax.Array) -> jax.Array:
        mine = x.addressable_data(0)
        return jax.random.wrap_key_data(mine, impl=jax.random.key_impl(was)) if trees.is_key(was) else mine

    return jax.tree.map(own, numbers, tree)


def compile_begin(mesh: Mesh | None, where: PyTree) -> Any:
    """Compile `compiled_envs.begin` as a function of (lanes, seeds). With several processes its state is sharded."""
    if mesh is None or jax.process_count() == 1:
        return jax.jit(compiled_envs.begin, compiler_options=options(0))
    return jax.jit(compiled_envs.begin, out_shardings=where, compiler_options=options(0))


def compile_advance(runs: RunConfig, like: RunState, mesh: Mesh | None) -> jax.stages.Compiled:
    """`compiled_envs.advance` for states of these shapes, ready to be called."""
    shapes = (jax.eval_shape(lambda x: x, runs), like, jax.ShapeDtypeStruct((), "int32"))
    if mesh is None:
        program = jax.jit(compiled_envs.advance, compiler_options=options(1))
        return program.lower(*shapes).compile()
    by_seed, everywhere = (NamedSharding(mesh, spec) for spec in (PartitionSpec(LANES), PartitionSpec()))
    where = places(like, mesh)
    ins, outs = (by_seed, where, everywhere), (where, by_seed if jax.process_count() == 1 else everywhere)
    alone = mesh.shape[ENVS] == 1
    body = _per_device(compiled_envs.advance, mesh, 2, PartitionSpec()) if alone else compiled_envs.advance
    program = jax.jit(body, in_shardings=ins, out_shardings=outs, compiler_options=options(1))
    return program.lower(*shapes).compile()


def _per_device(body, mesh: Mesh, spread: int, *rest: PartitionSpec):
    """Each device works on its own seeds; the first `spread` arguments are split, the rest are not."""
    by_seed = PartitionSpec(LANES)
    ins = (*[by_seed] * spread, *rest)
    # The check of what varies over devices is off: seeds exchange nothing, and agents need not know of devices.
    return jax.shard_map(body, mesh=mesh, in_specs=ins, out_specs=by_seed, check_vma=False)


def examiner(episodes: int, mesh: Mesh | None):
    """`compiled_envs.evaluate_seeds` as a compiled function of (lanes, state, seeds)."""
    examine = functools.partial(compiled_envs.evaluate_seeds, episodes=episodes)
    if mesh is not None and mesh.shape[ENVS] == 1:
        examine = _per_device(examine, mesh, 3)
    if mesh is None or jax.process_count() == 1:
        return jax.jit(examine, compiler_options=options(1))
    to_all = NamedSharding(mesh, PartitionSpec())
    return jax.jit(examine, out_shardings=to_all, compiler_options=options(1))


def compiled(lowered: Iterable[jax.stages.Lowered]) -> list[jax.stages.Compiled]:
    """Several programs compiled side by side, which leaves Python free."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda one: one.compile(), lowered))


def options(level: int) -> dict[str, Any]:
    """How hard a CPU's compiler is to try: LLVM's higher levels cost more time than they gain (see made.core.trial).

    With networks too: the best of updates timed in turn at levels 1, 2 and 3 were alike to 3%, since products are
    library calls.
    """
    return {"xla_backend_optimization_level": level} if jax.default_backend() == "cpu" else {}
