"""MultiRoom from the inside: rooms as words, tries, rounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.random import threefry_2x32

from made.envs.minigrid import MultiRoom, multiroom, packed_rooms

SIDE = 25
coordinates = st.integers(0, 20)
sizes = st.integers(4, 10)


def word(x: int, y: int, w: int, h: int, door: int = 0, wall: int = 0) -> int:
    fields = x | (31 - x - w) << 6 | y << 12 | (31 - y - h) << 18
    return fields | 1 << 5 | 1 << 11 | 1 << 17 | 1 << 23 | door << 24 | wall << 29 | 1 << 31


def room(word: int) -> tuple[int, int, int, int, int, int]:
    """(x, y, width, height, door, wall)"""
    x, y = word & 31, word >> 12 & 31
    return x, y, 31 - (word >> 6 & 31) - x, 31 - (word >> 18 & 31) - y, word >> 24 & 31, word >> 29 & 3


def apart(new, old) -> bool:
    """The package's condition, as it is written there."""
    x, y, w, h = new[:4]
    return x + w < old[0] or old[0] + old[2] <= x or y + h < old[1] or old[1] + old[3] <= y


def one_try(chain: list, word: int, largest: int) -> tuple | None:
    """What a try is, in plain arithmetic: the digits of a fraction, then the package's rules."""
    bits = 32 - (max(3, largest - 2) - 1).bit_length()
    fraction, (x, y, w, h, _, entered) = word >> (32 - bits), chain[-1]

    def digit(n: int) -> int:
        nonlocal fraction
        value, fraction = divmod(fraction * n, 1 << bits)
        return value

    wall = [side for side in range(4) if side != entered][digit(3)]
    across, along = 4 + digit(largest - 3), 4 + digit(largest - 3)
    if wall in (0, 2):  # right, left
        door = y + 1 + digit(h - 2)
        new = (x + w - 1 if wall == 0 else x - across + 1, door - along + 2 + digit(along - 2), across, along)
    else:  # down, up
        door = x + 1 + digit(w - 2)
        new = (door - along + 2 + digit(along - 2), y + h - 1 if wall == 1 else y - across + 1, along, across)
    if new[0] < 0 or new[1] < 0 or new[0] + new[2] > SIDE or new[1] + new[3] >= SIDE:
        return None
    if not all(apart(new, old) for old in chain[:-1]):
        return None
    return (*new, door, (wall + 2) % 4)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(coordinates, coordinates, sizes, sizes), min_size=64, max_size=64))
def test_rooms_are_apart_as_the_package_says(boxes):
    rects = [(x, y, min(w, SIDE - x), min(h, SIDE - y)) for x, y, w, h in boxes]
    words = jnp.asarray([word(*box) for box in rects], jnp.uint32)
    found = packed_rooms.apart(jnp.repeat(words, 64), jnp.tile(words, 64)).reshape(64, 64)
    np.testing.assert_array_equal(found, [[apart(new, old) for old in rects] for new in rects])


@pytest.mark.parametrize("largest", [4, 5, 8, 10, 18])
def test_a_try_is_what_the_package_does(largest):
    """From the same word the same room, by the packed words and by plain arithmetic, along whole chains."""
    rng = np.random.default_rng(largest)
    corners = [(rng.integers(0, 24 - size).tolist(), size.tolist()) for size in rng.integers(4, 11, (3000, 2))]
    lines = [[(*corner, *np.minimum(size, largest).tolist(), 0, 2)] for corner, size in corners]
    attempt, placed = jax.jit(packed_rooms.one_try, static_argnums=4), 0
    for length in range(1, 5):
        words = rng.integers(0, 2**32, len(lines), dtype=np.uint32)
        packed = [jnp.asarray([word(*chain[k]) for chain in lines], jnp.uint32) for k in range(length)]
        stale = [jnp.asarray(rng.integers(0, 2**32, len(lines), dtype=np.uint32)) for _ in range(2)]
        found = np.asarray(attempt(packed + stale, packed[-1], length, jnp.asarray(words), largest)).tolist()
        wanted = [one_try(chain, int(w), largest) for chain, w in zip(lines, words, strict=True)]
        assert [room(f) if f else None for f in found] == wanted
        placed += sum(new is not None for new in wanted)
        lines = [[*chain, new] for chain, new in zip(lines, wanted, strict=True) if new]
    assert placed > 500


def test_first_rooms_are_all_that_fit_alike_often():
    """The package draws corner and size until both fit."""
    rng = np.random.default_rng(0)
    number = jnp.arange(200_000, dtype=jnp.uint32)
    words = np.asarray(packed_rooms.first_room(number, (jnp.uint32(1), jnp.uint32(2)), 10)).tolist()
    ours = np.array([room(w)[:4] for w in words])
    assert {room(w)[5] for w in words} == {2}
    x, y, w, h = rng.integers(0, 23, (2, 400_000)).tolist() + rng.integers(4, 11, (2, 400_000)).tolist()
    theirs = np.array([box for box in zip(x, y, w, h, strict=True) if box[0] + box[2] <= 25 and box[1] + box[3] < 25])
    for axis in (0, 1):
        pair = [np.bincount(part[:, axis] * 16 + part[:, axis + 2], minlength=400) for part in (ours, theirs)]
        assert ((pair[0] > 0) == (pair[1] > 0)).all()
        share = (pair[0] + pair[1]) / (len(ours) + len(theirs))
        error = np.sqrt(share * (1 / len(ours) + 1 / len(theirs)))
        assert (abs(pair[0] / len(ours) - pair[1] / len(theirs)) <= 5 * error).all()


def test_threefry_is_threefry():
    """With the 20 rounds of jax.random it gives the words of jax.random."""
    key, counts = jnp.array([7, 11], jnp.uint32), jnp.arange(10, dtype=jnp.uint32)
    wanted = threefry_2x32(key, counts)
    ours = packed_rooms.threefry((key[0], key[1]), counts[:5], counts[5:], rounds=20)
    np.testing.assert_array_equal(jnp.concatenate(ours), wanted)


def test_levels_do_not_depend_on_how_the_work_is_cut():
    """So they are the same on every machine, and whether a level is kept cannot depend on what is around it."""
    many = multiroom.chains(jax.random.key(3), 300, 4, 6, (1 << 11, 1 << 8))
    few = multiroom.chains(jax.random.key(3), 100, 4, 6, (1 << 9, 1 << 9))
    np.testing.assert_array_equal(few, many[:, :100])
    assert len(np.unique(np.asarray(many), axis=1).T) == 300


@pytest.mark.parametrize(
    ("most", "largest"), [(1 << 24, 5), (1 << 8, 5), (1 << 24, 7)], ids=["one round", "many rounds", "another size"]
)
def test_rounds_of_fixed_sizes_find_the_same_chains(most, largest, monkeypatch):
    """What accelerators use: sizes fixed beforehand, nothing asked on the way."""
    monkeypatch.setattr(multiroom, "MOST", most)
    cut = multiroom.chains(jax.random.key(3), 100, 4, largest, (1 << 9, 1 << 9))
    np.testing.assert_array_equal(multiroom.chains_at_once(jax.random.key(3), 100, 4, largest), cut)


def test_levels_come_from_the_key_alone_and_differ():
    levels = jax.jit(lambda key: MultiRoom(3, 9).levels(key, 1))
    first, again, other = (levels(jax.random.key(seed)) for seed in (0, 0, 1))
    assert first.grid.shape == (1, SIDE, SIDE) and first.x.shape == (1,)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert (first.grid != other.grid).any()


@pytest.mark.parametrize("number, largest", [(1, 5), (17, 4), (4, 3), (4, 19)])
def test_impossible_sizes_are_refused(number, largest):
    with pytest.raises(ValueError, match=f"rooms={number}, largest={largest}"):
        MultiRoom(number, largest)
