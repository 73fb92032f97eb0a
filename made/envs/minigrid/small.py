"""Empty, DoorKey and FourRooms: small tasks for tests, examples and first runs."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from made.envs.minigrid import rooms
from made.envs.minigrid.rooms import WordMaker, pick
from made.envs.minigrid.tile_codes import EMPTY, GOAL, KEY, LOCKED, NO_TARGET, RIGHT, WALL, YELLOW, Level


def _box(size: int) -> np.ndarray:
    """A square of walls [size, size]."""
    grid = np.full((size, size), WALL, np.uint8)
    grid[1:-1, 1:-1] = EMPTY
    return grid


class _Square(WordMaker):
    """A task in a square of `size` cells a side, walls included."""

    size: int = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)

    def _set_size(self, size: int, least: int, max_steps: int) -> None:
        if size < least:
            name = type(self).__name__
            raise ValueError(f"{name} needs a side of at least {least} cells, walls included, and was given {size}.")
        self.size, self.max_steps = size, max_steps

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.size

    @property
    def height(self) -> int:  # type: ignore[override]
        return self.size


class Empty(_Square):
    """One room with the goal in its corner: MiniGrid-Empty-{size}x{size}-v0, or -Random- with `scattered`."""

    scattered: bool = eqx.field(static=True)
    n_words: ClassVar[int] = 2
    see_through: ClassVar[bool] = True

    def __init__(self, size: int = 8, scattered: bool = False, max_steps: int | None = None):
        self._set_size(size, 4, 4 * size**2 if max_steps is None else max_steps)
        self.scattered = scattered

    def level(self, words: UInt32[Array, "2"]) -> Level:
        inner = self.size - 2
        spot = pick(words[0], inner**2 - 1) if self.scattered else 0  # the goal is on the last cell of all
        agent = (1 + spot % inner, 1 + spot // inner, pick(words[1], 4) if self.scattered else RIGHT)
        goal = inner * self.size + inner
        return rooms.draw(_box(self.size), ((goal, GOAL),), agent, NO_TARGET)


class DoorKey(_Square):
    """Two rooms, a locked door between them, and its key: MiniGrid-DoorKey-{size}x{size}-v0."""

    n_words: ClassVar[int] = 5

    def __init__(self, size: int = 8, max_steps: int | None = None):
        self._set_size(size, 5, 10 * size**2 if max_steps is None else max_steps)

    def level(self, words: UInt32[Array, "5"]) -> Level:
        size, inner = self.size, self.size - 2
        split = 2 + pick(words[0], size - 4)
        door = 1 + pick(words[1], size - 3)
        left = split - 1  # the width of the room with the key
        spot = pick(words[2], left * inner)
        other = pick(words[3], left * inner - 1)
        other += other >= spot
        wall = jnp.where(jnp.arange(size) == split, jnp.uint8(WALL), jnp.asarray(_box(size)))
        things = (
            (inner * size + inner, GOAL),
            (door * size + split, LOCKED + YELLOW),
            ((1 + other // left) * size + 1 + other % left, KEY + YELLOW),
        )
        agent = (1 + spot % left, 1 + spot // left, pick(words[4], 4))
        return rooms.draw(wall, things, agent, NO_TARGET)


class FourRooms(WordMaker):
    """Four rooms with a gap in each wall between them, the agent and the goal anywhere: MiniGrid-FourRooms-v0."""

    n_words: ClassVar[int] = 7
    max_steps: int = eqx.field(static=True, default=100)
    width: int = eqx.field(static=True, init=False, default=19)
    height: int = eqx.field(static=True, init=False, default=19)

    def level(self, words: UInt32[Array, "7"]) -> Level:
        size, middle = self.width, self.width // 2
        walls = _box(size)
        walls[middle], walls[:, middle] = WALL, WALL
        near, far = 1 + pick(words[:2], middle - 1), middle + 1 + pick(words[2:4], middle - 1)
        gaps = jnp.stack(
            [*(y * size + middle for y in (near[0], far[0])), *(middle * size + x for x in (near[1], far[1]))]
        )
        cells = jnp.concatenate([jnp.asarray(np.flatnonzero(walls == EMPTY), jnp.int32), gaps])
        spot, other = pick(words[4], len(cells)), pick(words[5], len(cells) - 1)
        start, goal = cells[spot], cells[other + (other >= spot)]
        things = rooms.put(tuple((gap, EMPTY) for gap in gaps), goal, GOAL)
        return rooms.draw(walls, things, (start % size, start // size, pick(words[6], 4)), NO_TARGET)
