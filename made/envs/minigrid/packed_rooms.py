"""Rooms of MultiRoom as 32-bit words, so that asking if two rooms overlap takes four instructions.

    bits   0-4   6-10        12-16  18-22        24-28                29-30             31
           left  31 - right  top    31 - bottom  where its door is    the wall that     set
                                                 along that wall      its door is in

`right` and `bottom` are the first column and row beyond the room; bits 5, 11, 17 and 23 are set, as guards. The word 0
is no room.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, UInt8, UInt32

from made.envs.minigrid.rooms import pick
from made.envs.minigrid.tile_codes import CLOSED, DOWN, GOAL, LEFT, NO_TARGET, RIGHT, UP, WALL, Level

SIDE = 25  # of the whole grid
SMALLEST = 4

Word = np.uint32
Words = tuple[Array, Array]
_ROOM = Word(1 << 31)
_GUARDS = Word(sum(32 << shift for shift in (0, 6, 12, 18)))
_FIELD = Word(31)
_HALF = Word(0xFFF)  # the two fields of one axis
_PAIRS = Word(0x3F03F)  # the first field of each axis


def threefry(seed: Words, a: UInt32[Array, " B"], b: UInt32[Array, " B"], rounds: int = 13) -> Words:
    """Two random words for each pair of counters: Threefry-2x32, whose 13 rounds are the least that pass BigCrush.

    `jax.random` numbers its draws by their place in an array; here the counters say what they are for.
    """
    keys = (seed[0], seed[1], seed[0] ^ seed[1] ^ np.uint32(0x1BD11BDA))
    a, b = a + keys[0], b + keys[1]
    for i in range(rounds):
        turn = (13, 15, 26, 6, 17, 29, 16, 24)[i % 8]
        a = a + b
        b = ((b << turn) | (b >> (32 - turn))) ^ a
        if i % 4 == 3:
            n = i // 4 + 1
            a, b = a + keys[n % 3], b + keys[(n + 1) % 3] + np.uint32(n)
    return a, b


def first_room(number: UInt32[Array, " B"], seed: Words, largest: int) -> UInt32[Array, " B"]:
    """The first room of each attempt: a corner anywhere, a random size, among those that fit in the grid.

    Attempts whose first room does not fit come to nothing, so they are left out from the start. The last row of the
    grid is never used by a room, and its last two columns and rows never hold a corner.
    """
    a, b = threefry(seed, number, jnp.zeros_like(number))
    left, right = _span(a, largest, SIDE)
    top, bottom = _span(b, largest, SIDE - 1)
    return _room(left, right, top, bottom) | Word(LEFT << 29)


def _span(word: UInt32[Array, " B"], largest: int, limit: int) -> tuple[Array, Array]:
    """Where a first room begins and ends along one axis, all that fit alike likely."""
    sizes = range(SMALLEST, largest + 1)
    starts = np.cumsum([0, *(min(SIDE - 2, limit - size + 1) for size in sizes)])
    at = pick(word, int(starts[-1])).astype(jnp.uint32)
    begin, size = at, jnp.full_like(at, SMALLEST)
    for more, start in enumerate(starts[1:-1], 1):
        begin = jnp.where(at >= Word(start), at - Word(start), begin)
        size = jnp.where(at >= Word(start), Word(SMALLEST + more), size)
    return begin, begin + size


def one_try(chain: list[Array], last: Array, k: Array | int, word: UInt32[Array, " B"], largest: int) -> Array:
    """One try at a room behind the last of the k rooms of the chain, or 0 where it does not fit.

    A try draws the wall to leave by (any but the one entered by), the place of the door in it, the sizes of the
    room, and how far it is shifted along the wall. Along the other axis the rooms share that wall. The word is used
    as a fraction that gives digit after digit: no outcome is off by more than 2e-5 of its probability.
    """
    bits = 32 - (max(3, largest - 2) - 1).bit_length()  # so that no digit overflows
    fraction = word >> (32 - bits)

    def digit(n):
        nonlocal fraction
        scaled = fraction * n
        fraction = scaled & Word((1 << bits) - 1)
        return scaled >> bits

    wall = digit(Word(3))
    wall += wall >= ((last >> 29) & Word(3))
    turned = (wall & Word(1)) == 1  # the door is in a wall above or below: exchange the axes
    across_size, along_size = (Word(SMALLEST) + digit(Word(largest - 3)) for _ in range(2))
    last = jnp.where(turned, _turn(last), last)
    near, far = last & _FIELD, _FIELD - ((last >> 6) & _FIELD)
    begin, end = (last >> 12) & _FIELD, _FIELD - ((last >> 18) & _FIELD)
    door = begin + Word(1) + digit(end - begin - Word(2))
    along_end = door + Word(2) + digit(along_size - Word(2))
    along = along_end - along_size  # below zero it wraps round to a huge number
    across = jnp.where(wall < Word(LEFT), far - Word(1), near + Word(1) - across_size)
    across_end = across + across_size

    limit = jnp.where(turned, Word(SIDE - 1), Word(SIDE))
    fits = (across < Word(SIDE)) & (along < Word(SIDE))
    fits &= (across_end <= limit) & (along_end <= Word(2 * SIDE - 1) - limit)
    room = _room(across, across_end, along, along_end)
    room = jnp.where(turned, _turn(room) | _ROOM | _GUARDS, room)
    for at, other in enumerate(chain[:-1]):
        fits &= apart(room, other) | (at >= k - 1)  # the last room may be touched, and behind it there are none
    return jnp.where(fits, room | (door << 24) | (((wall + Word(2)) & Word(3)) << 29), Word(0))


def apart(room: UInt32[Array, " B"], other: UInt32[Array, " B"]) -> Bool[Array, " B"]:
    """Whether a new room keeps clear of another: it may touch it from the right or from below, not otherwise.

    One of right < left', right' <= left, bottom < top', bottom' <= top has to hold. The four are compared at once:
    each guard bit of the difference survives where its field of the one is not below that of the other.
    """
    fields = room & ~(_GUARDS | Word(0xFF000000))
    swapped = ((fields >> 6) & _PAIRS) | ((fields & _PAIRS) << 6)
    limits = Word(32 | 31 << 6 | 32 << 12 | 31 << 18) - swapped  # right + 1, 31 - left, bottom + 1, 31 - top
    return (((other | _GUARDS) - limits) & _GUARDS) != 0


def _room(left, right, top, bottom):
    return left | ((_FIELD - right) << 6) | (top << 12) | ((_FIELD - bottom) << 18) | _ROOM | _GUARDS


def _turn(room):
    """The room with its axes exchanged, without its door."""
    return ((room >> 12) & _HALF) | ((room & _HALF) << 12)


def furnish(chain: UInt32[Array, "R n"], words: UInt32[Array, "R+4 n"]) -> Level:
    """The levels of these chains of rooms: walls, doors of colors that change from one to the next, agent and goal."""
    rooms, n = chain.shape
    left, top, along = (chain >> shift & _FIELD for shift in (0, 12, 24))
    right, bottom = (_FIELD - (chain >> shift & _FIELD) for shift in (6, 18))
    wall = chain >> 29 & Word(3)
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
