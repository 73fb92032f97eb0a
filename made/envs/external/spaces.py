"""Gymnasium's spaces and vector environments as the rest of the package knows them: a Spec, and true successors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from made.core import Space, Spec


def space_of(space: Any) -> PyTree:
    """A Gymnasium space as Space leaves. Discrete values are int32, and 64 bits become 32 where JAX has no more."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {name: space_of(inner) for name, inner in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        if space.start != 0:
            raise ValueError(f"{space} starts at {space.start}: shift it to start at 0.")
        return Space((), jnp.int32, int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return Space(space.shape, jnp.int32, int(space.nvec.max()))
    if isinstance(space, spaces.Box):
        bounded = bool(np.isfinite(space.low).all() and np.isfinite(space.high).all())
        bounds = (float(space.low.min()), float(space.high.max())) if bounded else (None, None)
        dtype = jnp.float32 if np.issubdtype(space.dtype, np.floating) else jax.dtypes.canonicalize_dtype(space.dtype)
        return Space(space.shape, dtype, None, *bounds)
    raise ValueError(
        f"{type(space).__name__} spaces are not supported: use Discrete, MultiDiscrete, Box or Dict, and leave any "
        "other part out with a wrapper."
    )


def spec_of(obs_space: Any, action_space: Any, horizon: int | None = None) -> Spec:
    """The Spec of one environment from its Gymnasium spaces, or from our own."""
    action = action_space if isinstance(action_space, Space) else space_of(action_space)
    if not isinstance(action, Space):
        raise ValueError(f"The action space {action_space} has parts: a bonus reads Discrete, MultiDiscrete or Box.")
    ours = isinstance(obs_space, Space) or (isinstance(obs_space, dict) and _all_spaces(obs_space))
    return Spec(obs_space if ours else space_of(obs_space), action, horizon=horizon)


def _all_spaces(tree: Any) -> bool:
    return all(_all_spaces(x) if isinstance(x, dict) else isinstance(x, Space) for x in tree.values())


class HostEnvironment:
    """A Gymnasium vector environment as a source of experience."""

    def __init__(self, venv: Any):
        from gymnasium.vector import AutoresetMode

        mode = venv.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.SAME_STEP:
            raise ValueError(
                f"This vector environment has autoreset_mode {mode}; a bonus needs the true successor, which only "
                "SAME_STEP keeps (as final_obs). Make it with vector_kwargs={'autoreset_mode': SAME_STEP}."
            )
        self.venv, self.n_envs = venv, venv.num_envs
        self.spec = spec_of(venv.single_observation_space, venv.single_action_space)

    def within_bounds(self, action: np.ndarray) -> np.ndarray:
        """Continuous actions clipped to the bounds of each entry; a Spec knows the lowest and the highest alone."""
        space = self.venv.single_action_space
        return np.clip(action, space.low, space.high) if np.issubdtype(action.dtype, np.floating) else action


def true_successor(after: PyTree, info: dict[str, Any], done: np.ndarray) -> PyTree:
    """The observations that the actions led to: `final_obs` where an episode ended, what was returned elsewhere."""
    if not done.any():
        return after
    if "final_obs" not in info:
        raise ValueError(
            "An episode ended without info['final_obs']: use Gymnasium 1.1 or later with SAME_STEP autoreset."
        )
    return replace_rows(after, list(info["final_obs"]), done)


def replace_rows(rows: PyTree, others: list, where: np.ndarray) -> PyTree:
    """`rows` with the entries of `others` where `where` is set; observations may be dictionaries."""
    if isinstance(rows, dict):
        return {name: replace_rows(x, [o if o is None else o[name] for o in others], where) for name, x in rows.items()}
    rows = np.array(rows)
    rows[where] = np.stack([np.asarray(others[i]) for i in np.flatnonzero(where)])
    return rows
