"""Stop a run when a loss, a reward or a parameter is not finite.

The compiled program checks the loss in every update (`made.training.backends.compiled_envs`). Returns and parameters
are checked once per log record, before the record and any checkpoint are written.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from made.training import checkpoint, run_dir
from made.training.backends import TrainPlan, compiled_envs

LEARNS = ("agent", "bonus", "learners", "came")  # the fields of a state that hold parameters, or rewards on their way
_NAMED = 3  # quantities of a kind, in one sentence


class NaNCheck:
    """Looks at a run after each row. What is not finite before the first one (such as a best score) may stay so."""

    def __init__(self, plan: TrainPlan, state: PyTree, out: Path | None):
        self.plan, self.out = plan, out
        self._spared = frozenset(non_finite_leaves(state))

    def look(self, bad: np.ndarray, scalars: Mapping[str, np.ndarray], state: PyTree, update: int) -> None:
        """Stop where something is not finite, with the update, the quantity and the last good checkpoint."""
        non_finite = [name for name in non_finite_leaves(state) if name not in self._spared]
        paid = non_finite_rewards(scalars, len(self.plan.seeds))
        bad = np.where(paid, np.minimum(bad, update), bad)
        if (
            non_finite and (bad == compiled_envs.NO_FAILURE).all()
        ):  # which seed it is does not matter: all of them are one program
            bad = np.full_like(bad, update)
        kept = [] if self.out is None else checkpoint.files(self.out / run_dir.CHECKPOINTS)
        raise_if_nan(self.plan, bad, quantities(scalars, int(bad.argmin()), non_finite), kept[-1] if kept else None)


def non_finite_leaves(state: PyTree) -> list[str]:
    """The paths of all leaves that learn and hold a NaN or an infinity."""
    parts = {name: getattr(state, name) for name in LEARNS if hasattr(state, name)}
    named = [(_path(path), x) for path, x in jax.tree_util.tree_leaves_with_path(parts) if _is_float(x)]
    on_device = [x for _, x in named if isinstance(x, jax.Array)]
    found = iter(np.asarray(_not_finite(on_device)) if on_device else ())
    each = [(name, next(found) if isinstance(x, jax.Array) else not np.isfinite(x).all()) for name, x in named]
    return [name for name, is_wrong in each if is_wrong]


@jax.jit
def _not_finite(arrays: Sequence[Array]) -> Bool[Array, " n"]:
    return jnp.stack([~jnp.isfinite(x).all() for x in arrays])


def _is_float(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)


def _path(keys: tuple[Any, ...]) -> str:
    return ".".join(str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in keys)


def non_finite_rewards(scalars: Mapping[str, np.ndarray], seeds: int) -> np.ndarray:
    """For each seed whether episodes ended and none of their returns was finite; without an end there is none."""
    if "return" not in scalars or "episodes" not in scalars:
        return np.zeros(seeds, bool)
    return ~np.isfinite(scalars["return"]) & (scalars["episodes"] > 0)


def quantities(scalars: Mapping[str, np.ndarray], lane: int, non_finite: Sequence[str]) -> str:
    """In words what is not finite in the row of a lane: what was paid comes before what was learned from it."""
    bad = [name for name, x in scalars.items() if np.ndim(x) and not np.isfinite(x[lane])]
    kinds = {
        "a reward": ["return"] if non_finite_rewards(scalars, lane + 1)[lane] else [],
        "a bonus": [name for name in bad if name == "bonus"],
        "a loss": [name for name in bad if compiled_envs.is_loss(name)],
        "parameters": list(non_finite),
    }
    told = [f"{kind} ({', '.join(names[:_NAMED])})" for kind, names in kinds.items() if names]
    return " and ".join(told) or "a loss"


def raise_if_nan(
    plan: TrainPlan, bad: np.ndarray, what: str = "a loss or parameters", kept: Path | None = None
) -> None:
    """Stop where a seed went wrong, at the update that `bad` names for it, before that state is written anywhere."""
    first = int(bad.min())
    if first == compiled_envs.NO_FAILURE:
        return
    seed, frames = plan.seeds[int(bad.argmin())], first * plan.frames_per_update
    last = f"its last checkpoint, {kept}, from before that, is kept" if kept else "it had no checkpoint yet"
    be = "are" if "parameters" in what or " and " in what else "is"
    raise ValueError(
        f"Seed {seed} has {what} that {be} not finite at update {first:,} ({frames:,} frames): the run stopped, and "
        f"{last}; try a smaller learning rate or a smaller --bonus-coef."
    )
