"""Small rooms for the tests of the engine."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.envs.minigrid import tile_codes
from made.envs.minigrid.env import Grid
from made.envs.minigrid.tile_codes import Level, Maker


class Same(Maker):
    """One level, again and again."""

    level: Level
    max_steps: int = 20
    width: int = eqx.field(static=True, default=6)
    height: int = eqx.field(static=True, default=5)

    def levels(self, key, n):
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *jnp.shape(x))), self.level)


def room(ahead: int = tile_codes.EMPTY, x: int = 2, y: int = 2, direction: int = tile_codes.RIGHT, **other) -> Level:
    """Four by three cells inside walls; `ahead` lies in front of the agent."""
    grid = np.full((5, 6), tile_codes.WALL, np.uint8)
    grid[1:-1, 1:-1] = tile_codes.EMPTY
    dx, dy = ((1, 0), (0, 1), (-1, 0), (0, -1))[direction]
    grid[y + dy, x + dx] = ahead
    level = Level(grid, np.int8(x), np.int8(y), np.int8(direction), np.uint8(tile_codes.NO_TARGET))
    return level._replace(**other)


@pytest.fixture(scope="session")
def grid() -> Grid:
    return Grid(Same(room()))


@pytest.fixture(scope="session")
def step(grid):
    """(level, hand, action) -> (state after, Step), one compiled program for every room."""

    @jax.jit
    def run(level, hand, action, steps, target):
        state, _ = grid.start(level)
        state = state._replace(carrying=hand, steps=steps, target=target)
        return grid.step(state, action, jax.random.key(0))

    def one(level, action, hand=tile_codes.EMPTY, steps=0):
        numbers = jnp.uint8(hand), jnp.int32(action), jnp.int32(steps), jnp.uint8(level.target)
        return jax.device_get(run(level, *numbers))

    return one
