"""Compiled environments: all updates up to a log record as one program, vectorized over runs.

`CompiledBackend` trains the seeds of one configuration. `run_batch` runs many configurations, without a folder.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, PyTree

from made.core import Metrics, trees
from made.core.config import config_id
from made.core.trial import EPISODE_MEANS, Record, Trial, rows_of, structure
from made.training import memory, sharding
from made.training.backends import NO_FAILURE, Backend, LogRecord, TrainPlan, is_loss
from made.training.on_policy import RunConfig, RunState, evaluate
from made.training.sharding import ENVS, LANES

COUNTED = ("episodes", "pool_reused")  # numbers of episodes, added up over a log interval
_APART = 0x6C6576  # sets the keys of evaluations apart from those of training


class MetricSums(NamedTuple):
    """What the updates of a log interval add up to: total over weight is the value recorded."""

    total: Metrics
    weight: Metrics
    bad: Int[Array, ""]  # the first update whose loss was not finite


class CompiledBackend(Backend):
    """Compiled environments on one device or several, of one process or several.

    Raises an error for a run that does not fit into memory, before anything is run. `compiling` is called once
    everything is validated that can be without compiling.
    """

    def __init__(self, plan: TrainPlan, devices: int = 1, compiling: Callable[[], None] = lambda: None):
        n, processes = len(plan.seeds), jax.process_count()
        self._mesh = sharding.mesh_of(devices, n, plan.run.n_envs)
        runs, seeds = replicate(plan.run, n), jnp.asarray(plan.seeds, jnp.uint32)
        self._like = jax.eval_shape(begin, runs, seeds)
        free = memory.free(devices // processes)
        least = 2 * memory.size_of(self._like) // devices  # before an update and after it; known without compiling
        sharding.on_first_process(lambda: memory.demand(least, free, n, exact=False))
        compiling()
        self._advance = compile_advance(runs, self._like, self._mesh)
        sharding.on_first_process(lambda: memory.demand(memory.needed(self._advance), free, n))
        self._where = None if self._mesh is None else sharding.places(self._like, self._mesh)
        outs: dict[str, Any] = {"out_shardings": self._where} if processes > 1 else {}
        self._begin = jax.jit(begin, compiler_options=sharding.options(0), **outs)
        self._evaluate = compile_evaluation(plan.episodes, self._mesh)
        self.runs, self.seeds = sharding.place(runs, self._mesh), sharding.place(seeds, self._mesh)

    def like(self) -> RunState:
        return self._like

    def init(self) -> RunState:
        state = self._begin(self.runs, self.seeds)
        return state if jax.process_count() > 1 else self.put(state)

    def put(self, state: RunState) -> RunState:
        return sharding.place(state, self._mesh, self._where)

    def fetch(self, state: RunState) -> RunState:
        return sharding.gathered(state, self._mesh)

    def advance(self, state: RunState, n: int) -> tuple[RunState, LogRecord]:
        return self._advance(self.runs, state, jnp.int32(n))

    def evaluate(self, state: RunState) -> Metrics:
        return self._evaluate(self.runs, state, self.seeds)


def compile_advance(runs: RunConfig, like: RunState, mesh: Mesh | None) -> jax.stages.Compiled:
    """`advance` for states of these shapes, ready to be called."""
    shapes = (jax.eval_shape(lambda x: x, runs), like, jax.ShapeDtypeStruct((), "int32"))
    body, more = advance, dict[str, Any]()
    if mesh is not None:
        by_seed, everywhere = (NamedSharding(mesh, spec) for spec in (PartitionSpec(LANES), PartitionSpec()))
        where = sharding.places(like, mesh)
        outs = (where, by_seed if jax.process_count() == 1 else everywhere)
        more = {"in_shardings": (by_seed, where, everywhere), "out_shardings": outs}
        body = _per_device(advance, mesh, PartitionSpec(LANES), PartitionSpec(LANES), PartitionSpec())
    return jax.jit(body, compiler_options=sharding.options(1), **more).lower(*shapes).compile()


def compile_evaluation(episodes: int, mesh: Mesh | None) -> Callable:
    """`evaluate_seeds` as a compiled function of (runs, state, seeds)."""
    body: Any = functools.partial(evaluate_seeds, episodes=episodes)
    more: dict[str, Any] = {}
    if mesh is not None:
        body = _per_device(body, mesh, *[PartitionSpec(LANES)] * 3)
        more = {"out_shardings": NamedSharding(mesh, PartitionSpec())} if jax.process_count() > 1 else {}
    return jax.jit(body, compiler_options=sharding.options(1), **more)


def _per_device(body: Any, mesh: Mesh, *specs: PartitionSpec) -> Any:
    """Each device works on its own seeds, unless the environments of a seed are spread too."""
    if mesh.shape[ENVS] > 1:
        return body
    # The check of what varies over devices is off: seeds exchange nothing, and agents need not know of devices.
    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(LANES), check_vma=False)


def replicate(run: RunConfig, n: int) -> RunConfig:
    """The run n times over, stacked. Numbers go through NumPy, which leaves no weak types."""
    return jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(np.asarray(x)), (n, *np.shape(x))), run)


def begin(lanes: Trial, seeds: Int[Array, " L"]) -> Any:
    """The state of each run before its first update, leaves [L, ...]."""
    return jax.tree.map(strip_weak_type, jax.vmap(lambda run, seed: run.start(jax.random.key(seed)))(lanes, seeds))


def strip_weak_type(x: Array) -> Array:
    """The same without a weak type: a state read from disk has none, and must fit the same compiled program."""
    return x if trees.is_key(x) else jax.lax.convert_element_type(x, x.dtype)


def advance(lanes: RunConfig, state: RunState, n: Int[Array, ""]) -> tuple[RunState, LogRecord]:
    """n updates of every seed, and what they measured. n is traced, so every log interval shares one program."""

    def lane(run: RunConfig, state: RunState) -> tuple[RunState, LogRecord]:
        state, sums = run_interval(run, state, n)
        return state, row_of(run, state, sums)

    return jax.vmap(lane)(lanes, state)


def run_interval(trial: Trial, state: Any, n: Int[Array, ""] | int) -> tuple[Any, MetricSums]:
    """n iterations of one trial, and the sums of what they measured."""

    def update(i: Int[Array, ""], carry: tuple[Any, MetricSums]) -> tuple[Any, MetricSums]:
        state, measured = trial.advance(carry[0])
        return state, accumulate(carry[1], measured, getattr(state, "k", i))

    return jax.lax.fori_loop(0, n, update, (state, zeros(jax.eval_shape(trial.advance, state)[1])))


def row_of(run: RunConfig, state: RunState, sums: MetricSums) -> LogRecord:
    """The log record of one seed."""
    floats = [x for x in jax.tree.leaves(state.agent) if jnp.issubdtype(x.dtype, jnp.floating)]
    has_nan = jnp.stack([jnp.isnan(x).any() for x in floats]).any() if floats else jnp.zeros((), bool)
    bad = jnp.where(has_nan, jnp.minimum(sums.bad, state.k), sums.bad)
    return LogRecord({**means(sums, COUNTED), **run.snapshot(state)}, bad)


def zeros(scalars: Iterable[str]) -> MetricSums:
    """Before the first update of a log interval."""
    none = {name: jnp.zeros((), float) for name in scalars}
    return MetricSums(none, none, jnp.int32(NO_FAILURE))


def accumulate(sums: MetricSums, measured: Metrics, k: Int[Array, ""]) -> MetricSums:
    """The sums with what one more update measured."""
    total, weight, bad = {}, {}, sums.bad
    for name, x in measured.items():
        finite = jnp.isfinite(x)
        if is_loss(name):
            bad = jnp.where(finite, bad, jnp.minimum(bad, k))
        # Updates in which few episodes end must not count as much as those in which many end: with long time limits
        # the few are the early successes, and an unweighted mean of per-update means overstates the return.
        by_episodes = name in EPISODE_MEANS and "episodes" in measured
        share = jnp.where(finite, measured["episodes"] if by_episodes else jnp.ones(()), 0.0).astype(float)
        total[name] = sums.total[name] + jnp.where(finite, share * x, 0.0).astype(float)
        weight[name] = sums.weight[name] + share
    return MetricSums(total, weight, bad)


def means(sums: MetricSums, counted: tuple[str, ...] = ()) -> Metrics:
    """The value of each metric in a log interval: its mean, or its sum if it is counted. NaN without data."""
    mean = lambda total, weight: jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1.0), jnp.nan)  # noqa: E731
    return {name: x if name in counted else mean(x, sums.weight[name]) for name, x in sums.total.items()}


def evaluate_seeds(lanes: RunConfig, state: RunState, seeds: Int[Array, " L"], episodes: int) -> Metrics:
    """Each seed on levels from keys that training never uses; others at every update."""

    def lane(run: RunConfig, state: RunState, seed: Array) -> Metrics:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _APART), state.k)
        return evaluate(run, state, episodes, key)

    return jax.vmap(lane)(lanes, state, seeds)


# Batches of runs


def group_by_program(trials: Sequence[Trial]) -> list[list[int]]:
    """The indices of trials that can run as lanes of one program, in order of first appearance.

    What the host steps has one configuration for all its seeds, so its numbers must be equal too.
    """
    found: dict[Any, list[int]] = {}
    for i, trial in enumerate(trials):
        found.setdefault((structure(trial), config_id(trial) if trial.on_host else ""), []).append(i)
    return list(found.values())


def run_batch(
    trials: Sequence[Trial], seeds: Sequence[int], on_rows: Callable[[int], None] | None = None, chunks: int = 8
) -> list[Record]:
    """Run trials of equal structure as one program, trial i with seed i. `on_rows` gets the new rows of each chunk.

    The program is cut into at most `chunks` equal pieces, so that progress can be shown with one compilation.
    """
    if len({structure(trial) for trial in trials}) != 1:
        raise ValueError(
            "Trials of a batch may differ in numbers only: sort them with group_by_program of "
            "made.training.backends.compiled_envs."
        )
    rows, every = rows_of(trials[0]), trials[0].every
    pieces = max(n for n in range(1, chunks + 1) if rows % n == 0)
    start, chunk = _batch_programs()
    with jax.enable_x64(trials[0].float64):
        lanes = trees.stack(trials)
        state = start(lanes, jnp.asarray(seeds, jnp.uint32))
        parts = []
        for _ in range(pieces):
            state, part = chunk(lanes, state, rows // pieces)
            parts.append(jax.tree.map(np.asarray, part))
            if on_rows is not None:
                on_rows(rows // pieces)
    columns = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
    step = {"step": (1 + np.arange(rows)) * every}
    scalars, arrays = ({name: x for name, x in columns.items() if (x.ndim > 2) == wide} for wide in (False, True))
    return [Record({**step, **trees.index(scalars, i)}, trees.index(arrays, i)) for i in range(len(trials))]


def _chunk(lanes: Trial, state: PyTree, rows: int) -> tuple[PyTree, dict[str, Array]]:
    def lane(trial: Trial, state: PyTree):
        def row(state, _):
            state, sums = run_interval(trial, state, trial.every)
            return state, means(sums) | trial.snapshot(state)

        return jax.lax.scan(row, state, None, rows)

    return jax.vmap(lane)(lanes, state)


@functools.cache
def _batch_programs() -> tuple[Callable, Callable]:
    """The programs of the first state and of a chunk. The first runs once, so it is compiled in little time."""
    start = jax.jit(begin, compiler_options=sharding.options(0))
    return start, jax.jit(_chunk, static_argnums=2, compiler_options=sharding.options(1))
