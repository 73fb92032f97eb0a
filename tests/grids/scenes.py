"""Situations that a random walk seldom meets, and actions that make something of them."""

import numpy as np

from grids import oracle
from made.grids import dynamics, world
from made.grids.world import Level

_AHEAD = ((1, 0), (0, 1), (-1, 0), (0, -1))
_MOVABLE = [code for code in range(world.KEY, world.CLOSED) if world.KNOWN[code]]
_SCATTERED = [*_MOVABLE, world.LAVA, world.GOAL, *(world.FLOOR + c for c in range(6))]


def _doors(grid: np.ndarray) -> np.ndarray:
    closed = (grid >= world.CLOSED) & (grid < world.WALL - world.WALL % 8)
    return closed | ((grid >= world.OPEN) & (grid < world.KEY))


def scene(level: Level, rng: np.random.Generator, max_steps: int) -> tuple[Level, int, int]:
    """(a changed level, what is in hand, steps on the clock), the agent next to something where that can be."""
    grid, target = level.grid.copy(), int(level.target)
    for y, x in np.argwhere(_doors(grid)):
        if rng.random() < 0.5:
            grid[y, x] = rng.choice([world.OPEN, world.CLOSED, world.LOCKED]) + grid[y, x] % 8
    empty = np.argwhere(grid == world.EMPTY)
    for y, x in empty[rng.permutation(len(empty))[: rng.integers(0, 1 + min(8, len(empty) // 3))]]:
        thing = int(rng.choice(_SCATTERED))
        grid[y, x] = thing if thing != target else world.EMPTY
    hand = int(rng.choice(_MOVABLE)) if rng.random() < 0.5 else world.EMPTY
    spots = _next_to_things(grid)
    x, y, direction = spots[rng.integers(len(spots))] if spots else (level.x, level.y, level.direction)
    ahead = int(grid[y + _AHEAD[direction][1], x + _AHEAD[direction][0]])
    if world.LOCKED <= ahead < world.LOCKED + 6 and rng.random() < 0.5:
        hand = ahead - world.LOCKED + world.KEY
    steps = int(max_steps - rng.integers(1, 12)) if rng.random() < 0.1 else int(rng.integers(0, max_steps // 2))
    grid[y, x] = grid[y, x] if grid[y, x] < world.STANDABLE_BELOW else world.EMPTY
    hand = hand if hand != target else world.EMPTY
    return Level(grid, np.int8(x), np.int8(y), np.int8(direction), level.target), hand, steps


def _next_to_things(grid: np.ndarray) -> list[tuple[int, int, int]]:
    """Poses (x, y, direction) on a cell to stand on, with something other than floor or wall ahead."""
    height, width = grid.shape
    things = np.argwhere((grid != world.EMPTY) & (grid != world.WALL))
    poses = [(x - dx, y - dy, way) for y, x in things for way, (dx, dy) in enumerate(_AHEAD)]
    inside = [(x, y, way) for x, y, way in poses if 0 < x < width - 1 and 0 < y < height - 1]
    return [(x, y, way) for x, y, way in inside if grid[y, x] < world.STANDABLE_BELOW]


def purposeful(rng: np.random.Generator):
    """A way to act that tries what the cell ahead is good for, half of the time."""

    def choose(env) -> int:
        ahead = oracle.code_of(env.grid.get(*env.front_pos))
        useful = [dynamics.FORWARD]
        if world.KEY <= ahead < world.CLOSED:
            useful = [dynamics.PICK_UP, dynamics.PICK_UP, dynamics.TOGGLE]
        elif ahead >= world.CLOSED or world.OPEN <= ahead < world.KEY:
            useful = [dynamics.TOGGLE, dynamics.TOGGLE, dynamics.FORWARD, dynamics.DROP]
        elif ahead == world.EMPTY and env.carrying is not None:
            useful = [dynamics.DROP, dynamics.FORWARD, dynamics.FORWARD]
        return int(rng.choice(useful) if rng.random() < 0.5 else rng.integers(7))

    return choose
