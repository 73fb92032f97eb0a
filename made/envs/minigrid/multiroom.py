"""MultiRoom: a chain of rooms of random sizes, a door from each to the next, the goal in the last."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Key, UInt8, UInt32

from made.envs.minigrid.room_search_cpu import SIDE, SMALLEST, Word, chains, doors, shape_for, sides
from made.envs.minigrid.room_search_gpu import ALIVE, chains_at_once
from made.envs.minigrid.rooms import pick
from made.envs.minigrid.tile_codes import CLOSED, DOWN, GOAL, LEFT, NO_TARGET, RIGHT, UP, WALL, Level, Maker


class MultiRoom(Maker):
    """`rooms` rooms, each with sides of 4 to `largest` cells: MiniGrid-MultiRoom-N{rooms}-S{largest}-v0."""

    rooms: int = eqx.field(static=True)
    largest: int = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    width: int = eqx.field(static=True, init=False, default=SIDE)
    height: int = eqx.field(static=True, init=False, default=SIDE)

    def __init__(self, rooms: int, largest: int = 10, max_steps: int | None = None):
        if not 2 <= rooms <= 16 or not SMALLEST <= largest <= 18:
            raise ValueError(
                f"MultiRoom takes 2 to 16 rooms with sides of at most 4 to 18 cells, walls included; "
                f"it was given rooms={rooms}, largest={largest}."
            )
        self.rooms = rooms
        self.largest = largest
        self.max_steps = 20 * rooms if max_steps is None else max_steps

    def levels(self, key: Key[Array, ""], n: int) -> Level:
        k_rooms, k_rest = jax.random.split(key)
        backend = jax.default_backend()
        if backend != "cpu" and self.rooms <= len(ALIVE.get(self.largest, ())):
            found = chains_at_once(k_rooms, n, self.rooms, self.largest)
        else:
            shape = shape_for(n, self.rooms, self.largest, backend)
            found = chains(k_rooms, n, self.rooms, self.largest, shape)
        return furnish(found, jax.random.bits(k_rest, (self.rooms + 4, n)))


def furnish(chain: UInt32[Array, "R n"], words: UInt32[Array, "R+4 n"]) -> Level:
    """The levels of these chains of rooms: walls, doors of colors that change from one to the next, agent and goal."""
    rooms, n = chain.shape
    left, right, top, bottom = sides(chain)
    wall, along = doors(chain)
    door_x = jnp.where(wall == LEFT, left, jnp.where(wall == RIGHT, right - Word(1), along))
    door_y = jnp.where(wall == UP, top, jnp.where(wall == DOWN, bottom - Word(1), along))
    turns = jnp.concatenate([pick(words[:1], 6), 1 + pick(words[1 : rooms - 1], 5)])
    shut = CLOSED + jnp.cumsum(turns, axis=0) % 6  # a turn of 1 to 5 never leads back to the same color

    def inside(at: int, across: Array, down: Array) -> tuple[Array, Array]:
        """A cell within the walls of one room of the chain."""
        x = left[at] + 1 + pick(across, right[at] - left[at] - 2)
        return x, top[at] + 1 + pick(down, bottom[at] - top[at] - 2)

    x, y = inside(0, words[-4], words[-3])
    goal_x, goal_y = inside(-1, words[-2], words[-1])
    cells = jnp.concatenate([door_y * SIDE + door_x, (goal_y * SIDE + goal_x)[None]])[1:].T
    codes = jnp.concatenate([shut, jnp.full((1, n), GOAL)]).T.astype(jnp.uint8)
    walls = _walls(left, right, top, bottom).reshape(n, SIDE * SIDE)
    grid = jax.vmap(lambda grid, cells, codes: grid.at[cells].set(codes))(walls, cells, codes)
    agent = (part.astype(jnp.int32) for part in (x, y, pick(words[rooms - 1], 4)))
    return Level(grid.reshape(n, SIDE, SIDE), *agent, target=jnp.full(n, NO_TARGET, jnp.uint8))


def _walls(left: Array, right: Array, top: Array, bottom: Array) -> UInt8[Array, "n 25 25"]:
    """The walls of the rooms, drawn row by row as the bits of a word."""
    rows, one = np.arange(SIDE, dtype=np.uint32), Word(1)

    def add(walls, room):
        x, end, y, low = (part[:, None] for part in room)
        sides, whole = (one << x) | (one << (end - one)), (one << end) - (one << x)
        line = jnp.where((rows == y) | (rows == low - one), whole, sides)
        return walls | jnp.where((rows >= y) & (rows < low), line, Word(0)), None

    # A loop, since XLA's CPU fusions would work out a row anew for each cell.
    walls, _ = lax.scan(add, jnp.zeros((left.shape[1], SIDE), jnp.uint32), (left, right, top, bottom))
    return ((walls[:, :, None] >> rows) & one).astype(jnp.uint8) * np.uint8(WALL)
