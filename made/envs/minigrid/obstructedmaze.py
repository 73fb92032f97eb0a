"""ObstructedMaze: fetch the blue ball. Doors are locked, keys may be hidden in boxes, balls may stand before doors."""

from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, UInt32

from made.envs.minigrid import rooms
from made.envs.minigrid.rooms import STEPS, RoomGrid, Things, WordMaker, pick
from made.envs.minigrid.tile_codes import BALL, BLUE, GREEN, GREY, KEY, KEYBOX, RIGHT, Level

ROOM_SIZE = 6
TARGET = BALL + BLUE
BLOCKER = BALL + GREEN
SIDES = ((2, 1), (1, 2), (0, 1), (1, 0))  # the rooms right of, below, left of and above the one in the middle
CORNERS = ((2, 0), (2, 2), (0, 2), (0, 0))


def _key(colour: Array, hidden: bool) -> Array:
    return (KEYBOX + 8 * colour + GREY) if hidden else KEY + colour


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
        (cell,), colour = grid.doors(words[:1]), pick(words[1], 6)
        things: Things = (rooms.door(cell, colour, locked=True),)
        if self.blocked:
            things = rooms.put(things, _before(cell, RIGHT, grid.width), BLOCKER)
        things = rooms.place_in_room(grid, things, 0, 0, _key(colour, self.hidden), words[2])
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
    quarters: int = eqx.field(static=True)
    visited: int = eqx.field(static=True)
    agent_room: tuple[int, int] = eqx.field(static=True)
    hidden: bool = eqx.field(static=True)
    blocked: bool = eqx.field(static=True)
    keys_last: bool = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    width: int = eqx.field(static=True, init=False, default=3 * (ROOM_SIZE - 1) + 1)
    height: int = eqx.field(static=True, init=False, default=3 * (ROOM_SIZE - 1) + 1)

    def __init__(
        self,
        quarters: int = 4,
        visited: int = 25,
        agent_room: tuple[int, int] = (1, 1),
        *,
        hidden: bool = True,
        blocked: bool = True,
        keys_last: bool = False,
        max_steps: int | None = None,
    ):
        if not 1 <= quarters <= 4 or not all(0 <= at <= 2 for at in agent_room):
            raise ValueError(
                f"Maze has 1 to 4 quarters and 3 x 3 rooms; it was given quarters={quarters}, agent_room={agent_room}."
            )
        self.quarters, self.visited, self.agent_room = quarters, visited, agent_room
        self.hidden, self.blocked, self.keys_last = hidden, blocked, keys_last
        self.max_steps = 4 * visited * ROOM_SIZE**2 if max_steps is None else max_steps

    def level(self, words: UInt32[Array, " w"]) -> Level:
        grid = RoomGrid(ROOM_SIZE, 3, 3)
        cells, colours = grid.doors(words[:12]), rooms.shuffle(words[12:17])
        things: Things = ()
        for side in range(self.quarters):
            things += (rooms.door(cells[grid.passage(1, 1, side)], colours[side]),)
            things += self._quarter(grid, side, cells, colours, words[17 + 2 * side : 19 + 2 * side])

        corner = pick(words[25], self.quarters)
        i, j = (sum((corner == at) * room[axis] for at, room in enumerate(CORNERS)) for axis in (0, 1))
        things = (*things, *rooms.place_in_room(grid, (), i, j, TARGET, words[26]))
        agent = rooms.place_agent(grid.walls(), grid, things, *self.agent_room, words[27])
        return rooms.draw(grid.walls(), things, agent, TARGET)

    def _quarter(
        self, grid: RoomGrid, side: int, cells: list[Array], colours: list[Array], words: UInt32[Array, "2"]
    ) -> Things:
        """The locked doors of one quarter, the balls before them, and their keys."""
        i, j = SIDES[side]
        doors, things = (), ()

        def lock(things: Things, turn: int) -> tuple[tuple[Array, Array], Things]:
            way = (side + turn) % 4
            cell = cells[grid.passage(i, j, way)]
            ball = rooms.put(things, _before(cell, way, grid.width), BLOCKER) if self.blocked else things
            return rooms.door(cell, colours[(side + turn) % 6], locked=True), ball

        def hide(things: Things, turn: int, word: Array) -> Things:
            return rooms.place_in_room(grid, things, i, j, _key(colours[(side + turn) % 6], self.hidden), word)

        for turn, word in zip((-1, 1), words, strict=True):
            door, things = lock(things, turn)
            doors += (door,)
            if not self.keys_last:
                things = hide(things, turn, word)
        if self.keys_last:
            for turn, word in zip((-1, 1), words, strict=True):
                things = hide(things, turn, word)
        return (*doors, *things)
