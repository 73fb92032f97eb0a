"""The package minigrid as the judge: its states in our codes, our levels in its objects, and its episodes written down."""

import importlib
from typing import NamedTuple

import gymnasium as gym
import jax.numpy as jnp
import minigrid  # noqa: F401  (registers its ids)
import numpy as np
from minigrid.core.constants import COLOR_TO_IDX, IDX_TO_COLOR
from minigrid.core.grid import Grid as PackageGrid
from minigrid.core.world_object import Ball, Box, Door, Floor, Goal, Key, Lava, Wall
from minigrid.envs import MultiRoomEnv

from made.grids import dynamics, world
from made.grids.world import GridState, Level

FAMILIES = ("MultiRoom", "KeyCorridor", "ObstructedMaze", "Empty", "DoorKey", "FourRooms")
RIDE = {
    "MiniGrid-MultiRoom-N7-S4-v0": (7, 4),
    "MiniGrid-MultiRoom-N7-S8-v0": (7, 8),
    "MiniGrid-MultiRoom-N10-S4-v0": (10, 4),
    "MiniGrid-MultiRoom-N10-S10-v0": (10, 10),
    "MiniGrid-MultiRoom-N12-S10-v0": (12, 10),
}
IDS = sorted(
    [name for name in gym.registry if name.startswith(tuple(f"MiniGrid-{family}" for family in FAMILIES))] + list(RIDE)
)


def make(task: str):
    """The package's own environment of that id, or its MultiRoom class at a size that RIDE registered."""
    if task in RIDE:
        rooms, size = RIDE[task]
        return MultiRoomEnv(minNumRooms=rooms, maxNumRooms=rooms, maxRoomSize=size, render_mode="rgb_array")
    spec = gym.registry[task]
    module, _, name = str(spec.entry_point).partition(":")
    return getattr(importlib.import_module(module), name)(**spec.kwargs, render_mode="rgb_array")


def code_of(thing) -> int:
    """One of the package's objects as a code."""
    if thing is None:
        return world.EMPTY
    colour = COLOR_TO_IDX[thing.color]
    if thing.type == "door":
        return (world.OPEN if thing.is_open else world.LOCKED if thing.is_locked else world.CLOSED) + colour
    if thing.type == "box" and thing.contains is not None:
        assert thing.contains.type == "key"
        return world.KEYBOX + 8 * COLOR_TO_IDX[thing.contains.color] + colour
    whole = {"wall": world.WALL, "goal": world.GOAL, "lava": world.LAVA}
    tinted = {"floor": world.FLOOR, "key": world.KEY, "ball": world.BALL, "box": world.BOX}
    return whole[thing.type] if thing.type in whole else tinted[thing.type] + colour


def thing_of(code: int):
    """A code as one of the package's objects."""
    kind, colour = code // 8, IDX_TO_COLOR[code % 8]
    if world.KEYBOX <= code < world.CLOSED:
        return Box(colour, Key(IDX_TO_COLOR[kind - world.KEYBOX // 8]))
    makers = {
        world.EMPTY: lambda: None,
        world.GOAL // 8: Goal,
        world.LAVA // 8: Lava,
        world.FLOOR // 8: lambda: Floor(colour),
        world.OPEN // 8: lambda: Door(colour, is_open=True),
        world.KEY // 8: lambda: Key(colour),
        world.BALL // 8: lambda: Ball(colour),
        world.BOX // 8: lambda: Box(colour),
        world.CLOSED // 8: lambda: Door(colour),
        world.LOCKED // 8: lambda: Door(colour, is_locked=True),
        world.WALL // 8: Wall,
    }
    return makers[kind]()


def codes(env) -> np.ndarray:
    """The grid of a live environment, [row][column]."""
    cells = [code_of(thing) for thing in env.grid.grid]
    return np.array(cells, np.uint8).reshape(env.grid.height, env.grid.width)


def level_of(env) -> Level:
    """The level of a live environment as it is now."""
    target = code_of(env.obj) if getattr(env, "obj", None) is not None else world.NO_TARGET
    return Level(codes(env), *(np.int8(v) for v in (*env.agent_pos, env.agent_dir)), np.uint8(target))


def state_of(env) -> GridState:
    """The state of a live environment."""
    level = level_of(env)
    grid = world.pack(jnp.asarray(level.grid))
    hand, steps = jnp.uint8(code_of(env.carrying)), jnp.int32(env.step_count)
    return GridState(grid, *level[1:4], hand, level.target, steps, dynamics.grid_hash(grid))


def load(env, level: Level, hand: int = world.EMPTY, steps: int = 0) -> None:
    """Put a level into a live environment, with something in hand and some steps on the clock."""
    height, width = level.grid.shape
    assert (env.width, env.height) == (width, height)
    env.grid, env.carrying, env.step_count = PackageGrid(width, height), thing_of(hand), steps
    for y, x in np.ndindex(height, width):
        env.grid.set(x, y, thing_of(int(level.grid[y, x])))
    env.agent_pos, env.agent_dir = (int(level.x), int(level.y)), int(level.direction)
    if int(level.target) != world.NO_TARGET:
        targets = [thing for thing in [env.carrying, *env.grid.grid] if thing and code_of(thing) == int(level.target)]
        assert len(targets) == 1, "the package knows its target by identity, so there must be one"
        env.obj = targets[0]


class Record(NamedTuple):
    """Some steps of the package, [T, ...]; where `played` is not set the episode was over."""

    start: GridState
    action: np.ndarray
    played: np.ndarray
    image: np.ndarray
    cells: np.ndarray  # grid.encode(), [T, W, H, 3]
    pose: np.ndarray  # x, y, direction, the hand's code
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def play(env, choose, length: int) -> Record:
    """Act by `choose(env)` for that many steps or to the end of the episode, and write everything down."""
    start, rows = state_of(env), []
    while len(rows) < length and not (rows and (rows[-1].terminated or rows[-1].truncated)):
        action = int(choose(env))
        obs, reward, terminated, truncated, _ = env.step(action)
        pose = np.array([*env.agent_pos, env.agent_dir, code_of(env.carrying)], np.int32)
        row = (action, True, obs["image"], env.grid.encode(), pose, np.float32(reward), terminated, truncated)
        rows.append(Record(start, *row))
    blank = rows[-1]._replace(action=dynamics.DONE, played=False)
    rows += [blank] * (length - len(rows))
    return Record(start, *(np.stack([row[i] for row in rows]) for i in range(1, len(Record._fields))))
