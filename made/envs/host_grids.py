"""MiniGrid of other packages as Gymnasium vector environments that show the agent's view and a hash of the state.

    envs = package_envs("MiniGrid-MultiRoom-N7-S8-v0", 32)     Farama's package, with SAME_STEP autoreset
    envs = EnvPoolGrids("MiniGrid-DoorKey-8x8-v0", 32)         EnvPool's, which is compiled C++

The hash of a state of Farama's package is the number that `made.envs.minigrid` shows for it, so counts of visits mean
the same in both.
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

from made.core import trees
from made.core.config import suggest
from made.core.plugins import needs
from made.envs.host_env import final_info
from made.envs.minigrid import GRIDS, MultiRoom, dynamics, make_grid, tile_codes
from made.envs.minigrid.env import LARGEST

_COLOR = {name: i for i, name in enumerate(tile_codes.COLORS)}
_WHOLE = {"wall": tile_codes.WALL, "goal": tile_codes.GOAL, "lava": tile_codes.LAVA}
_TINTED = {"floor": tile_codes.FLOOR, "key": tile_codes.KEY, "ball": tile_codes.BALL, "box": tile_codes.BOX}
ROOMS = "MiniGrid-MultiRoom-N6-v0"  # EnvPool's task that takes any number and size of rooms
UNSOLVABLE = (  # seen in 1.2.5 and 1.2.7: docs/training.md
    "Of the MultiRoom levels that EnvPool draws most have no way to the goal: use gym:, the minigrid package."
)
DEEDS = (dynamics.PICK_UP, dynamics.DROP, dynamics.TOGGLE)  # what can change a cell: the one ahead


def code_of(thing: Any) -> int:
    """One of the package's objects as our byte for it; of what a box may hold, keys count."""
    if thing is None:
        return tile_codes.EMPTY
    if thing.type in _WHOLE:
        return _WHOLE[thing.type]
    color = _COLOR[thing.color]
    if thing.type == "door":
        kind = tile_codes.OPEN if thing.is_open else tile_codes.LOCKED if thing.is_locked else tile_codes.CLOSED
        return kind + color
    if thing.type == "box" and getattr(thing.contains, "type", "") == "key":
        return tile_codes.KEYBOX + 8 * _COLOR[thing.contains.color] + color
    if thing.type not in _TINTED:
        raise ValueError(
            f"A {thing.type!r} is no object of the minigrid package that made knows: it takes "
            f"{', '.join([*_WHOLE, *_TINTED, 'door'])}. Tell states apart in a wrapper of your own."
        )
    return _TINTED[thing.type] + color


def _shown_space(view: tuple[int, ...]) -> spaces.Dict:
    return spaces.Dict(
        {"image": spaces.Box(0, int(LARGEST), view, np.uint8), "hash": spaces.Box(0, 2**32 - 1, (2,), np.uint32)}
    )


class ShowState(gymnasium.Wrapper):
    """Observations are {"image": the agent's view, "hash": the full state}, as of `Grid(shows=("image", "hash"))`.

    The grid's part of the hash is kept up to date, since a step changes few of its cells.
    """

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self._base: Any = env.unwrapped
        base = self._base
        places = tile_codes.LEAD + tile_codes.stride(base.width) * np.arange(base.height)[:, None]
        self._places = (places + np.arange(base.width)).reshape(-1)
        self.observation_space = _shown_space(base.observation_space["image"].shape)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        obs, info = self.env.reset(seed=seed, options=options)
        self._things = list(self._base.grid.grid)
        self._codes = [code_of(thing) for thing in self._things]
        size = tile_codes.packed_size(self._base.height, self._base.width)
        packed = np.full(size, tile_codes.WALL, np.uint8)
        packed[self._places] = self._codes
        self._hash = dynamics.cell_hash(np.arange(size), packed).sum(0, dtype=np.uint32)  # type: ignore[arg-type]
        self._find_doors()
        return self._shown(obs), info

    def step(self, action):
        obs, *outcome = self.env.step(action)
        self._follow(self._base.grid.grid)
        return self._shown(obs), *outcome

    def _follow(self, things: list) -> None:
        """Read what has changed: cells that hold another object, and doors, which change where they are."""
        others = []
        if things != self._things:  # compares by identity, in C
            others = [i for i, (old, new) in enumerate(zip(self._things, things, strict=True)) if old is not new]
            self._things = list(things)
            self._find_doors()
        for i in (*others, *self._doors):
            code = code_of(things[i])
            if code != self._codes[i]:
                place, codes = self._places[[i, i]], np.array([code, self._codes[i]], np.uint8)
                new, old = dynamics.cell_hash(place, codes)  # type: ignore[arg-type]
                self._hash, self._codes[i] = self._hash + new - old, code

    def _find_doors(self) -> None:
        self._doors = [i for i, thing in enumerate(self._things) if thing is not None and thing.type == "door"]

    def _shown(self, obs: dict[str, Any]) -> dict[str, np.ndarray]:
        base = self._base
        pose = (np.uint32(x) for x in (*base.agent_pos, base.agent_dir, code_of(base.carrying)))
        blank = np.zeros((), np.int32)
        state = tile_codes.GridState(blank, *pose, blank, blank, self._hash)  # type: ignore[arg-type]
        return {"image": obs["image"], "hash": np.asarray(dynamics.state_hash(state))}


def rooms_of(task: str) -> MultiRoom | None:
    """The rooms of a MultiRoom task that is compiled here; None for any other."""
    grid = make_grid(task) if task in GRIDS else None
    return grid.maker if grid is not None and isinstance(grid.maker, MultiRoom) and not grid.noisy_tv else None


def register_rooms() -> None:
    """Make the MultiRoom sizes that RIDE's fork added known to Gymnasium, as the package's own class."""
    with needs("made.envs.host_grids", "grid", "minigrid"):
        import minigrid  # noqa: F401, importing it registers its tasks

    for task in GRIDS:
        rooms = rooms_of(task) if task not in gymnasium.registry else None
        if rooms is not None:
            sizes = {"minNumRooms": rooms.rooms, "maxNumRooms": rooms.rooms, "maxRoomSize": rooms.largest}
            gymnasium.register(task, entry_point="minigrid.envs:MultiRoomEnv", kwargs=sizes)


def package_envs(task: str, n: int) -> gymnasium.vector.VectorEnv:
    """n environments of the package, showing the view and the hash; the mission's text is left out."""
    register_rooms()
    if task not in gymnasium.registry:
        known = [name for name in gymnasium.registry if name.startswith("MiniGrid-")]
        raise ValueError(f"The minigrid package has no task {task!r}.{suggest(task, known)}")
    same = {"autoreset_mode": AutoresetMode.SAME_STEP}
    plain = {"disable_env_checker": True}  # the checker steps each environment once more
    return gymnasium.make_vec(task, n, "sync", vector_kwargs=same, wrappers=[ShowState], **plain)


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
    """n environments of a task of EnvPool's, showing {"image": the agent's view, "hash": what tells the state}.

    EnvPool resets an ended environment one step late and keeps its levels to itself. Here an ended one is reset at
    once (SAME_STEP), its last observation being info["final_obs"]. The hash is that of what EnvPool shows (position,
    direction and the agent's view with what it carries) and of what the agent has changed since the episode began.
    Where only the agent changes things, that is the full state within an episode. Levels are told apart by their views.
    """

    def __init__(self, task: str, num_envs: int):
        self._task, self._options = pool_task(task)
        self.num_envs, self.metadata = num_envs, {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._pool = self._made(0)
        view = self._pool.observation_space["image"].shape
        self.single_observation_space = _shown_space(view)
        self.single_action_space = self._pool.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.max_steps = int(self._pool.config["max_episode_steps"])
        self._digest = jax.jit(jax.vmap(trees.digest))
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
            told = final_info(shown, done)
            shown = self._reset_envs(shown, np.flatnonzero(done))
        return shown, np.array(reward, np.float64), *ends, told

    def _follow(self, actions: np.ndarray, obs: dict[str, np.ndarray], info: dict[str, Any]) -> None:
        """Note what the deeds of this step have changed in the cells ahead."""
        ahead = _ahead(obs["image"])
        for i in np.flatnonzero(np.isin(actions, DEEDS) & (ahead != self._ahead).any(-1)):
            x, y = (info["agent_pos"][i] + tile_codes.STEPS[obs["direction"][i]]).tolist()
            self._changes[i].see((x, y), self._ahead[i].tobytes(), ahead[i].tobytes())
        self._ahead = ahead

    def _reset_envs(self, shown: dict[str, np.ndarray], which: np.ndarray) -> dict[str, np.ndarray]:
        """What is shown, with new episodes in the environments named; the pool tells them in an order of its own."""
        obs, info = self._pool.reset(which.astype(np.int32))
        for at, i in enumerate(info["env_id"]):
            self._changes[i], self._ahead[i] = Changes(), _ahead(obs["image"])[at]
        shown = {name: np.array(x) for name, x in shown.items()}
        for name, x in self._shown(obs, info).items():
            shown[name][info["env_id"]] = x
        return shown

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
