"""Run many configurations and seeds as one compiled program."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from made.core import Metrics, trees
from made.core.config import config_id
from made.core.trial import EPISODE_MEANS, Record, Trial, rows_of, structure


def mean_weight(name: str, metrics: Metrics) -> Array:
    """How much one update counts in the mean of a log interval: its ended episodes for an episode mean, else 1.

    Updates in which few episodes end must not count as much as those in which many end: with long time limits the few
    are the early successes, and an unweighted mean of per-update means overstates the return.
    """
    return metrics["episodes"] if name in EPISODE_MEANS and "episodes" in metrics else jnp.ones(())


def group_by_program(trials: Sequence[Trial]) -> list[list[int]]:
    """The indices of trials that can run as lanes of one program, in order of first appearance.

    What the host steps has one configuration for all its seeds, so its numbers must be equal too.
    """
    found: dict[Any, list[int]] = {}
    for i, trial in enumerate(trials):
        found.setdefault((structure(trial), config_id(trial) if trial.on_host else ""), []).append(i)
    return list(found.values())


def run_batch(
    trials: Sequence[Trial],
    seeds: Sequence[int],
    on_rows: Callable[[int], None] | None = None,
    chunks: int = 8,
) -> list[Record]:
    """Run trials of equal structure as lanes, lane i with seed i. `on_rows` hears how many rows each chunk added.

    The program is cut into at most `chunks` equal pieces, so that progress can be shown with one compilation.
    """
    if len({structure(trial) for trial in trials}) != 1:
        raise ValueError(
            "Trials of a batch may differ in numbers only: sort them with made.training.run_batch.group_by_program."
        )
    rows = rows_of(trials[0])
    pieces = max(n for n in range(1, chunks + 1) if rows % n == 0)
    start, chunk = _programs()
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
    step = (1 + np.arange(rows)) * trials[0].every
    return [_record(columns, step, lane) for lane in range(len(trials))]


def _record(columns: dict[str, np.ndarray], step: np.ndarray, lane: int) -> Record:
    rows = {name: x[lane] for name, x in columns.items() if x.ndim == 2}
    arrays = {name: x[lane] for name, x in columns.items() if x.ndim > 2}
    return Record({"step": step, **rows}, arrays)


def _start(lanes: Trial, seeds: Array) -> PyTree:
    return jax.vmap(lambda trial, seed: trial.start(jax.random.key(seed)))(lanes, seeds)


def _chunk(lanes: Trial, state: PyTree, rows: int) -> tuple[PyTree, dict[str, Array]]:
    def lane(trial: Trial, state: PyTree):
        def row(state, _):
            state, scalars = jax.lax.scan(lambda s, _: trial.advance(s), state, None, trial.every)
            return state, _interval_means(scalars) | trial.snapshot(state)

        return jax.lax.scan(row, state, None, rows)

    return jax.vmap(lane)(lanes, state)


def _interval_means(metrics: Metrics) -> Metrics:
    """The mean of each metric over the updates of a log interval, leaves [every]; NaN marks an update without data."""
    weighted = [name for name in EPISODE_MEANS if name in metrics and "episodes" in metrics]
    means = {name: jnp.nanmean(x, axis=0) for name, x in metrics.items() if name not in weighted}
    for name in weighted:
        weight = jnp.where(jnp.isnan(metrics[name]), 0.0, mean_weight(name, metrics))
        total, episodes = (weight * jnp.nan_to_num(metrics[name])).sum(), weight.sum()
        means[name] = jnp.where(episodes > 0, total / jnp.maximum(episodes, 1), jnp.nan)
    return {name: means[name] for name in metrics}


@functools.cache
def _programs() -> tuple[Callable, Callable]:
    """The two programs, compiled with settings that suit the backend.

    On a CPU, LLVM's higher levels double the compile time and gain nothing on these small loops; `_start` runs once.
    """
    if jax.default_backend() != "cpu":
        return jax.jit(_start), jax.jit(_chunk, static_argnums=2)
    quick = lambda level: {"xla_backend_optimization_level": level}  # noqa: E731
    return (
        jax.jit(_start, compiler_options=quick(0)),
        jax.jit(_chunk, static_argnums=2, compiler_options=quick(1)),
    )
