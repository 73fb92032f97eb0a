"""MultiRoom: a chain of rooms of random sizes, a door from each to the next, the goal in the last.

The package makes a level by whole attempts. An attempt places rooms one after another, with at most eight tries for
each, and what it ends with counts only if all the rooms are there; otherwise a new attempt is made (for twelve rooms
about a thousand of them). So levels are attempts conditioned on success, and that is how they are drawn here: rounds
of many attempts in parallel, one room at a time, the failed ones dropped after each room so that the rest stay
close together, and those that succeed kept in the order of their attempts until there are enough. Whether an
attempt is kept depends on itself alone, and what it draws on its own number, so the chains are independent, follow
the package's distribution, and are the same for the same key however the work is cut into rounds and blocks.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int, Key, UInt32

from made.core import trees
from made.envs.minigrid.packed_rooms import SIDE, SMALLEST, Word, Words, first_room, furnish, one_try, threefry
from made.envs.minigrid.tile_codes import Level, Maker

TRIES = 8  # for each room but the first
MOST = 1 << 24  # attempts in a round: about a gigabyte
AT_ONCE = 2  # tries, on a CPU

# The fraction of attempts that have 1, 2, ... rooms, by the largest side of a room; of 2^25 attempts each.
ALIVE = {
    4: (1.0, 0.9974, 0.8943, 0.7996, 0.702, 0.6049, 0.5086, 0.3987, 0.3213, 0.2558, 0.2017, 0.1565),
    5: (1.0, 0.9963, 0.9055, 0.8091, 0.7084, 0.6061, 0.4985, 0.4052, 0.3263, 0.2595, 0.2025, 0.155),
    8: (1.0, 0.991, 0.893, 0.7664, 0.6217, 0.4807, 0.3576, 0.2551, 0.1719, 0.106, 0.05765, 0.02691),
    10: (1.0, 0.9859, 0.8647, 0.6917, 0.5045, 0.3378, 0.2062, 0.1114, 0.05101, 0.01916, 0.005836, 0.001422),
}


class MultiRoom(Maker):
    """`rooms` rooms, each with sides of 4 to `largest` cells: MiniGrid-MultiRoom-N{rooms}-S{largest}-v0."""

    rooms: int = eqx.field(static=True)
    largest: int = eqx.field(static=True, default=10)
    max_steps: int = eqx.field(static=True, default=None)  # None: 20 for each room
    width: int = eqx.field(static=True, init=False, default=SIDE)
    height: int = eqx.field(static=True, init=False, default=SIDE)

    def __post_init__(self):
        if not 2 <= self.rooms <= 16 or not SMALLEST <= self.largest <= 18:
            raise ValueError(
                f"MultiRoom takes 2 to 16 rooms with sides of at most 4 to 18 cells, walls included; "
                f"it was given rooms={self.rooms}, largest={self.largest}."
            )
        if self.max_steps is None:
            self.max_steps = 20 * self.rooms

    def levels(self, key: Key[Array, ""], n: int) -> Level:
        k_rooms, k_rest = jax.random.split(key)
        search = chains if jax.default_backend() == "cpu" else chains_at_once
        found = search(k_rooms, n, self.rooms, self.largest)
        return furnish(found, jax.random.bits(k_rest, (self.rooms + 4, n)))


class Search(NamedTuple):
    """What goes from one round to the next."""

    tried: UInt32[Array, ""]  # attempts so far, which is also the number of the next one
    epoch: UInt32[Array, ""]  # counts up when the numbers are used up
    lanes: Int[Array, ""]  # attempts in the next round
    count: Int[Array, ""]  # successes so far
    found: UInt32[Array, "R m"]  # their rooms; m is n and a block to spare
    here: UInt32[Array, "R+1 L"]  # attempts under way: a row of numbers, then a row for each room
    there: UInt32[Array, "R+1 L"]


def chains(
    key: Key[Array, ""], n: int, rooms: int, largest: int, cut: tuple[int, int] | None = None
) -> UInt32[Array, "R n"]:
    """The rooms of n levels, as words: those of the first n attempts that succeed.

    `cut` is (the most attempts of a round, how many are made at a time), so that the tables stay in a CPU's cache.
    """
    first, second = jax.random.bits(key, (2,))
    lanes, block = cut or ((1 << 14, 1 << 10) if n <= 256 else (1 << 16, 1 << 11))

    def one_round(search: Search) -> Search:
        here, there, left = _attempts(search, (first, second ^ search.epoch), rooms, largest, block)

        def keep(b, found):
            columns = lax.dynamic_slice(here, (1, b * block), (rooms, block))
            return lax.dynamic_update_slice(found, columns, (0, search.count + b * block))

        found = lax.fori_loop(0, -(-jnp.minimum(left, n - search.count) // block), keep, search.found)
        tried, count = search.tried + search.lanes.astype(jnp.uint32), search.count + left
        wanted = jnp.ceil(1.1 * (n - count) * tried.astype(jnp.float32) / jnp.maximum(count, 1) / block)
        tried, epoch = _next_epoch(tried, search.epoch, lanes)
        following = jnp.clip(wanted, 1, lanes // block).astype(jnp.int32) * block
        return Search(tried, epoch, following, count, found, here, there)

    zero, table = jnp.zeros((), jnp.uint32), jnp.zeros((1 + rooms, lanes), jnp.uint32)
    start = jnp.asarray(min(lanes, -(-2 * n // block) * block), jnp.int32)
    found = jnp.zeros((rooms, n + block), jnp.uint32)
    search = Search(zero, zero, start, jnp.zeros((), jnp.int32), found, table, table)
    return lax.while_loop(lambda search: search.count < n, one_round, search).found[:, :n]


def _attempts(search: Search, seed: Words, rooms: int, largest: int, block: int) -> tuple[Array, Array, Array]:
    """One round of attempts: the table of those that succeed, one to spare, and how many succeed."""

    def begin(b, table):
        number = search.tried + b.astype(jnp.uint32) * Word(block) + jnp.arange(block, dtype=jnp.uint32)
        table = lax.dynamic_update_slice(table, number[None], (0, b * block))
        return lax.dynamic_update_slice(table, first_room(number, seed, largest)[None], (1, b * block))

    def extend(k, top, here, there, left, scratch):
        """The next room, number k, for each chain of k rooms: from one table into the other, so that none is copied."""

        def some(b, state):
            there, count, scratch = state
            old = lax.dynamic_slice(here, (0, b * block), (1 + top, block))
            scratch = next_room(old, k, seed, largest, scratch)
            alive = (scratch[0] != 0) & (b * block + jnp.arange(block) < left)
            order, found = places(alive, block)
            there = lax.dynamic_update_slice(there, old[:, order], (0, count))
            there = lax.dynamic_update_slice(there, scratch[0][order][None], (k + 1, count))
            return there, count + found, scratch

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


def _next_epoch(tried: UInt32[Array, ""], epoch: UInt32[Array, ""], lanes: int) -> tuple[Array, Array]:
    """(attempts, epoch): the numbers start again at 0 before they run out."""
    again = tried > Word(2**32 - 2 * lanes)
    return jnp.where(again, Word(0), tried), epoch + again.astype(jnp.uint32)


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


def next_room(old: UInt32[Array, "k B"], k: Array | int, seed: Words, largest: int, scratch: Array) -> Array:
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
        for more in range(AT_ONCE):
            word = trees.mix(start + (done + Word(more)) * step)
            room = jnp.where(room == 0, one_try(chain, last, k, word, largest), room)
        rows = lax.dynamic_update_slice(rows, room[None], (0, 0))
        return lax.dynamic_update_slice(rows, (rows[1, 0] + Word(AT_ONCE))[None, None], (1, 0))

    return lax.while_loop(lambda rows: rows[1, 0] < TRIES, some, scratch)


def chains_at_once(key: Key[Array, ""], n: int, rooms: int, largest: int) -> UInt32[Array, "R n"]:
    """The same as `chains`, bit for bit, for an accelerator: a round of attempts in one program of fixed sizes.

    `chains` asks after every block how much is left, which costs an accelerator a wait for the host: half of the time
    for MultiRoom-N12-S10. The fraction of attempts that is alive after each room is known, so each room is placed in
    one step of that size and a margin; sizes that the table lacks take a larger one. Should more be alive, the last are
    left out: by number, not by what they hold, so the levels follow the package's distribution even then.
    """
    first, second = jax.random.bits(key, (2,))
    alive = ALIVE[max(side for side in ALIVE if side <= largest)]
    alive = (*alive, *alive[-1:] * (rooms - len(alive)))[:rooms]
    # One round is enough for up to ten thousand levels: eight standard deviations and a hundredth are to spare.
    wanted = (n + 8 * math.sqrt(n) + 8) * 1.01 / alive[-1]
    lanes = math.ceil(wanted / math.ceil(wanted / MOST))
    sizes = [min(lanes, math.ceil(1.01 * lanes * p + 8 * math.sqrt(lanes * p) + 8)) for p in alive]

    def one_round(search: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        tried, epoch, count, found = search
        numbers, seed = tried + jnp.arange(lanes, dtype=jnp.uint32), (first, second ^ epoch)
        chain, left = [first_room(numbers, seed, largest)], jnp.asarray(lanes, jnp.int32)
        for size in sizes[1:]:
            room = some_room(numbers, chain, seed, largest)
            order, left = places((room != 0) & (jnp.arange(room.shape[0]) < left), size)
            numbers, *chain = (row[order] for row in (numbers, *chain, room))
            left = jnp.minimum(left, size)
        found = lax.dynamic_update_slice(found, jnp.stack(chain), (0, count))
        return *_next_epoch(tried + Word(lanes), epoch, lanes), count + left, found

    zero = jnp.zeros((), jnp.uint32)
    search = zero, zero, jnp.zeros((), jnp.int32), jnp.zeros((rooms, n + sizes[-1]), jnp.uint32)
    return lax.while_loop(lambda search: search[2] < n, one_round, search)[3][:, :n]


def some_room(numbers: UInt32[Array, " L"], chain: list[Array], seed: Words, largest: int) -> UInt32[Array, " L"]:
    """The same as `next_room`, from the rooms of each chain.

    All eight tries in one go are a half faster still, but take four times as long to compile.
    """
    start, step = threefry(seed, numbers, jnp.full_like(numbers, len(chain)))

    def some(i: Array, room: Array) -> Array:
        for more in range(4):
            word = trees.mix(start + (i.astype(jnp.uint32) * Word(4) + Word(more)) * (step | Word(1)))
            room = jnp.where(room == 0, one_try(chain, chain[-1], len(chain), word, largest), room)
        return room

    return lax.fori_loop(0, TRIES // 4, some, jnp.zeros_like(numbers))
