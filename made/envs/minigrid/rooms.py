"""Rooms of one size in rows and columns, as the package's RoomGrid builds them, without its loops.

The package places things by trial: it draws a cell until one suits. The cell it ends with is uniform over those
that suit, so here it is drawn from them at once. Every choice uses up one 32-bit word, hence a level is a plain
function of a short row of words, and a batch of levels is that function under `vmap`.

A level in the making is its walls, which are known before anything is drawn, and `Things`: what was added so far.
"""

import abc
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, UInt32

from made.envs.minigrid.tile_codes import CLOSED, DOWN, EMPTY, LEFT, LOCKED, RIGHT, STEPS, UP, WALL, Level, Maker

Number = Any  # an int, or a traced one
Things = tuple[tuple[Number, Number], ...]  # (cell, code) each; a cell is counted along the rows of the grid

NOWHERE = np.int32(1 << 20)  # the cell of a thing that is not there
OPEN_WAY = np.uint32(0)  # in `connect_all`: rooms that are joined already
NO_WAY = np.uint32(0xFFFFFFFF)  # in `connect_all`: rooms that must not be joined


class WordMaker(Maker):
    """Draws a level from a fixed number of 32-bit words."""

    n_words: eqx.AbstractVar[int]

    @abc.abstractmethod
    def level(self, words: UInt32[Array, " w"]) -> Level:
        """The level that these words stand for."""

    def levels(self, key: Key[Array, ""], n: int) -> Level:
        return jax.vmap(self.level)(jax.random.bits(key, (n, self.n_words)))


def pick(word: UInt32[Array, "*b"], n: Number) -> Int[Array, "*b"]:
    """A number of 0 .. n - 1, for n up to 2^16: floor(n * word / 2^32), so each comes up within n / 2^32 of 1 / n."""
    n = jnp.asarray(n).astype(jnp.uint32)
    return (((word >> 16) * n + (((word & np.uint32(0xFFFF)) * n) >> 16)) >> 16).astype(jnp.int32)


def choose(word: UInt32[Array, ""], allowed: Bool[Array, " m"]) -> Int[Array, ""]:
    """The place of one of the true entries, all alike likely."""
    rank = jnp.cumsum(allowed.astype(jnp.int32))
    return (rank <= pick(word, rank[-1])).sum()


def shuffle(words: UInt32[Array, " m"]) -> list[Int[Array, ""]]:
    """0 .. m in random order, m + 1 numbers from m words."""
    order = [jnp.asarray(i) for i in range(len(words) + 1)]
    for last in range(len(words), 0, -1):
        at = pick(words[last - 1], last + 1)
        moved = order[last]
        for i in range(last):
            order[last] = jnp.where(at == i, order[i], order[last])
            order[i] = jnp.where(at == i, moved, order[i])
    return order


class RoomGrid(eqx.Module):
    """`rows` x `columns` rooms that share their walls. Room (i, j) is in column i and row j, as in the package."""

    room_size: int = eqx.field(static=True)  # walls included
    rows: int = eqx.field(static=True)
    columns: int = eqx.field(static=True)

    @property
    def width(self) -> int:
        return (self.room_size - 1) * self.columns + 1

    @property
    def height(self) -> int:
        return (self.room_size - 1) * self.rows + 1

    @property
    def passages(self) -> tuple[tuple[int, int, int], ...]:
        """Every wall between two rooms, as (i, j, side): the room, and RIGHT or DOWN, where the other one is."""
        across = ((i, j, RIGHT) for j in range(self.rows) for i in range(self.columns - 1))
        return (*across, *((i, j, DOWN) for j in range(self.rows - 1) for i in range(self.columns)))

    def passage(self, i: int, j: int, side: int) -> int:
        """The place in `passages` of the wall on one side of room (i, j)."""
        room = (i - 1, j, RIGHT) if side == LEFT else (i, j - 1, DOWN) if side == UP else (i, j, side)
        return self.passages.index(room)

    def walls(self, opened: Sequence[tuple[int, int, int]] = ()) -> np.ndarray:
        """The grid of walls [H, W]; those of `opened`, each (i, j, side), are taken away between their corners."""
        pitch = self.room_size - 1
        y, x = np.mgrid[: self.height, : self.width]
        grid = np.where((x % pitch == 0) | (y % pitch == 0), WALL, EMPTY).astype(np.uint8)
        for i, j, side in (self.passages[self.passage(*wall)] for wall in opened):
            if side == RIGHT:
                grid[j * pitch + 1 : (j + 1) * pitch, (i + 1) * pitch] = EMPTY
            else:
                grid[(j + 1) * pitch, i * pitch + 1 : (i + 1) * pitch] = EMPTY
        return grid

    def doors(self, words: UInt32[Array, " p"]) -> Int[Array, " p"]:
        """The cell where a door in each of `passages` would be: anywhere in the wall but the corners."""
        pitch, (i, j, side) = self.room_size - 1, np.array(self.passages, np.int32).T
        corner = j * pitch * self.width + i * pitch
        first = corner + np.where(side == RIGHT, pitch, pitch * self.width)
        return first + (1 + pick(words, pitch - 1)) * np.where(side == RIGHT, self.width, 1)


def free(things: Things, cells: Int[Array, " m"]) -> Bool[Array, " m"]:
    """Which cells have none of the things on them."""
    return ~sum((cells == cell for cell, _ in things), jnp.zeros(cells.shape, bool))


def place_in_room(grid: RoomGrid, things: Things, i: Number, j: Number, code: Number, word: Array) -> Things:
    """The things with one more, on a free cell within the walls of room (i, j), which may be traced.

    It is not next to the middle of the grid, where the package has the agent until it is placed (`reject_next_to`).
    """
    pitch, half = grid.room_size - 1, grid.room_size // 2
    y, x = np.mgrid[1:pitch, 1:pitch]
    cells = jnp.asarray((j * pitch + y.ravel()) * grid.width + i * pitch + x.ravel(), jnp.int32)
    middle_x, middle_y = (n // 2 * pitch + half for n in (grid.columns, grid.rows))
    far = abs(cells % grid.width - middle_x) + abs(cells // grid.width - middle_y) > 1
    return (*things, (cells[choose(word, free(things, cells) & far)], code))


def put(things: Things, cell: Number, code: Number) -> Things:
    """The things with one more on that very cell; what was there is gone."""
    return (*((jnp.where(other == cell, NOWHERE, other), what) for other, what in things), (cell, code))


def door(cell: Number, color: Number, locked: bool = False, there: Number = True) -> tuple[Number, Number]:
    """A shut door as a thing, or nothing where `there` is false."""
    return jnp.where(there, cell, NOWHERE), (LOCKED if locked else CLOSED) + color


def place_agent(walls: np.ndarray, grid: RoomGrid, things: Things, i: int, j: int, word: Array) -> tuple[Array, ...]:
    """(x, y, direction) of the agent: a free cell in the bounds of room (i, j), looking at no thing.

    The bounds are the room's walls, so a cell where a wall was taken away will do.
    """
    pitch = grid.room_size - 1
    corner, bounds = (j * pitch, i * pitch), walls[j * pitch : (j + 1) * pitch + 1, i * pitch : (i + 1) * pitch + 1]
    y, x = (np.argwhere(bounds == EMPTY) + corner).astype(np.int32).T
    here = y * grid.width + x
    ahead = here[:, None] + np.array([dy * grid.width + dx for dx, dy in STEPS], np.int32)
    chosen = choose(word, free(things, jnp.asarray(here.repeat(4))) & free(things, jnp.asarray(ahead.ravel())))
    return jnp.asarray(x)[chosen // 4], jnp.asarray(y)[chosen // 4], chosen % 4


def connect_all(grid: RoomGrid, start: tuple[int, int], turns: UInt32[Array, " p"]) -> Bool[Array, " p"]:
    """Which of `passages` get a door when doors are added one by one until every room can be reached from `start`.

    `turns` says when the turn of each comes (random words above 0), with OPEN_WAY and NO_WAY as the exceptions. A
    room is reached once all doors of some way to it are there, at the latest of their turns, and by the way that
    has this earliest; when the last room is reached no further door is added.
    """
    split = grid.rows * (grid.columns - 1)  # `passages` to the right stand before those downwards
    across, down = turns[:split].reshape(grid.rows, -1), turns[split:].reshape(-1, grid.columns)
    sides = [(across, (0, 0), (0, 1)), (down, (0, 1), (0, 0)), (across, (0, 0), (1, 0)), (down, (1, 0), (0, 0))]
    ways = [jnp.pad(way, more, constant_values=NO_WAY) for way, *more in sides]  # out of each room, by side

    def relax(_, reached):
        wide = jnp.pad(reached, 1, constant_values=NO_WAY)
        near = wide[1:-1, 2:], wide[2:, 1:-1], wide[1:-1, :-2], wide[:-2, 1:-1]
        for way, other in zip(ways, near, strict=True):
            reached = jnp.minimum(reached, jnp.maximum(way, other))
        return reached

    first = jnp.full((grid.rows, grid.columns), NO_WAY).at[start[::-1]].set(OPEN_WAY)
    reached = jax.lax.fori_loop(0, first.size - 1, relax, first)
    return (turns != OPEN_WAY) & (turns <= reached.max())


def draw(walls: np.ndarray | Array, things: Things, agent: Sequence[Number], target: Number) -> Level:
    """The level: the walls, the things in their cells (no two in one, see `put`) and the agent."""
    cells = jnp.stack([jnp.asarray(cell, jnp.int32) for cell, _ in things])
    codes = jnp.stack([jnp.asarray(code).astype(jnp.uint8) for _, code in things])
    grid = jnp.asarray(walls.ravel()).at[cells].set(codes, mode="drop").reshape(walls.shape)
    x, y, direction = (jnp.asarray(part, jnp.int32) for part in agent)
    return Level(grid, x, y, direction, jnp.asarray(target).astype(jnp.uint8))
