"""Chains of rooms on an accelerator: a whole round of attempts in one program of fixed sizes.

`chains` asks after every block how much is left, and on an accelerator each such question costs a wait for the host:
half of the time for MultiRoom-N12-S10. What share of the attempts is alive after each room is known, though, to a
fraction of a percent when there are millions, so here each room is placed in one step whose size is fixed beforehand:
that share and a little more. Nothing is asked until the round is over, and the levels are those of `chains`, bit for
bit: the attempts are numbered alike and kept in the order of their numbers.

Should more be alive than there is room for, which the margin makes all but impossible, the last are left out. They are
left out by number, not by what they hold, so even then the levels follow the package's distribution.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, Key, UInt32

from made.core import trees
from made.envs.minigrid.room_search_cpu import TRIES, Word, first_room, one_try, places
from made.envs.minigrid.rooms import threefry

MOST = 1 << 24  # attempts in a round: about a gigabyte
AT_ONCE = 4  # tries

# The share of attempts that have 1, 2, ... rooms, by the largest side of a room; of 2^25 attempts each.
ALIVE = {
    4: (1.0, 0.9974, 0.8943, 0.7996, 0.702, 0.6049, 0.5086, 0.3987, 0.3213, 0.2558, 0.2017, 0.1565),
    5: (1.0, 0.9963, 0.9055, 0.8091, 0.7084, 0.6061, 0.4985, 0.4052, 0.3263, 0.2595, 0.2025, 0.155),
    8: (1.0, 0.991, 0.893, 0.7664, 0.6217, 0.4807, 0.3576, 0.2551, 0.1719, 0.106, 0.05765, 0.02691),
    10: (1.0, 0.9859, 0.8647, 0.6917, 0.5045, 0.3378, 0.2062, 0.1114, 0.05101, 0.01916, 0.005836, 0.001422),
}


def chains_at_once(key: Key[Array, ""], n: int, rooms: int, largest: int) -> UInt32[Array, "R n"]:
    """The rooms of n levels, as words: those of the first n attempts that succeed, as `chains` finds them."""
    first, second = jax.random.bits(key, (2,))
    lanes, sizes = plan(n, ALIVE[largest][:rooms])

    def one_round(search: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        tried, epoch, count, found = search
        numbers = tried + jnp.arange(lanes, dtype=jnp.uint32)
        kept, left = attempts(numbers, (first, second ^ epoch), largest, sizes)
        found = lax.dynamic_update_slice(found, kept, (0, count))
        tried += Word(lanes)
        again = tried > Word(2**32 - 2 * lanes)
        return jnp.where(again, Word(0), tried), epoch + again.astype(jnp.uint32), count + left, found

    zero = jnp.zeros((), jnp.uint32)
    search = zero, zero, jnp.zeros((), jnp.int32), jnp.zeros((rooms, n + sizes[-1]), jnp.uint32)
    return lax.while_loop(lambda search: search[2] < n, one_round, search)[3][:, :n]


def plan(n: int, alive: tuple[float, ...]) -> tuple[int, tuple[int, ...]]:
    """(attempts in a round, how many there is room for after each room): one round is enough for up to ten thousands.

    Both leave eight standard deviations and a hundredth to spare.
    """
    wanted = (n + 8 * math.sqrt(n) + 8) * 1.01 / alive[-1]
    lanes = math.ceil(wanted / math.ceil(wanted / MOST))
    return lanes, tuple(min(lanes, math.ceil(1.01 * lanes * p + 8 * math.sqrt(lanes * p) + 8)) for p in alive)


def attempts(
    numbers: UInt32[Array, " L"], seed: tuple[Array, Array], largest: int, sizes: tuple[int, ...]
) -> tuple[UInt32[Array, "R m"], Int[Array, ""]]:
    """One round: the chains that have all their rooms, in the order of their numbers, and how many these are."""
    chain, left = [first_room(numbers, seed, largest)], jnp.asarray(numbers.shape[0], jnp.int32)
    for size in sizes[1:]:
        room = some_room(numbers, chain, seed, largest)
        order, left = places((room != 0) & (jnp.arange(room.shape[0]) < left), size)
        numbers, *chain = (row[order] for row in (numbers, *chain, room))
        left = jnp.minimum(left, size)
    return jnp.stack(chain), left


def some_room(
    numbers: UInt32[Array, " L"], chain: list[UInt32[Array, " L"]], seed: tuple[Array, Array], largest: int
) -> UInt32[Array, " L"]:
    """The room that follows in each chain, or 0 where eight tries did not find one, as `chains.next_room` has it.

    All eight tries in one go are a half faster still, but take four times as long to compile.
    """
    start, step = threefry(seed, numbers, jnp.full_like(numbers, len(chain)))

    def some(i: Array, room: Array) -> Array:
        for more in range(AT_ONCE):
            word = trees.mix(start + (i.astype(jnp.uint32) * Word(AT_ONCE) + Word(more)) * (step | Word(1)))
            room = jnp.where(room == 0, one_try(chain, chain[-1], len(chain), word, largest), room)
        return room

    return lax.fori_loop(0, TRIES // AT_ONCE, some, jnp.zeros_like(numbers))
