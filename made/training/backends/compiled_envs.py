"""One run on many seeds as one program: `vmap` over the seeds, a loop over the updates of a row."""

from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from made.core import Metrics, trees
from made.training.on_policy import RunConfig, RunState, evaluate
from made.training.run_batch import mean_weight

COUNTED = ("episodes", "pool_reused")  # numbers of episodes, added up over a row
NO_FAILURE = jnp.iinfo(jnp.int32).max  # where a seed went wrong, when it did not
_APART = 0x6C6576  # sets the keys of evaluations apart from those of training


class MetricSums(NamedTuple):
    """What the updates of a row have added up to: total over weight is the value recorded."""

    total: Metrics
    weight: Metrics
    bad: Int[Array, ""]  # the first update whose loss was not finite


class LogRecord(NamedTuple):
    """What one row says of each seed, leaves [L]."""

    scalars: Metrics
    bad: Int[Array, " L"]  # NO_FAILURE, or the update in which something was not finite any more


def replicate(run: RunConfig, n: int) -> RunConfig:
    """The run n times over, as a stack of lanes. Numbers go through NumPy, which leaves no weak types."""
    return jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(np.asarray(x)), (n, *np.shape(x))), run)


def begin(lanes: RunConfig, seeds: Int[Array, " L"]) -> RunState:
    """The state of each seed before its first update, leaves [L, ...]."""
    state = jax.vmap(lambda run, seed: run.start(jax.random.key(seed)))(lanes, seeds)
    return jax.tree.map(strip_weak_type, state)


def strip_weak_type(x: Array) -> Array:
    """The same without a weak type: a state read from disk has none, and must fit the same compiled program."""
    return x if trees.is_key(x) else jax.lax.convert_element_type(x, x.dtype)


def advance(lanes: RunConfig, state: RunState, n: Int[Array, ""]) -> tuple[RunState, LogRecord]:
    """n updates of every seed, and what they measured. n is a number, not a shape: every row shares one program."""

    def lane(run: RunConfig, state: RunState) -> tuple[RunState, LogRecord]:
        scalars = jax.eval_shape(run.advance, state)[1]

        def update(_, carry: tuple[RunState, MetricSums]) -> tuple[RunState, MetricSums]:
            state, measured = run.advance(carry[0])
            return state, accumulate(carry[1], measured, state.k)

        state, sums = jax.lax.fori_loop(0, n, update, (state, zeros(scalars)))
        return state, row_of(run, state, sums)

    return jax.vmap(lane)(lanes, state)


def row_of(run: RunConfig, state: RunState, sums: MetricSums) -> LogRecord:
    """What the updates of a row say of one seed."""
    means = {name: x if name in COUNTED else _over(x, sums.weight[name]) for name, x in sums.total.items()}
    bad = jnp.where(_has_nan(state.agent), jnp.minimum(sums.bad, state.k), sums.bad)
    return LogRecord({**means, **run.snapshot(state)}, bad)


def zeros(scalars: Iterable[str]) -> MetricSums:
    """Before the first update of a row."""
    none = {name: jnp.zeros((), jnp.float32) for name in scalars}
    return MetricSums(none, none, jnp.int32(NO_FAILURE))


def accumulate(sums: MetricSums, measured: Metrics, k: Int[Array, ""]) -> MetricSums:
    """The sums with what one more update measured."""
    total, weight, bad = {}, {}, sums.bad
    for name, x in measured.items():
        finite = jnp.isfinite(x)
        if is_loss(name):
            bad = jnp.where(finite, bad, jnp.minimum(bad, k))
        share = jnp.where(finite, mean_weight(name, measured), 0.0).astype(jnp.float32)
        total[name] = sums.total[name] + jnp.where(finite, share * x, 0.0).astype(jnp.float32)
        weight[name] = sums.weight[name] + share
    return MetricSums(total, weight, bad)


def is_loss(name: str) -> bool:
    """Whether a scalar is a loss, which must stay finite; others may be NaN for want of data."""
    return "loss" in name.rsplit("/", 1)[-1]


def _over(total: Array, weight: Array) -> Float[Array, ""]:
    return jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1.0), jnp.nan)


def _has_nan(tree: PyTree) -> Bool[Array, ""]:
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.stack([jnp.isnan(x).any() for x in floats]).any() if floats else jnp.zeros((), bool)


def evaluate_seeds(lanes: RunConfig, state: RunState, seeds: Int[Array, " L"], episodes: int) -> Metrics:
    """Each seed on levels drawn from keys that training never uses; others at every update."""

    def lane(run: RunConfig, state: RunState, seed: Array) -> Metrics:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _APART), state.k)
        return evaluate(run, state, episodes, key)

    return jax.vmap(lane)(lanes, state, seeds)
