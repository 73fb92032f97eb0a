"""Where NumPy meets JAX: a bonus outside compiled code, and experience from Gymnasium.

`HostBonus` is the only stateful bonus object. It runs the same `remember`, `reward` and `update` that the compiled
loop runs, so a bonus computes the same numbers in somebody else's training loop.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from made import trees
from made.core import Agent, Bonus, Space, Spec, Transition


class HostBonus:
    """A bonus with its state, its episodic memories and its key, driven step by step from NumPy."""

    def __init__(self, bonus: Bonus, spec: Spec, n_envs: int, seed: int = 0):
        self.bonus, self.spec, self.n_envs = bonus, spec, n_envs
        self.key = jax.random.key(seed)
        self.state = bonus.init(self._next_key(), spec._replace(goal=bonus.memory.goal(spec)))
        self._blank = jax.tree.map(lambda x: jnp.broadcast_to(x, (n_envs, *jnp.shape(x))), bonus.memory.blank(spec))
        self.memory, self.note = self._blank, None
        self._remember = jax.jit(jax.vmap(bonus.memory.remember, in_axes=(None, 0, 0, 0)))
        self._reward, self._update = jax.jit(bonus.reward), jax.jit(bonus.update)

    def _next_key(self):
        self.key, key = jax.random.split(self.key)
        return key

    def reset(self, obs: PyTree) -> None:
        """Begin an episode in every environment."""
        keys = jax.random.split(self._next_key(), self.n_envs)
        self.memory, self.note = self._remember(self.state, self._blank, self._observation(obs), keys)

    def step(self, obs, action, reward, next_obs, terminated, truncated, reset_obs=None) -> Transition:
        """Take in one step of every environment and return it as a Transition with the bonus's notes.

        `next_obs` is the true successor; `reset_obs` what the policy sees next, which differs where an episode ended.
        """
        if self.note is None:
            raise ValueError("HostBonus.step was called before reset: call reset(first observations) once.")
        k_step, k_reset = jax.random.split(self._next_key())
        obs, next_obs = self._observation(obs), self._observation(next_obs)
        keys = jax.random.split(k_step, self.n_envs)
        memory, note = self._remember(self.state, self.memory, next_obs, keys)
        ends = jnp.asarray(terminated, bool), jnp.asarray(truncated, bool)
        transition = Transition(
            obs, self._action(action), jnp.asarray(reward, jnp.float32), next_obs, *ends, self.note, note
        )
        done = ends[0] | ends[1]
        if bool(done.any()):
            if reset_obs is None:
                raise ValueError("An episode ended, so HostBonus.step needs reset_obs, the first observation after it.")
            keys = jax.random.split(k_reset, self.n_envs)
            fresh = self._remember(self.state, self._blank, self._observation(reset_obs), keys)
            memory, note = trees.where(done, fresh, (memory, note))
        self.memory, self.note = memory, note
        return transition

    def reward(self, batch: Transition, value=None) -> np.ndarray:
        """The bonus of each transition, as NumPy."""
        return np.asarray(self._reward(self.state, batch, value=value))

    def update(self, batch: Transition) -> dict[str, float]:
        """Learn from a batch [T, N, ...]; returns the bonus's metrics."""
        self.state, metrics = self._update(self.state, batch, self._next_key())
        return {name: float(x) for name, x in metrics.items()}

    def _observation(self, obs: PyTree) -> PyTree:
        return jax.tree.map(lambda space, x: jnp.asarray(x, space.dtype), self.spec.obs, obs, is_leaf=_is_space)

    def _action(self, action) -> jax.Array:
        return jnp.asarray(action, self.spec.action.dtype)


def _is_space(x: Any) -> bool:
    return isinstance(x, Space)


def space_of(space: Any) -> PyTree:
    """A Gymnasium space as Space leaves. Discrete values are carried as int32."""
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
        dtype = jnp.float32 if np.issubdtype(space.dtype, np.floating) else jnp.dtype(space.dtype)
        return Space(space.shape, dtype, None, *bounds)
    raise ValueError(f"{type(space).__name__} spaces are not supported: use Discrete, MultiDiscrete, Box or Dict.")


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
        self.spec = Spec(space_of(venv.single_observation_space), space_of(venv.single_action_space))


class HostRollout:
    """Experience from a Gymnasium vector environment, in the same Transition as the compiled rollout's."""

    def __init__(self, env: HostEnvironment, agent: Agent, bonus: HostBonus, seed: int = 0):
        self.env, self.agent, self.bonus = env, agent, bonus
        self.key = jax.random.key(seed)
        self._act = jax.jit(jax.vmap(agent.act, in_axes=(None, 0, 0, 0, 0)))
        self._first_carry = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (env.n_envs, *jnp.shape(x))), agent.carry(env.spec)
        )
        self.carry = self._first_carry
        self.obs, _ = env.venv.reset(seed=seed)
        self.total, self.returns = np.zeros(env.n_envs), []
        bonus.reset(self.obs)

    def collect(self, agent_state: PyTree, length: int) -> Transition:
        """`length` steps of every environment, leaves [T, N, ...]; returns of ended episodes go to `self.returns`."""
        return trees.stack([self._step(agent_state) for _ in range(length)])

    def _step(self, agent_state: PyTree) -> Transition:
        self.key, key = jax.random.split(self.key)
        keys = jax.random.split(key, self.env.n_envs)
        obs = self.bonus._observation(self.obs)
        goal = self.bonus.note.goal  # type: ignore[union-attr]
        carry, action, extras = self._act(agent_state, self.carry, obs, goal, keys)
        after, reward, terminated, truncated, info = self.env.venv.step(np.asarray(action))
        done = terminated | truncated
        successor = true_successor(after, info, done)
        transition = self.bonus.step(self.obs, action, reward, successor, terminated, truncated, after)
        self.carry = trees.where(jnp.asarray(done), self._first_carry, carry)
        self.total += reward
        self.returns.extend(self.total[done].tolist())
        self.total[done] = 0.0
        self.obs = after
        return transition._replace(extras=extras)


def true_successor(after: PyTree, info: dict[str, Any], done: np.ndarray) -> PyTree:
    """The observations that the actions led to: `final_obs` where an episode ended, what was returned elsewhere."""
    if not done.any():
        return after
    if "final_obs" not in info:
        raise ValueError(
            "An episode ended without info['final_obs']: use Gymnasium 1.1 or later with SAME_STEP autoreset."
        )
    finals = info["final_obs"]
    if isinstance(after, dict):
        return {
            name: _replace_rows(x, [finals[i][name] for i in np.flatnonzero(done)], done) for name, x in after.items()
        }
    return _replace_rows(after, [finals[i] for i in np.flatnonzero(done)], done)


def _replace_rows(rows: np.ndarray, finals: list, done: np.ndarray) -> np.ndarray:
    rows = np.array(rows)
    rows[done] = np.stack([np.asarray(x) for x in finals])
    return rows
