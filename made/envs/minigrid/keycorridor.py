"""KeyCorridor: fetch the ball behind a locked door; the key lies in one of the rooms along the corridor."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from made.envs.minigrid import rooms
from made.envs.minigrid.rooms import NO_WAY, OPEN_WAY, RoomGrid, WordMaker, pick
from made.envs.minigrid.tile_codes import BALL, DOWN, KEY, RIGHT, UP, Level


class KeyCorridor(WordMaker):
    """Three columns of rooms, the middle one open from end to end: MiniGrid-KeyCorridorS{room_size}R{rows}-v0."""

    room_size: int = eqx.field(static=True)
    rows: int = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)

    def __init__(self, room_size: int, rows: int, max_steps: int | None = None):
        if room_size < 3 or rows < 1:
            raise ValueError(
                f"KeyCorridor takes rooms of 3 cells or more, walls included, in 1 row or more; "
                f"it was given room_size={room_size}, rows={rows}."
            )
        self.room_size = room_size
        self.rows = rows
        self.max_steps = 30 * room_size**2 if max_steps is None else max_steps

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

        row, colour, target = pick(words[0], self.rows), pick(words[1], 6), BALL + pick(words[2], 6)
        entrance = [grid.passage(1, j, RIGHT) for j in range(self.rows)]
        things: rooms.Things = (rooms.door(jnp.stack([cells[p] for p in entrance])[row], colour, locked=True),)
        things = rooms.place_in_room(grid, things, 2, row, target, words[3])
        things = rooms.place_in_room(grid, things, 0, pick(words[4], self.rows), KEY + colour, words[5])
        agent = rooms.place_agent(walls, grid, things, 1, self.rows // 2, words[6])

        order = [self._turn(passage, row, turn) for passage, turn in zip(grid.passages, turns, strict=True)]
        added = rooms.connect_all(grid, (1, self.rows // 2), order)
        tinted = zip(cells, pick(tints, 6), added, strict=True)
        things += tuple(rooms.door(cell, tint, there=there) for cell, tint, there in tinted)
        return rooms.draw(walls, things, agent, target)

    def _turn(self, passage: tuple[int, int, int], row: Array, turn: Array) -> Array:
        """The turn of one passage: corridor and locked door are ways already, and the locked room gets no other."""
        i, j, side = passage
        turn = jnp.clip(turn, 1, NO_WAY - 1)
        if (i, side) == (1, DOWN):
            return jnp.full_like(turn, OPEN_WAY)
        if (i, side) == (1, RIGHT):
            return jnp.where(row == j, OPEN_WAY, turn)
        if (i, side) == (2, DOWN):
            return jnp.where((row == j) | (row == j + 1), NO_WAY, turn)
        return turn
