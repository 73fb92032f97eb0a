"""Run many configurations and seeds as one compiled program."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from made.core import trees
from made.core.config import config_id
from made.core.trial import Record, Trial, rows_of, structure
from made.training import sharding
from made.training.backends import compiled_envs


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


def _chunk(lanes: Trial, state: PyTree, rows: int) -> tuple[PyTree, dict[str, Array]]:
    def lane(trial: Trial, state: PyTree):
        def row(state, _):
            state, sums = compiled_envs.run_interval(trial, state, trial.every)
            return state, compiled_envs.means(sums) | trial.snapshot(state)

        return jax.lax.scan(row, state, None, rows)

    return jax.vmap(lane)(lanes, state)


@functools.cache
def _programs() -> tuple[Callable, Callable]:
    """The programs of the first state and of a chunk. The first runs once, so it is compiled in little time."""
    start = jax.jit(compiled_envs.begin, compiler_options=sharding.options(0))
    return start, jax.jit(_chunk, static_argnums=2, compiler_options=sharding.options(1))
