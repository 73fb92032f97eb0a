"""Tasks that live outside compiled code, by name: "gym:..." is Gymnasium's, "envpool:..." is EnvPool's MiniGrid.

A `Hosted` task has a Spec like any environment, so that a `RunConfig` can be made of it. It is stepped through a
Gymnasium vector environment on the host, by `made.training.host.bonus.HostRollout`.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from made.core import Environment, Space, Spec
from made.core.plugins import install
from made.envs.minigrid import grid_ids

SOURCES = ("gym", "envpool")


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


def spec_of(obs_space: Any, action_space: Any) -> Spec:
    """The Spec of one environment from its Gymnasium spaces, or from our own."""
    action = action_space if isinstance(action_space, Space) else space_of(action_space)
    if not isinstance(action, Space):
        raise ValueError(f"The action space {action_space} has parts: a bonus reads Discrete, MultiDiscrete or Box.")
    leaves = jax.tree.leaves(obs_space, is_leaf=lambda x: isinstance(x, Space))
    return Spec(obs_space if all(isinstance(x, Space) for x in leaves) else space_of(obs_space), action)


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


def final_info(obs: PyTree, done: np.ndarray) -> dict[str, Any]:
    """The last observations of ended episodes, in the form of Gymnasium's own vector environments."""
    final = np.full(len(done), None, object)
    for i in np.flatnonzero(done):
        final[i] = jax.tree.map(lambda x, i=i: np.array(x[i]), obs)
    return {"final_obs": final, "_final_obs": done.copy(), "final_info": {}, "_final_info": done.copy()}


def replace_rows(rows: PyTree, others: list, where: np.ndarray) -> PyTree:
    """`rows` with the entries of `others` where `where` is set; observations may be dictionaries."""
    if isinstance(rows, dict):
        return {name: replace_rows(x, [o if o is None else o[name] for o in others], where) for name, x in rows.items()}
    rows = np.array(rows)
    rows[where] = np.stack([np.asarray(others[i]) for i in np.flatnonzero(where)])
    return rows


class Hosted(Environment):
    """A task of another library."""

    source: str = eqx.field(static=True)  # one of SOURCES
    task: str = eqx.field(static=True)  # its id there

    @property
    def spec(self) -> Spec:  # type: ignore[override]
        return _spec(self.source, self.task)

    def vector(self, n: int) -> HostEnvironment:
        """n of them side by side."""
        if self.source == "envpool":
            from made.envs.host_grids import EnvPoolGrids

            venv = EnvPoolGrids(self.task, n)
            horizon = venv.max_steps
        else:
            venv, horizon = _gym(self.task, n)
        env = HostEnvironment(venv)
        env.spec = env.spec._replace(horizon=horizon)
        return env

    def reset(self, key):
        raise ValueError(f"{self.source}:{self.task} cannot be compiled: step what `vector` returns with HostRollout.")

    def step(self, state, action, key):
        return self.reset(key)


@functools.cache
def _spec(source: str, task: str) -> Spec:
    env = Hosted(source, task).vector(1)
    env.venv.close()
    sizes = getattr(env.venv.single_action_space, "nvec", None)
    if sizes is not None and sizes.min() != sizes.max():
        raise ValueError(
            f"{source}:{task} has MultiDiscrete actions of unequal sizes {sizes.tolist()}; agents choose among equally "
            "many values for each entry. Wrap the environment so that all entries have one size."
        )
    return env.spec


def _gym(task: str, n: int):
    """(the vector environment, the clock that ends its episodes or None) of a Gymnasium id."""
    import gymnasium
    from gymnasium.vector import AutoresetMode

    if task.startswith("MiniGrid-"):
        from made.envs.host_grids import package_envs

        try:
            venv = package_envs(task, n)
        except ImportError:
            raise ValueError(f"gym:{task} needs the minigrid package: {install('grid')}.") from None
        return venv, int(venv.envs[0].unwrapped.max_steps)  # type: ignore[attr-defined]
    try:
        same = {"autoreset_mode": AutoresetMode.SAME_STEP}
        venv = gymnasium.make_vec(task, n, "sync", vector_kwargs=same)
    except (gymnasium.error.Error, ImportError) as error:
        raise ValueError(f"Gymnasium cannot make {task!r}: {error}") from error
    return venv, venv.envs[0].spec.max_episode_steps  # type: ignore[attr-defined]


def hosted(name: str) -> Hosted | None:
    """The task that a name such as gym:MultiRoom-N6 or gym:CartPole-v1 asks for; None for a name without a source.

    Tasks that are compiled here may go by their short name.
    """
    source, colon, task = name.partition(":")
    if not colon or source not in SOURCES:
        return None
    return Hosted(source, grid_ids().get(task.removeprefix("MiniGrid-"), task))
