"""Farama's MiniGrid shown as the compiled grids are: the agent's view, and the same 64 bits for the same full state.

    envs = package_envs("MiniGrid-MultiRoom-N7-S8-v0", 32)     a Gymnasium vector environment with SAME_STEP autoreset

The hash of a state is the number that `made.envs.minigrid` shows for it, so counts of visits mean the same in both.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from made.core.config import suggest
from made.core.plugins import needs
from made.envs.minigrid import GRIDS, MultiRoom, dynamics, make_grid, tile_codes, views
from made.envs.minigrid.env import LARGEST

_COLOUR = {name: i for i, name in enumerate(tile_codes.COLOURS)}
_WHOLE = {"wall": tile_codes.WALL, "goal": tile_codes.GOAL, "lava": tile_codes.LAVA}
_TINTED = {"floor": tile_codes.FLOOR, "key": tile_codes.KEY, "ball": tile_codes.BALL, "box": tile_codes.BOX}


def code_of(thing: Any) -> int:
    """One of the package's objects as our byte for it; of what a box may hold, keys count."""
    if thing is None:
        return tile_codes.EMPTY
    if thing.type in _WHOLE:
        return _WHOLE[thing.type]
    colour = _COLOUR[thing.color]
    if thing.type == "door":
        return (
            tile_codes.OPEN if thing.is_open else tile_codes.LOCKED if thing.is_locked else tile_codes.CLOSED
        ) + colour
    if thing.type == "box" and getattr(thing.contains, "type", "") == "key":
        return tile_codes.KEYBOX + 8 * _COLOUR[thing.contains.color] + colour
    if thing.type not in _TINTED:
        raise ValueError(
            f"A {thing.type!r} is no object of the minigrid package that made knows: it takes "
            f"{', '.join([*_WHOLE, *_TINTED, 'door'])}. Tell states apart in a wrapper of your own."
        )
    return _TINTED[thing.type] + colour


class Cells:
    """The grid's part of the hash of a live environment, kept up to date: a step changes few of its cells."""

    def __init__(self, width: int, height: int):
        places = tile_codes.LEAD + tile_codes.stride(width) * np.arange(height)[:, None] + np.arange(width)
        self._places, self._size = places.reshape(-1), tile_codes.packed_size(height, width)

    def begin(self, things: list) -> None:
        """Read a new level."""
        self._things, self._codes = list(things), [code_of(thing) for thing in things]
        packed = np.full(self._size, tile_codes.WALL, np.uint8)
        packed[self._places] = self._codes
        self.hash = dynamics.cell_hash(np.arange(self._size), packed).sum(0, dtype=np.uint32)  # type: ignore[arg-type]
        self._find_doors()

    def follow(self, things: list) -> None:
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
                self.hash, self._codes[i] = self.hash + new - old, code

    def _find_doors(self) -> None:
        self._doors = [i for i, thing in enumerate(self._things) if thing is not None and thing.type == "door"]


class ShowState(gymnasium.Wrapper):
    """Observations are {"image": the agent's view, "hash": the full state}, as of `Grid(shows=("image", "hash"))`."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self._base: Any = env.unwrapped
        view = self._base.observation_space["image"].shape
        self._cells = Cells(self._base.width, self._base.height)
        self.observation_space = spaces.Dict(
            {"image": spaces.Box(0, int(LARGEST), view, np.uint8), "hash": spaces.Box(0, 2**32 - 1, (2,), np.uint32)}
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        obs, info = self.env.reset(seed=seed, options=options)
        self._cells.begin(self._base.grid.grid)
        return self._shown(obs), info

    def step(self, action):
        obs, *outcome = self.env.step(action)
        self._cells.follow(self._base.grid.grid)
        return self._shown(obs), *outcome

    def _shown(self, obs: dict[str, Any]) -> dict[str, np.ndarray]:
        base = self._base
        pose = (np.uint32(x) for x in (*base.agent_pos, base.agent_dir, code_of(base.carrying)))
        blank = np.zeros((), np.int32)
        state = tile_codes.GridState(blank, *pose, blank, blank, self._cells.hash)  # type: ignore[arg-type]
        return {"image": obs["image"], "hash": np.asarray(views.state_hash(state))}


def rooms_of(task: str) -> MultiRoom | None:
    """The rooms of a MultiRoom task that is compiled here; None for any other."""
    grid = make_grid(task) if task in GRIDS else None
    return grid.maker if grid is not None and isinstance(grid.maker, MultiRoom) and not grid.noisy_tv else None


def register_rooms() -> None:
    """Make the MultiRoom sizes that RIDE's fork added known to Gymnasium, as the package's own class."""
    with needs("made.envs.external.farama", "grid", "minigrid"):
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
