"""Compiled environments as a `gymnasium.Env` or `VectorEnv`, and a bonus for the rewards of any vector environment.

    import gymnasium, made.adapters.gymnasium
    env = gymnasium.make("made/MiniGrid-MultiRoom-N6-v0")
    envs = gymnasium.make_vec("made/MiniGrid-MultiRoom-N6-v0", num_envs=64)
    envs = made.adapters.gymnasium.BonusVectorWrapper(envs, "made", coef=0.1)

Importing this module registers all grids under `made/`.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from jaxtyping import PyTree

from made.adapters.reward_mixer import Mode, RewardMixer, SavesBonus
from made.core import Bonus, Environment, Space, trees
from made.envs.host_env import final_info, true_successor
from made.envs.minigrid import GRIDS, Grid, make_grid
from made.training.host.bonus import HostBonus

PREFIX = "made/"
LEAST_POOL = 256  # fresh episodes drawn at a time: one call for many resets


def gym_space(space: PyTree) -> gymnasium.Space:
    """Our Space, or a dictionary of them, as a Gymnasium space."""
    if isinstance(space, dict):
        return spaces.Dict({name: gym_space(inner) for name, inner in space.items()})
    if space.n is not None:
        return spaces.MultiDiscrete(np.full(space.shape, space.n)) if space.shape else spaces.Discrete(space.n)
    dtype = np.dtype(space.dtype)
    if np.issubdtype(dtype, np.integer):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    else:
        low, high = (-np.inf if space.low is None else space.low), (np.inf if space.high is None else space.high)
    return spaces.Box(low, high, space.shape, dtype.type)


def _numpy(obs: PyTree, spaces: PyTree) -> PyTree:
    """Observations as Gymnasium wants them: NumPy arrays, and single discrete values as int64."""
    return jax.tree.map(
        lambda space, x: np.asarray(x, np.int64) if space.n is not None else np.asarray(x),
        spaces, obs, is_leaf=lambda x: isinstance(x, Space),
    )  # fmt: skip


def _key(env: Any) -> jax.Array:
    return jax.random.key(env.np_random.integers(2**32, dtype=np.uint32))


class CompiledEnv(gymnasium.Env):
    """One compiled environment, one step a call. For speed use the vector form: one call steps them all."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, env: Environment, render_mode: str | None = None):
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode {render_mode!r} is not there: use 'rgb_array' or None.")
        if render_mode is not None and not isinstance(env, Grid):
            raise ValueError(f"Only grids can be rendered, not {type(env).__name__}: use render_mode=None.")
        self._env, self.render_mode = env, render_mode
        self.observation_space, self.action_space = gym_space(env.spec.obs), gym_space(env.spec.action)
        self._reset = jax.jit(lambda key: env.reset(key))  # a bound method would be hashed, arrays and all
        self._step = jax.jit(lambda state, action, key: env.step(state, action, key))
        self._state = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._state, obs = self._reset(_key(self))
        return _numpy(obs, self._env.spec.obs), {}

    def step(self, action):
        if self._state is None:
            raise gymnasium.error.ResetNeeded("Call reset before step.")
        if not self.action_space.contains(action):
            raise ValueError(f"The action {action!r} is not in {self.action_space}.")
        self._state, step = self._step(self._state, jnp.asarray(action, self._env.spec.action.dtype), _key(self))
        obs = _numpy(step.obs, self._env.spec.obs)
        return obs, float(step.reward), bool(step.terminated), bool(step.truncated), {}

    def render(self):
        if self.render_mode is None or self._state is None:
            return None
        from made.envs.minigrid.render import draw

        return draw(self._env, self._state)  # type: ignore[arg-type]


class CompiledVectorEnv(gymnasium.vector.VectorEnv):
    """N compiled environments in one call, with fresh levels from a pool drawn ahead.

    SAME_STEP: an ended episode is replaced at once and its last observation is info["final_obs"]; this is what a bonus
    needs. NEXT_STEP (Gymnasium's own default): the next call resets it instead, and ignores its action.
    """

    def __init__(
        self,
        env: Environment,
        num_envs: int = 1,
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
        **options: Any,
    ):
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}.")
        if autoreset_mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
            raise ValueError(f"autoreset_mode must be SAME_STEP or NEXT_STEP, got {autoreset_mode}.")
        render_mode = options.get("render_mode")
        if render_mode is not None:
            raise ValueError(f"The vector form does not render (render_mode={render_mode!r}): use gymnasium.make.")
        self._env, self.num_envs, self.render_mode = env, num_envs, None
        self.metadata = {"autoreset_mode": autoreset_mode, "render_modes": []}
        self.single_observation_space, self.single_action_space = gym_space(env.spec.obs), gym_space(env.spec.action)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._pool_size = max(LEAST_POOL, 2 * num_envs)
        self._draw = jax.jit(lambda key: env.reset_many(key, self._pool_size))
        self._advance = jax.jit(lambda s, a, key: jax.vmap(env.step)(s, a, jax.random.split(key, num_envs)))
        self._swap = jax.jit(_swap)
        self._state, self._ended = None, np.zeros(num_envs, bool)

    def _fresh(self, current: PyTree, which: np.ndarray) -> PyTree:
        """`current` with fresh (state, obs) where `which` is set; the pool is drawn anew when it runs low."""
        if self._used + which.sum() > self._pool_size:
            self._pool, self._used = self._draw(_key(self)), 0
        swapped = self._swap(current, self._pool, jnp.asarray(which), self._used)
        self._used += int(which.sum())
        return swapped

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed if isinstance(seed, int) or seed is None else seed[0])
        self._pool, self._used = self._draw(_key(self)), self.num_envs
        self._state, obs = jax.tree.map(lambda x: x[: self.num_envs], self._pool)
        self._ended[:] = False
        return _numpy(obs, self._env.spec.obs), {}

    def step(self, actions):
        if self._state is None:
            raise gymnasium.error.ResetNeeded("Call reset before step.")
        actions = np.asarray(actions)
        if actions.shape != self.action_space.shape or not self.action_space.contains(
            actions.astype(self.action_space.dtype)
        ):
            raise ValueError(f"The actions {actions!r} are not in {self.action_space}.")
        state, step = self._advance(self._state, jnp.asarray(actions, self._env.spec.action.dtype), _key(self))
        terminated, truncated = np.array(step.terminated), np.array(step.truncated)
        reward, obs, info = np.array(step.reward, np.float64), step.obs, {}
        if self.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP:
            fresh = self._ended.copy()
            if fresh.any():
                state, obs = self._fresh((state, obs), fresh)
                reward[fresh], terminated[fresh], truncated[fresh] = 0.0, False, False
            self._ended = terminated | truncated
        elif (done := terminated | truncated).any():
            info = final_info(_numpy(obs, self._env.spec.obs), done)
            state, obs = self._fresh((state, obs), done)
        self._state = state
        return _numpy(obs, self._env.spec.obs), reward, terminated, truncated, info


def _swap(current: PyTree, pool: PyTree, which: jax.Array, used: jax.Array) -> PyTree:
    """Where `which` is set, the next unused rows of the pool, each once."""
    rows = used + jnp.cumsum(which) - 1
    return trees.select(which, jax.tree.map(lambda x: x[rows], pool), current)


class BonusVectorWrapper(SavesBonus, gymnasium.vector.VectorWrapper):
    """Adds `coef` times the bonus to each reward; info["extrinsic"] and info["intrinsic"] hold the two parts, [N].

    With SAME_STEP the true successor of a last step is info["final_obs"]. With NEXT_STEP it is the observation
    returned; the call after it only resets, so it earns nothing and is never learned from. Put wrappers that record
    the statistics of episodes inside this one, and they stay extrinsic.
    """

    def __init__(
        self,
        env: gymnasium.vector.VectorEnv,
        bonus: Bonus | str,
        coef: float | Callable[[int], Any] = 1.0,
        mode: Mode = "both",
        every: int = 128,
        strength: float | None = None,
        seed: int = 0,
        **options: Any,
    ):
        super().__init__(env)
        self._kind = env.metadata.get("autoreset_mode")
        if self._kind not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
            raise ValueError(
                f"This vector environment has autoreset_mode {self._kind}, so the end of an episode cannot be "
                "distinguished from the start of the next: make it with SAME_STEP or NEXT_STEP."
            )
        spaces = env.single_observation_space, env.single_action_space
        self.bonus = HostBonus(bonus, *spaces, env.num_envs, seed, **options)
        self.payer = RewardMixer(self.bonus, coef, mode, every, strength)
        self._obs, self._ended = None, np.zeros(env.num_envs, bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None):
        obs, info = self.env.reset(seed=seed, options=options)
        self.bonus.reset(obs)
        self._obs, self._ended = obs, np.zeros(self.num_envs, bool)
        return obs, info

    def step(self, actions):
        if self._obs is None:
            raise gymnasium.error.ResetNeeded("Call reset before step.")
        before = copied(self._obs)  # some vector environments write the next observation into the same arrays
        after, reward, terminated, truncated, info = self.env.step(actions)
        done = terminated | truncated
        same = self._kind is AutoresetMode.SAME_STEP
        successor = true_successor(after, info, done) if same else after
        step = self.bonus.observe(before, actions, reward, successor, terminated, truncated, after)
        paid = self.payer.pay(step, np.asarray(reward), ~self._ended)
        if self._ended.any():
            self.bonus.begin(after, self._ended)
        self._obs, self._ended = after, np.zeros_like(done) if same else done
        parts = {"extrinsic": paid.extrinsic, "intrinsic": paid.intrinsic}
        return after, paid.reward, terminated, truncated, {**info, **parts}


def copied(obs: Any) -> Any:
    """Observations in arrays of their own, which may be written to; JAX's may not."""
    return {name: copied(x) for name, x in obs.items()} if isinstance(obs, dict) else np.array(obs)


def make_env(task: str, render_mode: str | None = None, **options: Any) -> CompiledEnv:
    """Entry point of `gymnasium.make`; `options` are those of `Grid`, such as shows=("image", "direction")."""
    return CompiledEnv(make_grid(task, **options), render_mode)


def make_vector_env(task: str, num_envs: int = 1, **options: Any) -> CompiledVectorEnv:
    """Entry point of `gymnasium.make_vec`."""
    own = {name: options.pop(name) for name in ("autoreset_mode", "render_mode") if name in options}
    return CompiledVectorEnv(make_grid(task, **options), num_envs, **own)


def register() -> None:
    """Make every grid known to Gymnasium under `made/`; a second call changes nothing."""
    for task in GRIDS:
        if PREFIX + task not in gymnasium.registry:
            gymnasium.register(
                PREFIX + task,
                entry_point="made.adapters.gymnasium:make_env",
                vector_entry_point="made.adapters.gymnasium:make_vector_env",
                kwargs={"task": task},
                disable_env_checker=True,  # the checker steps the environment once more, and these are tested here
            )


register()
