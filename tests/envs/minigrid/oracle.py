"""The package minigrid as judge: its states in our codes, our levels in its objects, its episodes written down."""

import importlib
from typing import ClassVar, NamedTuple

import equinox as eqx
import gymnasium as gym
import jax.numpy as jnp
import minigrid  # noqa: F401  (registers its ids)
import numpy as np
from jaxtyping import Array
from minigrid.core.constants import COLOR_TO_IDX, IDX_TO_COLOR
from minigrid.core.grid import Grid as PackageGrid
from minigrid.core.world_object import Ball, Box, Door, Floor, Goal, Key, Lava, Wall
from minigrid.envs import MultiRoomEnv

from made.envs.minigrid import dynamics, tile_codes
from made.envs.minigrid.env import Grid
from made.envs.minigrid.tile_codes import GridState, Level, Maker

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

_AHEAD = ((1, 0), (0, 1), (-1, 0), (0, -1))
_MOVABLE = [code for code in range(tile_codes.KEY, tile_codes.CLOSED) if tile_codes.KNOWN[code]]
_FIXED = [tile_codes.LAVA, tile_codes.LAVA, tile_codes.GOAL, tile_codes.FLOOR + tile_codes.BLUE]


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
        return tile_codes.EMPTY
    color = COLOR_TO_IDX[thing.color]
    if thing.type == "door":
        return (
            tile_codes.OPEN if thing.is_open else tile_codes.LOCKED if thing.is_locked else tile_codes.CLOSED
        ) + color
    if thing.type == "box" and thing.contains is not None:
        assert thing.contains.type == "key"
        return tile_codes.KEYBOX + 8 * COLOR_TO_IDX[thing.contains.color] + color
    whole = {"wall": tile_codes.WALL, "goal": tile_codes.GOAL, "lava": tile_codes.LAVA}
    tinted = {"floor": tile_codes.FLOOR, "key": tile_codes.KEY, "ball": tile_codes.BALL, "box": tile_codes.BOX}
    return whole[thing.type] if thing.type in whole else tinted[thing.type] + color


def thing_of(code: int):
    """A code as one of the package's objects."""
    kind, color = code // 8, IDX_TO_COLOR[code % 8]
    if tile_codes.KEYBOX <= code < tile_codes.CLOSED:
        return Box(color, Key(IDX_TO_COLOR[kind - tile_codes.KEYBOX // 8]))
    makers = {
        tile_codes.EMPTY: lambda: None,
        tile_codes.GOAL // 8: Goal,
        tile_codes.LAVA // 8: Lava,
        tile_codes.FLOOR // 8: lambda: Floor(color),
        tile_codes.OPEN // 8: lambda: Door(color, is_open=True),
        tile_codes.KEY // 8: lambda: Key(color),
        tile_codes.BALL // 8: lambda: Ball(color),
        tile_codes.BOX // 8: lambda: Box(color),
        tile_codes.CLOSED // 8: lambda: Door(color),
        tile_codes.LOCKED // 8: lambda: Door(color, is_locked=True),
        tile_codes.WALL // 8: Wall,
    }
    return makers[kind]()


def codes(env) -> np.ndarray:
    """The grid of a live environment, [row][column]."""
    cells = [code_of(thing) for thing in env.grid.grid]
    return np.array(cells, np.uint8).reshape(env.grid.height, env.grid.width)


def level_of(env) -> Level:
    """The level of a live environment as it is now."""
    target = code_of(env.obj) if getattr(env, "obj", None) is not None else tile_codes.NO_TARGET
    return Level(codes(env), *(np.int8(v) for v in (*env.agent_pos, env.agent_dir)), np.uint8(target))


def state_of(env) -> GridState:
    """The state of a live environment."""
    level = level_of(env)
    grid = tile_codes.pack(jnp.asarray(level.grid))
    hand, steps = jnp.uint8(code_of(env.carrying)), jnp.int32(env.step_count)
    return GridState(grid, *level[1:4], hand, level.target, steps, dynamics.grid_hash(grid))


def load(env, level: Level, hand: int = tile_codes.EMPTY, steps: int = 0) -> None:
    """Put a level into a live environment, with something in hand and some steps on the clock."""
    height, width = level.grid.shape
    assert (env.width, env.height) == (width, height)
    env.grid, env.carrying, env.step_count = PackageGrid(width, height), thing_of(hand), steps
    for y, x in np.ndindex(height, width):
        env.grid.set(x, y, thing_of(int(level.grid[y, x])))
    env.agent_pos, env.agent_dir = (int(level.x), int(level.y)), int(level.direction)
    if int(level.target) != tile_codes.NO_TARGET:
        targets = [thing for thing in [env.carrying, *env.grid.grid] if thing and code_of(thing) == int(level.target)]
        assert len(targets) == 1, "the package knows its target by identity, so there must be one"
        env.obj = targets[0]


class Nowhere(Maker):
    """No levels: the states come from the package."""

    width: int = eqx.field(static=True)
    height: int = eqx.field(static=True)
    max_steps: Array

    def levels(self, key, n):
        raise ValueError("states are given")


class SeeThrough(Nowhere):
    see_through: ClassVar[bool] = True


def grid_for(env) -> Grid:
    """Our environment for the states of one of the package's."""
    kind = SeeThrough if env.see_through_walls else Nowhere
    return Grid(kind(env.width, env.height, jnp.int32(env.max_steps)))


class Record(NamedTuple):
    """Some steps of the package, [T, ...]; where `played` is not set the episode was over."""

    start: GridState
    action: np.ndarray
    played: np.ndarray
    ahead: np.ndarray  # the code of the cell ahead, and
    hand: np.ndarray  # of what is in hand, both before the action
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
        action, hand = int(choose(env)), code_of(env.carrying)
        ahead = code_of(env.grid.get(*env.front_pos))
        obs, reward, terminated, truncated, _ = env.step(action)
        pose = np.array([*env.agent_pos, env.agent_dir, code_of(env.carrying)], np.int32)
        seen = (obs["image"], env.grid.encode(), pose, np.float32(reward), terminated, truncated)
        rows.append(Record(start, action, True, ahead, hand, *seen))
    blank = rows[-1]._replace(action=dynamics.DONE, played=False)
    rows += [blank] * (length - len(rows))
    return Record(start, *(np.stack([row[i] for row in rows]) for i in range(1, len(Record._fields))))


def _doors(grid: np.ndarray) -> np.ndarray:
    closed = (grid >= tile_codes.CLOSED) & (grid < tile_codes.WALL - tile_codes.WALL % 8)
    return closed | ((grid >= tile_codes.OPEN) & (grid < tile_codes.KEY))


def scene(level: Level, rng: np.random.Generator, max_steps: int) -> tuple[Level, int, int]:
    """(a changed level, what is in hand, steps on the clock), the agent next to something where that can be."""
    grid, target = level.grid.copy(), int(level.target)
    for y, x in np.argwhere(_doors(grid)):
        if rng.random() < 0.5:
            grid[y, x] = rng.choice([tile_codes.OPEN, tile_codes.CLOSED, tile_codes.LOCKED]) + grid[y, x] % 8
    empty = np.argwhere((grid == tile_codes.EMPTY) & _inside(level))
    for y, x in empty[rng.permutation(len(empty))[: rng.integers(0, 1 + min(8, len(empty) // 3))]]:
        thing = int(rng.choice(_MOVABLE if rng.random() < 0.6 else _FIXED))
        grid[y, x] = thing if thing != target else tile_codes.EMPTY
    hand = int(rng.choice(_MOVABLE)) if rng.random() < 0.5 else tile_codes.EMPTY
    spots = _next_to_things(grid, _inside(level))
    x, y, direction = spots[rng.integers(len(spots))] if spots else (level.x, level.y, level.direction)
    ahead = int(grid[y + _AHEAD[direction][1], x + _AHEAD[direction][0]])
    if tile_codes.LOCKED <= ahead < tile_codes.LOCKED + 6:
        hand = tile_codes.KEY + (ahead % 8 if rng.random() < 0.5 else int(rng.integers(6)))
    steps = int(max_steps - rng.integers(1, 12)) if rng.random() < 0.1 else int(rng.integers(0, max_steps // 2))
    grid[y, x] = grid[y, x] if grid[y, x] < tile_codes.STANDABLE_BELOW else tile_codes.EMPTY
    hand = hand if hand != target else tile_codes.EMPTY
    return Level(grid, np.int8(x), np.int8(y), np.int8(direction), level.target), hand, steps


def _inside(level: Level) -> np.ndarray:
    """The cells that no wall parts from the agent: a MultiRoom grid has empty cells outside of its rooms."""
    inside, before = np.zeros(level.grid.shape, bool), -1
    inside[level.y, level.x] = True
    while inside.sum() != before:
        before, wide = inside.sum(), np.pad(inside, 1)
        near = wide[:-2, 1:-1] | wide[2:, 1:-1] | wide[1:-1, :-2] | wide[1:-1, 2:]
        inside |= near & (level.grid != tile_codes.WALL)
    return inside


def _next_to_things(grid: np.ndarray, inside: np.ndarray) -> list[tuple[int, int, int]]:
    """Poses (x, y, direction) on a cell to stand on, with something other than floor or wall ahead."""
    things = np.argwhere((grid != tile_codes.EMPTY) & (grid != tile_codes.WALL))
    poses = [(x - dx, y - dy, way) for y, x in things for way, (dx, dy) in enumerate(_AHEAD)]
    return [(x, y, way) for x, y, way in poses if inside[y, x] and grid[y, x] < tile_codes.STANDABLE_BELOW]


def purposeful(rng: np.random.Generator):
    """A way to act that tries what the cell ahead is good for, half of the time."""

    def choose(env) -> int:
        ahead = code_of(env.grid.get(*env.front_pos))
        useful = [dynamics.FORWARD]
        if tile_codes.KEY <= ahead < tile_codes.CLOSED:
            useful = [dynamics.PICK_UP, dynamics.PICK_UP, dynamics.TOGGLE]
        elif ahead >= tile_codes.CLOSED or tile_codes.OPEN <= ahead < tile_codes.KEY:
            useful = [dynamics.TOGGLE, dynamics.TOGGLE, dynamics.FORWARD, dynamics.DROP]
        elif ahead == tile_codes.EMPTY and env.carrying is not None:
            useful = [dynamics.DROP, dynamics.FORWARD, dynamics.FORWARD]
        return int(rng.choice(useful) if rng.random() < 0.5 else rng.integers(7))

    return choose
