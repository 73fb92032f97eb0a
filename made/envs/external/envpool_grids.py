"""EnvPool's MiniGrid, which is compiled C++, as a Gymnasium vector environment that a bonus can be driven by.

EnvPool resets an ended environment one step late and keeps its levels to itself. Here an ended one is begun again at
once (SAME_STEP), its last observation being info["final_obs"]. A state is told by what EnvPool shows, the position, the
direction and the agent's view with what it carries, and by what the agent has changed since the episode began: where
only the agent changes things, that is the full state within an episode. Levels are told apart by their views.
"""

import hashlib
import warnings
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, create_empty_array

from made.core import hashing
from made.core.config import suggest
from made.envs.external.farama import rooms_of
from made.envs.external.host_env import replace_rows
from made.envs.minigrid import dynamics
from made.envs.minigrid.env import LARGEST

ROOMS = "MiniGrid-MultiRoom-N6-v0"  # EnvPool's task that takes any number and size of rooms
AHEAD = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])  # where right, down, left and up lead
UNSOLVABLE = (  # seen in 1.2.5 and 1.2.7: docs/training.md
    "Of the MultiRoom levels that EnvPool draws most have no way to the goal: use gym:, the minigrid package."
)
DEEDS = (dynamics.PICK_UP, dynamics.DROP, dynamics.TOGGLE)  # what can change a cell: the one ahead


class Changes:
    """What the agent of one environment has changed in this episode, as 64 bits that are zero while nothing is."""

    def __init__(self):
        self._was: dict[tuple[int, int], bytes] = {}
        self._now: dict[tuple[int, int], bytes] = {}
        self.hash = np.zeros(2, np.uint32)

    def see(self, cell: tuple[int, int], before: bytes, after: bytes) -> None:
        """A cell was one thing and is now another; back to what it was at first is no change."""
        self._now[cell] = after
        if self._was.setdefault(cell, before) == after:
            del self._now[cell]
        told = hashlib.blake2b(repr(sorted(self._now.items())).encode(), digest_size=8).digest()
        self.hash = np.frombuffer(told, np.uint32) if self._now else np.zeros(2, np.uint32)


class EnvPoolGrids(gymnasium.vector.VectorEnv):
    """n environments of a task of EnvPool's, showing {"image": the agent's view, "hash": what tells the state}."""

    def __init__(self, task: str, num_envs: int):
        self._task, self._options = pool_task(task)
        self.num_envs, self.metadata = num_envs, {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._pool = self._made(0)
        view = self._pool.observation_space["image"].shape
        self.single_observation_space = spaces.Dict(
            {"image": spaces.Box(0, int(LARGEST), view, np.uint8), "hash": spaces.Box(0, 2**32 - 1, (2,), np.uint32)}
        )
        self.single_action_space = self._pool.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.max_steps = int(self._pool.config["max_episode_steps"])
        self._digest = jax.jit(jax.vmap(hashing.digest))
        self._changes, self._ahead = [Changes() for _ in range(num_envs)], np.zeros((num_envs, 3), np.uint8)

    def _made(self, seed: int) -> Any:
        import envpool  # type: ignore[import-not-found]

        return envpool.make_gymnasium(self._task, num_envs=self.num_envs, seed=seed, **self._options)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begin an episode everywhere. A seed needs a new pool, since EnvPool takes it when a pool is made."""
        del options
        if seed is not None:
            self._pool = self._made(seed)
        blank: Any = create_empty_array(self.single_observation_space, self.num_envs)
        return self._reset_envs(blank, np.arange(self.num_envs)), {}

    def step(self, actions):
        actions = np.asarray(actions, np.int32)
        obs, reward, terminated, truncated, info = self._pool.step(actions)
        self._follow(actions, obs, info)
        told, shown, ends = {}, self._shown(obs, info), (np.array(terminated), np.array(truncated))
        done = ends[0] | ends[1]
        if done.any():
            last = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(done):
                last[i] = {name: x[i].copy() for name, x in shown.items()}
            told = {"final_obs": last, "_final_obs": done}
            shown = self._reset_envs(shown, np.flatnonzero(done))
        return shown, np.array(reward, np.float64), *ends, told

    def _follow(self, actions: np.ndarray, obs: dict[str, np.ndarray], info: dict[str, Any]) -> None:
        """Note what the deeds of this step have changed in the cells ahead."""
        ahead = _ahead(obs["image"])
        for i in np.flatnonzero(np.isin(actions, DEEDS) & (ahead != self._ahead).any(-1)):
            x, y = (info["agent_pos"][i] + AHEAD[obs["direction"][i]]).tolist()
            self._changes[i].see((x, y), self._ahead[i].tobytes(), ahead[i].tobytes())
        self._ahead = ahead

    def _reset_envs(self, shown: dict[str, np.ndarray], which: np.ndarray) -> dict[str, np.ndarray]:
        """What is shown, with new episodes in the environments named; the pool tells them in an order of its own."""
        obs, info = self._pool.reset(which.astype(np.int32))
        for at, i in enumerate(info["env_id"]):
            self._changes[i], self._ahead[i] = Changes(), _ahead(obs["image"])[at]
        fresh, rows = self._shown(obs, info), [None] * self.num_envs
        for at, i in enumerate(info["env_id"]):
            rows[i] = {name: x[at] for name, x in fresh.items()}  # type: ignore[call-overload]
        return replace_rows(shown, rows, np.isin(np.arange(self.num_envs), which))

    def _shown(self, obs: dict[str, np.ndarray], info: dict[str, Any]) -> dict[str, np.ndarray]:
        image, n = np.array(obs["image"]), len(obs["image"])
        rows = np.arange(self.num_envs) % n  # as many as there are environments, so that one compiled program will do
        changed = np.stack([self._changes[i].hash for i in info["env_id"]])
        parts = (info["agent_pos"][rows], obs["direction"][rows], image[rows], changed[rows])
        return {"image": image, "hash": np.array(self._digest(parts))[:n]}


def _ahead(image: np.ndarray) -> np.ndarray:
    """What the cells ahead hold: views are [column][row] with the agent in the middle of the last row."""
    return np.array(image[:, image.shape[1] // 2, -2])


def pool_task(task: str) -> tuple[str, dict[str, int]]:
    """(the task's name in EnvPool, the options it needs there): MultiRoom comes in every size that is compiled here."""
    try:
        import envpool  # type: ignore[import-not-found]
    except ImportError:
        raise ValueError(
            "envpool: tasks need EnvPool: pip install envpool, or use the minigrid package with gym:."
        ) from None

    there = [name for name in envpool.list_all_envs() if name.startswith("MiniGrid-")]
    rooms = rooms_of(task)
    if rooms is not None:
        warnings.warn(UNSOLVABLE, stacklevel=3)
        sizes = {"min_num_rooms": rooms.rooms, "max_num_rooms": rooms.rooms, "max_room_size": rooms.largest}
        return ROOMS, {**sizes, "max_episode_steps": rooms.max_steps}
    if task not in there:
        raise ValueError(f"EnvPool has no MiniGrid task {task!r}.{suggest(task, there)}")
    return task, {}
