"""Chains of rooms for MultiRoom: found by attempts as in the package, thousands of them side by side.

The package makes a level by whole attempts. An attempt places rooms one after another, with at most eight tries for
each, and what it ends with counts only if all the rooms are there; otherwise a new attempt is made (for twelve rooms
about a thousand of them). So levels are attempts conditioned on success, and that is how they are drawn here: rounds
of many attempts side by side, one room at a time, the failed ones dropped after each room so that the rest stay
close together, and those that succeed kept in the order of their attempts until there are enough. Whether an
attempt is kept depends on itself alone, and what it draws on its own number, so the chains are independent, follow
the package's distribution, and are the same for the same key however the work is cut into rounds and blocks.

A room is one 32-bit word (0 is no room), so that asking if two rooms overlap takes four instructions:

    bits   0-4   6-10        12-16  18-22        24-28                29-30             31
           left  31 - right  top    31 - bottom  where its door is    the wall that     set
                                                 along that wall      its door is in

`right` and `bottom` are the first column and row beyond the room; bits 5, 11, 17 and 23 are set, as guards.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int, Key, UInt32

from made.core import trees
from made.envs.minigrid.rooms import pick, threefry
from made.envs.minigrid.tile_codes import LEFT

SIDE = 25  # of the whole grid
SMALLEST = 4
TRIES = 8  # for each room but the first

Word = np.uint32
_ROOM = Word(1 << 31)
_GUARDS = Word(sum(32 << shift for shift in (0, 6, 12, 18)))
_FIELD = Word(31)
_HALF = Word(0xFFF)  # the two fields of one axis
_PAIRS = Word(0x3F03F)  # the first field of each axis


class Shape(NamedTuple):
    """How the work is cut: it changes the speed, never the levels."""

    lanes: int  # at most so many attempts in a round
    block: int  # this many at a time
    unroll: int  # tries in one go


def shape_for(n: int, rooms: int, largest: int, backend: str) -> Shape:
    """Cuts that suit the machine, the number of levels wanted and how hard they are to find.

    On a CPU the tables should stay in the cache; elsewhere few large steps are better than many small ones.
    """
    if backend == "cpu":
        return Shape(1 << 14, 1 << 10, 2) if n <= 256 else Shape(1 << 16, 1 << 11, 2)
    block = 1 << 20 if rooms * largest >= 100 and n >= 1024 else 1 << 17
    return Shape(4 * block, block, TRIES)


class Search(NamedTuple):
    """What goes from one round to the next."""

    tried: UInt32[Array, ""]  # attempts so far, which is also the number of the next one
    epoch: UInt32[Array, ""]  # counts up when the numbers are used up
    lanes: Int[Array, ""]  # attempts in the next round
    count: Int[Array, ""]  # successes so far
    found: UInt32[Array, "R m"]  # their rooms; m is n and a block to spare
    here: UInt32[Array, "R+1 L"]  # attempts under way: a row of numbers, then a row for each room
    there: UInt32[Array, "R+1 L"]


def chains(key: Key[Array, ""], n: int, rooms: int, largest: int, shape: Shape) -> UInt32[Array, "R n"]:
    """The rooms of n levels, as words: those of the first n attempts that succeed."""
    first, second = jax.random.bits(key, (2,))
    lanes, block = shape.lanes, shape.block

    def one_round(search: Search) -> Search:
        here, there, left = _attempts(search, (first, second ^ search.epoch), rooms, largest, shape)

        def keep(b, found):
            columns = lax.dynamic_slice(here, (1, b * block), (rooms, block))
            return lax.dynamic_update_slice(found, columns, (0, search.count + b * block))

        found = lax.fori_loop(0, -(-jnp.minimum(left, n - search.count) // block), keep, search.found)
        tried, count = search.tried + search.lanes.astype(jnp.uint32), search.count + left
        wanted = jnp.ceil(1.1 * (n - count) * tried.astype(jnp.float32) / jnp.maximum(count, 1) / block)
        again = tried > Word(2**32 - 2 * lanes)
        return Search(
            jnp.where(again, Word(0), tried),
            search.epoch + again.astype(jnp.uint32),
            jnp.clip(wanted, 1, lanes // block).astype(jnp.int32) * block,
            count,
            found,
            here,
            there,
        )

    zero, table = jnp.zeros((), jnp.uint32), jnp.zeros((1 + rooms, lanes), jnp.uint32)
    start = jnp.asarray(min(lanes, -(-2 * n // block) * block), jnp.int32)
    found = jnp.zeros((rooms, n + block), jnp.uint32)
    search = Search(zero, zero, start, jnp.zeros((), jnp.int32), found, table, table)
    return lax.while_loop(lambda search: search.count < n, one_round, search).found[:, :n]


def _attempts(
    search: Search, seed: tuple[Array, Array], rooms: int, largest: int, shape: Shape
) -> tuple[Array, Array, Array]:
    """One round of attempts: the table of those that succeed, one to spare, and how many succeed."""
    block = shape.block

    def begin(b, table):
        number = search.tried + b.astype(jnp.uint32) * Word(block) + jnp.arange(block, dtype=jnp.uint32)
        table = lax.dynamic_update_slice(table, number[None], (0, b * block))
        return lax.dynamic_update_slice(table, first_room(number, seed, largest)[None], (1, b * block))

    def extend(k, top, here, there, left, scratch):
        """The next room, number k, for each chain of k rooms: from one table into the other, so that none is copied."""

        def some(b, state):
            there, count, scratch = state
            old = lax.dynamic_slice(here, (0, b * block), (1 + top, block))
            scratch = next_room(old, k, seed, largest, shape.unroll, scratch)
            alive = (scratch[0] != 0) & (b * block + jnp.arange(block) < left)
            return *_append(there, count, old, k, scratch[0], alive), scratch

        return lax.fori_loop(0, -(-left // block), some, (there, jnp.zeros((), jnp.int32), scratch))

    here, there, left = search.here, search.there, search.lanes
    here = lax.fori_loop(0, left // block, begin, here)
    scratch = jnp.zeros((4, block), jnp.uint32)
    for first, top in _stages(rooms):

        def two_rooms(i, state, first=first, top=top):
            here, there, left, scratch = state
            there, left, scratch = extend(first + 2 * i, top, here, there, left, scratch)
            here, left, scratch = extend(first + 2 * i + 1, top, there, here, left, scratch)
            return here, there, left, scratch

        if first == top:
            there, left, scratch = extend(first, top, here, there, left, scratch)
            here, there = there, here
        else:
            pairs = (top - first + 1) // 2
            here, there, left, scratch = lax.fori_loop(0, pairs, two_rooms, (here, there, left, scratch))
    return here, there, left


def _stages(rooms: int) -> list[tuple[int, int]]:
    """The rooms 1 to rooms - 1 in runs (first, last) that share one piece of program: compiling each anew takes long.

    A shared piece looks at as many rooms as the longest chain of its run has, so the runs should not be long: the first
    rooms, at which most attempts fail, are placed with little to look at. Runs are even, or single.
    """
    stages = [(k, k) for k in range(1, min(rooms, 2 + rooms % 2))]
    at = len(stages) + 1
    while at < rooms:
        last = min(rooms - 1, at + (3 if at < 6 else 5))
        stages.append((at, last))
        at = last + 1
    return stages


def _append(
    table: UInt32[Array, "R L"],
    count: Int[Array, ""],
    old: UInt32[Array, "k B"],
    k: Array | int,
    room: UInt32[Array, " B"],
    alive: Bool[Array, " B"],
) -> tuple[Array, Array]:
    """Write the columns that are alive behind those already there, in order: (table, how many are there)."""
    order, found = places(alive, alive.shape[0])
    table = lax.dynamic_update_slice(table, old[:, order], (0, count))
    table = lax.dynamic_update_slice(table, room[order][None], (k + 1, count))
    return table, count + found


def places(alive: Bool[Array, " B"], size: int) -> tuple[Int[Array, " m"], Int[Array, ""]]:
    """(where the first `size` of those alive are, how many are alive); behind the last stands 0."""
    spare = -alive.shape[0] % 32
    flags = jnp.pad(alive, (0, spare)).reshape(-1, 32).astype(jnp.uint32) << np.arange(32, dtype=np.uint32)
    flags = flags.sum(1, dtype=jnp.uint32)
    ones = lax.population_count(flags)
    below = np.array([(1 << i) - 1 for i in range(32)], np.uint32)
    rank = (jnp.cumsum(ones) - ones)[:, None] + lax.population_count(flags[:, None] & below)
    rank = rank.reshape(-1)[: alive.shape[0]].astype(jnp.int32)
    place = jnp.where(alive, rank, size)
    order = jnp.zeros(size, jnp.int32)
    order = order.at[place].set(jnp.arange(alive.shape[0], dtype=jnp.int32), mode="drop", unique_indices=True)
    return order, ones.sum(dtype=jnp.uint32).astype(jnp.int32)


def first_room(number: UInt32[Array, " B"], seed: tuple[Array, Array], largest: int) -> UInt32[Array, " B"]:
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


def next_room(
    old: UInt32[Array, "k B"],
    k: Array | int,
    seed: tuple[Array, Array],
    largest: int,
    unroll: int,
    scratch: UInt32[Array, "4 B"],
) -> UInt32[Array, "4 B"]:
    """The room that follows in each chain, or 0 where eight tries did not find one, as the first row of the scratch.

    `old` has the numbers of the attempts and then their rooms, k of them; what stands behind them does not count.
    The words of the tries are murmur's finaliser of an arithmetic progression, whose start and step are fresh for
    every attempt and room. Why a scratch: XLA shares its loops out among the cores, which for loops as short as
    these costs more than it gives, but not those that write to a part of an array.
    """
    number, chain = old[0], list(old[1:])
    last = lax.dynamic_index_in_dim(old, k, 0, keepdims=False)
    start, step = threefry(seed, number, jnp.broadcast_to(jnp.asarray(k, jnp.uint32), number.shape))
    scratch = lax.dynamic_update_slice(scratch, start[None], (2, 0))
    scratch = lax.dynamic_update_slice(scratch, (step | Word(1))[None], (3, 0))
    scratch = lax.dynamic_update_slice(scratch, jnp.zeros((2, number.shape[0]), jnp.uint32), (0, 0))

    def some(rows):
        room, done, start, step = rows[0], rows[1, 0], rows[2], rows[3]
        for more in range(unroll):
            word = trees.mix(start + (done + Word(more)) * step)
            room = jnp.where(room == 0, one_try(chain, last, k, word, largest), room)
        rows = lax.dynamic_update_slice(rows, room[None], (0, 0))
        return lax.dynamic_update_slice(rows, (rows[1, 0] + Word(unroll))[None, None], (1, 0))

    if unroll == TRIES:
        return some(scratch)
    return lax.while_loop(lambda rows: rows[1, 0] < TRIES, some, scratch)


def one_try(
    chain: list[UInt32[Array, " B"]], last: UInt32[Array, " B"], k: Array | int, word: UInt32[Array, " B"], largest: int
) -> UInt32[Array, " B"]:
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


def sides(room: UInt32[Array, "*b"]) -> tuple[Array, Array, Array, Array]:
    """(left, right, top, bottom) of rooms."""
    left, top = room & _FIELD, (room >> 12) & _FIELD
    return left, _FIELD - ((room >> 6) & _FIELD), top, _FIELD - ((room >> 18) & _FIELD)


def doors(room: UInt32[Array, "*b"]) -> tuple[Array, Array]:
    """(wall, place along it) of the doors by which rooms are entered."""
    return (room >> 29) & Word(3), (room >> 24) & _FIELD
