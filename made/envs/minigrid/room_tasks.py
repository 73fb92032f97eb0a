"""The tasks in rooms of one size: Empty, DoorKey, FourRooms, KeyCorridor and ObstructedMaze.

KeyCorridor: fetch the ball behind a locked door; the key lies in one of the rooms along the corridor. ObstructedMaze:
fetch the blue ball. Doors are locked, keys may be hidden in boxes, balls may stand before doors.
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from made.envs.minigrid import rooms, tile_codes
from made.envs.minigrid.rooms import NO_WAY, OPEN_WAY, RoomGrid, Things, WordMaker, pick
from made.envs.minigrid.tile_codes import BALL, DOWN, EMPTY, GOAL, KEY, KEYBOX, LOCKED, RIGHT, STEPS, UP, WALL, Level


def _box(size: int) -> np.ndarray:
    """A square of walls [size, size]."""
    grid = np.full((size, size), WALL, np.uint8)
    grid[1:-1, 1:-1] = EMPTY
    return grid


class _Square(WordMaker):
    """A task in a square of `size` cells a side, walls included."""

    size: int = eqx.field(static=True, default=8)
    max_steps: int = eqx.field(static=True, default=None)  # None: `steps_per_cell` for each
    least: ClassVar[int]
    steps_per_cell: ClassVar[int]

    def __post_init__(self):
        if self.size < self.least:
            name = type(self).__name__
            raise ValueError(
                f"{name} needs a side of at least {self.least} cells, walls included, and was given {self.size}."
            )
        if self.max_steps is None:
            self.max_steps = self.steps_per_cell * self.size**2

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.size

    @property
    def height(self) -> int:  # type: ignore[override]
        return self.size


class Empty(_Square):
    """One room with the goal in its corner: MiniGrid-Empty-{size}x{size}-v0, or -Random- with `scattered`."""

    scattered: bool = eqx.field(static=True, default=False)
    n_words: ClassVar[int] = 2
    see_through: ClassVar[bool] = True
    least: ClassVar[int] = 4
    steps_per_cell: ClassVar[int] = 4

    def level(self, words: UInt32[Array, "2"]) -> Level:
        inner = self.size - 2
        spot = pick(words[0], inner**2 - 1) if self.scattered else 0  # the goal is on the last cell of all
        agent = (1 + spot % inner, 1 + spot // inner, pick(words[1], 4) if self.scattered else RIGHT)
        goal = inner * self.size + inner
        return rooms.draw(_box(self.size), ((goal, GOAL),), agent, tile_codes.NO_TARGET)


class DoorKey(_Square):
    """Two rooms, a locked door between them, and its key: MiniGrid-DoorKey-{size}x{size}-v0."""

    n_words: ClassVar[int] = 5
    least: ClassVar[int] = 5
    steps_per_cell: ClassVar[int] = 10

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
            (door * size + split, LOCKED + tile_codes.YELLOW),
            ((1 + other // left) * size + 1 + other % left, KEY + tile_codes.YELLOW),
        )
        agent = (1 + spot % left, 1 + spot // left, pick(words[4], 4))
        return rooms.draw(wall, things, agent, tile_codes.NO_TARGET)


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
        return rooms.draw(walls, things, (start % size, start // size, pick(words[6], 4)), tile_codes.NO_TARGET)


class KeyCorridor(WordMaker):
    """Three columns of rooms, the middle one open from end to end: MiniGrid-KeyCorridorS{room_size}R{rows}-v0."""

    room_size: int = eqx.field(static=True)
    rows: int = eqx.field(static=True)
    max_steps: int = eqx.field(static=True, default=None)  # None: 30 for each cell of a room

    def __post_init__(self):
        if self.room_size < 3 or self.rows < 1:
            raise ValueError(
                f"KeyCorridor takes rooms of 3 cells or more, walls included, in 1 row or more; "
                f"it was given room_size={self.room_size}, rows={self.rows}."
            )
        if self.max_steps is None:
            self.max_steps = 30 * self.room_size**2

    @property
    def grid(self) -> RoomGrid:
        return RoomGrid(self.room_size, self.rows, 3)

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.grid.width

    @property
    def height(self) -> int:  # type: ignore[override]
        return self.grid.height

    @property
    def n_words(self) -> int:  # type: ignore[override]
        return 3 * len(self.grid.passages) + 7

    def level(self, words: UInt32[Array, " w"]) -> Level:
        grid, n_passages = self.grid, len(self.grid.passages)
        corridor = [(1, j, UP) for j in range(1, self.rows)]
        walls = grid.walls(opened=corridor)
        doors, turns, tints, words = jnp.split(words, np.cumsum([n_passages] * 3))
        cells = grid.doors(doors)

        row, color, target = pick(words[0], self.rows), pick(words[1], 6), BALL + pick(words[2], 6)
        entrance = [grid.passage(1, j, RIGHT) for j in range(self.rows)]
        things: Things = (rooms.door(cells[np.array(entrance)][row], color, locked=True),)
        things = rooms.place_in_room(grid, things, 2, row, target, words[3])
        things = rooms.place_in_room(grid, things, 0, pick(words[4], self.rows), KEY + color, words[5])
        agent = rooms.place_agent(walls, grid, things, 1, self.rows // 2, words[6])

        # Corridor and locked door are ways already, and the locked room gets no other.
        i, j, side = np.array(grid.passages).T
        is_way = ((i == 1) & (side == DOWN)) | ((i == 1) & (side == RIGHT) & (row == j))
        turns = jnp.where(is_way, OPEN_WAY, jnp.clip(turns, 1, NO_WAY - 1))
        turns = jnp.where((i == 2) & (side == DOWN) & ((row == j) | (row == j + 1)), NO_WAY, turns)
        added = rooms.connect_all(grid, (1, self.rows // 2), turns)
        tinted = zip(cells, pick(tints, 6), added, strict=True)
        things += tuple(rooms.door(cell, tint, there=there) for cell, tint, there in tinted)
        return rooms.draw(walls, things, agent, target)


ROOM_SIZE = 6
TARGET = BALL + tile_codes.BLUE
BLOCKER = BALL + tile_codes.GREEN
SIDES = ((2, 1), (1, 2), (0, 1), (1, 0))  # the rooms right of, below, left of and above the one in the middle
CORNERS = ((2, 0), (2, 2), (0, 2), (0, 0))


def _key(color: Array, hidden: bool) -> Array:
    return (KEYBOX + 8 * color + tile_codes.GREY) if hidden else KEY + color


def _before(door: Array, side: int, width: int) -> Array:
    """The cell in front of a door that is on this side of a room, within the room."""
    dx, dy = STEPS[side]
    return door - dy * width - dx


class TwoRooms(WordMaker):
    """Two rooms and a locked door: MiniGrid-ObstructedMaze-1Dl-v0, -1Dlh- with `hidden`, -1Dlhb- with both."""

    n_words: ClassVar[int] = 5
    hidden: bool = eqx.field(static=True, default=False)
    blocked: bool = eqx.field(static=True, default=False)
    max_steps: int = eqx.field(static=True, default=4 * 2 * ROOM_SIZE**2)
    width: int = eqx.field(static=True, init=False, default=2 * (ROOM_SIZE - 1) + 1)
    height: int = eqx.field(static=True, init=False, default=ROOM_SIZE)

    def level(self, words: UInt32[Array, "5"]) -> Level:
        grid = RoomGrid(ROOM_SIZE, 1, 2)
        (cell,), color = grid.doors(words[:1]), pick(words[1], 6)
        things: Things = (rooms.door(cell, color, locked=True),)
        if self.blocked:
            things = rooms.put(things, _before(cell, RIGHT, grid.width), BLOCKER)
        things = rooms.place_in_room(grid, things, 0, 0, _key(color, self.hidden), words[2])
        things = rooms.place_in_room(grid, things, 1, 0, TARGET, words[3])
        agent = rooms.place_agent(grid.walls(), grid, things, 0, 0, words[4])
        return rooms.draw(grid.walls(), things, agent, TARGET)


class Maze(WordMaker):
    """Three by three rooms, with doors in one to four quarters: the other MiniGrid-ObstructedMaze tasks.

    A quarter is a room beside the middle one, an unlocked door to it, and locked doors from it to two corners, whose
    keys lie in it. The ball is in a corner. `visited` only sets how long an episode may last.

    In the package's -v0 tasks the second ball of a quarter may be put where the first key is, which is then gone for
    good; the -v1 tasks, here `keys_last`, put down both balls before the keys.
    """

    n_words: ClassVar[int] = 12 + 5 + 2 * 4 + 3
    quarters: int = eqx.field(static=True, default=4)
    visited: int = eqx.field(static=True, default=25)
    agent_room: tuple[int, int] = eqx.field(static=True, default=(1, 1))
    hidden: bool = eqx.field(static=True, default=True)
    blocked: bool = eqx.field(static=True, default=True)
    keys_last: bool = eqx.field(static=True, default=False)
    max_steps: int = eqx.field(static=True, default=None)  # None: 4 for each cell of the rooms visited
    width: int = eqx.field(static=True, init=False, default=3 * (ROOM_SIZE - 1) + 1)
    height: int = eqx.field(static=True, init=False, default=3 * (ROOM_SIZE - 1) + 1)

    def __post_init__(self):
        if not 1 <= self.quarters <= 4 or not all(0 <= at <= 2 for at in self.agent_room):
            raise ValueError(
                f"Maze has 1 to 4 quarters and 3 x 3 rooms; it was given quarters={self.quarters}, "
                f"agent_room={self.agent_room}."
            )
        if self.max_steps is None:
            self.max_steps = 4 * self.visited * ROOM_SIZE**2

    def level(self, words: UInt32[Array, " w"]) -> Level:
        grid = RoomGrid(ROOM_SIZE, 3, 3)
        cells, colors = grid.doors(words[:12]), rooms.shuffle(words[12:17])
        things: Things = ()
        for side in range(self.quarters):
            things += (rooms.door(cells[grid.passage(1, 1, side)], colors[side]),)
            things += self._quarter(grid, side, cells, colors, words[17 + 2 * side : 19 + 2 * side])

        corner = pick(words[25], self.quarters)
        i, j = (sum((corner == at) * room[axis] for at, room in enumerate(CORNERS)) for axis in (0, 1))
        things = (*things, *rooms.place_in_room(grid, (), i, j, TARGET, words[26]))
        agent = rooms.place_agent(grid.walls(), grid, things, *self.agent_room, words[27])
        return rooms.draw(grid.walls(), things, agent, TARGET)

    def _quarter(self, grid: RoomGrid, side: int, cells: Array, colors: list[Array], words: Array) -> Things:
        """The locked doors of one quarter, the balls before them, and their keys."""
        (i, j), doors, things = SIDES[side], (), ()
        ways = zip((side - 1, side + 1), words, strict=True)
        locks = [(way % 4, colors[way % 6], word) for way, word in ways]
        for way, color, word in locks:
            cell = cells[grid.passage(i, j, way)]
            doors += (rooms.door(cell, color, locked=True),)
            if self.blocked:
                things = rooms.put(things, _before(cell, way, grid.width), BLOCKER)
            if not self.keys_last:
                things = rooms.place_in_room(grid, things, i, j, _key(color, self.hidden), word)
        for _, color, word in locks if self.keys_last else ():
            things = rooms.place_in_room(grid, things, i, j, _key(color, self.hidden), word)
        return (*doors, *things)
