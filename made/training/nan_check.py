"""Stop a run when a loss, a reward or a parameter is not finite.

The compiled program checks the loss in every update (`made.training.backends.compiled_envs`). Returns and parameters
are checked once per log record, before the record and any checkpoint are written.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from made.training import checkpoint, run_dir
from made.training.backends import TrainPlan, compiled_envs

LEARNS = ("agent", "bonus", "learners", "came")  # the fields of a state that hold parameters, or rewards on their way
_MOST_NAMED = 3  # quantities of a kind, in one error


class NaNCheck:
    """Checks a run after each log interval. What is not finite before the first one, such as a best score, may stay."""

    def __init__(self, plan: TrainPlan, state: PyTree, out: Path | None):
        self.plan, self.out = plan, out
        self._ignored = frozenset(non_finite_leaves(state))

    def check(self, bad: np.ndarray, scalars: Mapping[str, np.ndarray], state: PyTree, update: int) -> None:
        """Raise an error that names the update, the quantity and the last good checkpoint."""
        non_finite = [name for name in non_finite_leaves(state) if name not in self._ignored]
        rewards = np.zeros(len(self.plan.seeds), bool)
        if "return" in scalars and "episodes" in scalars:  # episodes ended and none of their returns was finite
            rewards = ~np.isfinite(scalars["return"]) & (scalars["episodes"] > 0)
        bad = np.where(rewards, np.minimum(bad, update), bad)
        if non_finite and (bad == compiled_envs.NO_FAILURE).all():  # all seeds are one program: any of them will do
            bad = np.full_like(bad, update)
        lane = int(bad.argmin())
        wrong = [name for name, x in scalars.items() if np.ndim(x) and not np.isfinite(x[lane])]
        kinds = {  # rewards come before what was learned from them
            "a reward": ["return"] if rewards[lane] else [],
            "a bonus": [name for name in wrong if name == "bonus"],
            "a loss": [name for name in wrong if compiled_envs.is_loss(name)],
            "parameters": non_finite,
        }
        named = [f"{kind} ({', '.join(names[:_MOST_NAMED])})" for kind, names in kinds.items() if names]
        kept = [] if self.out is None else checkpoint.files(self.out / run_dir.CHECKPOINTS)
        raise_if_nan(self.plan, bad, " and ".join(named) or "a loss", kept[-1] if kept else None)


def non_finite_leaves(state: PyTree) -> list[str]:
    """The paths of all leaves that learn and hold a NaN or an infinity."""
    parts = {name: getattr(state, name) for name in LEARNS if hasattr(state, name)}
    leaves = {
        jax.tree_util.keystr(path, simple=True, separator="."): x
        for path, x in jax.tree_util.tree_leaves_with_path(parts)
        if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
    }
    on_device = {name: x for name, x in leaves.items() if isinstance(x, jax.Array)}
    found = dict(zip(on_device, np.asarray(_not_finite([*on_device.values()])), strict=True)) if on_device else {}
    return [name for name, x in leaves.items() if (found[name] if name in found else not np.isfinite(x).all())]


@jax.jit
def _not_finite(arrays: Sequence[Array]) -> Bool[Array, " n"]:
    return jnp.stack([~jnp.isfinite(x).all() for x in arrays])


def raise_if_nan(
    plan: TrainPlan, bad: np.ndarray, what: str = "a loss or parameters", kept: Path | None = None
) -> None:
    """Raise an error if a seed failed, at the update that `bad` names for it, before that state is written anywhere."""
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
