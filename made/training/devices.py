"""Where the lanes of a run live: on one device, seeds spread over several, or environments spread too.

Seeds know nothing of each other, so each device runs its own share of them (`jax.shard_map`). Where devices are left
over, the environments of a seed are spread: arrays are placed by environment and the compiler splits the program and
adds up what must be added. That is the same computation up to the order of its sums.
"""

import functools
import math
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from made.run import Run, RunState
from made.training import lanes

LANES, ENVS = "lanes", "envs"


def mesh_of(devices: int, seeds: int, n_envs: int) -> Mesh | None:
    """The devices as seeds x environments; None for one device."""
    there = len(jax.devices())
    if not 1 <= devices <= there:
        raise ValueError(f"--devices {devices} asks for more or less than there is: 1 to {there} can be used here.")
    if devices == 1:
        return None
    over_lanes = math.gcd(devices, seeds)
    over_envs = devices // over_lanes
    if n_envs % over_envs:
        raise ValueError(
            f"{seeds} seeds of {n_envs} environments cannot be spread evenly over {devices} devices: take a number of "
            f"seeds that {devices} divides, or of environments (--set n_envs=...) that {over_envs} divides."
        )
    kinds = (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh((over_lanes, over_envs), (LANES, ENVS), kinds, devices=jax.devices()[:devices])


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
    return jax.device_put(tree, where or NamedSharding(mesh, PartitionSpec(LANES)))


def compile_advance(runs: Run, like: RunState, mesh: Mesh | None) -> jax.stages.Compiled:
    """`lanes.advance` for states of these shapes, ready to be called."""
    shapes = (jax.eval_shape(lambda x: x, runs), like, jax.ShapeDtypeStruct((), "int32"))
    if mesh is None:
        program = jax.jit(lanes.advance, compiler_options=options(1))
        return program.lower(*shapes).compile()
    by_seed, everywhere = (NamedSharding(mesh, spec) for spec in (PartitionSpec(LANES), PartitionSpec()))
    where = places(like, mesh)
    ins, outs = (by_seed, where, everywhere), (where, by_seed)
    alone = mesh.shape[ENVS] == 1
    body = _per_device(lanes.advance, mesh, 2, PartitionSpec()) if alone else lanes.advance
    program = jax.jit(body, in_shardings=ins, out_shardings=outs, compiler_options=options(1))
    return program.lower(*shapes).compile()


def _per_device(body, mesh: Mesh, spread: int, *rest: PartitionSpec):
    """Each device works on its own seeds; the first `spread` arguments are split, the rest are not."""
    by_seed = PartitionSpec(LANES)
    ins = (*[by_seed] * spread, *rest)
    # The check of what varies over devices is off: seeds exchange nothing, and agents need not know of devices.
    return jax.shard_map(body, mesh=mesh, in_specs=ins, out_specs=by_seed, check_vma=False)


def examiner(episodes: int, mesh: Mesh | None):
    """`lanes.examine` as a compiled function of (lanes, state, seeds)."""
    examine = functools.partial(lanes.examine, episodes=episodes)
    if mesh is not None and mesh.shape[ENVS] == 1:
        examine = _per_device(examine, mesh, 3)
    return jax.jit(examine, compiler_options=options(1))


def options(level: int) -> dict[str, Any]:
    """How hard a CPU's compiler is to try: LLVM's higher levels cost more time than they gain (see made.trial).

    With networks too: the best of updates timed in turn at levels 1, 2 and 3 were alike to 3%, since products are
    library calls.
    """
    return {"xla_backend_optimization_level": level} if jax.default_backend() == "cpu" else {}
