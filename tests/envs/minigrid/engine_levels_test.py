"""Codes, packing and the refusal of malformed levels."""

import jax.numpy as jnp
import numpy as np
import pytest
from envs.minigrid import oracle
from envs.minigrid.conftest import room
from envs.minigrid.level_check import check_level
from hypothesis import given, settings
from hypothesis import strategies as st

from made.envs.minigrid import tile_codes
from made.envs.minigrid.tile_codes import Level


@pytest.mark.parametrize("code", np.flatnonzero(tile_codes.KNOWN))
def test_codes_and_the_packages_objects_are_one_to_one(code):
    thing = oracle.thing_of(int(code))
    assert oracle.code_of(thing) == code
    assert tuple(tile_codes.ENCODING[code]) == (thing.encode() if thing else (1, 0, 0))
    if thing:
        assert (code < tile_codes.STANDABLE_BELOW) == thing.can_overlap()
        assert (tile_codes.STANDABLE_BELOW <= code < tile_codes.OPAQUE_FROM) == thing.can_pickup()
        assert (code >= tile_codes.OPAQUE_FROM) == (not thing.see_behind())


def test_there_are_82_codes_and_names_tell_them_apart():
    names = {tile_codes.name(int(code)) for code in np.flatnonzero(tile_codes.KNOWN)}
    assert len(names) == tile_codes.KNOWN.sum() == 82
    assert "200" in tile_codes.name(200)


@settings(max_examples=8, deadline=None)
@given(height=st.integers(3, 25), width=st.integers(3, 25), seed=st.integers(0, 99))
def test_packing_keeps_every_cell_inside_a_frame_of_walls(height, width, seed):
    grid = np.random.default_rng(seed).choice(np.flatnonzero(tile_codes.KNOWN), (2, height, width)).astype(np.uint8)
    packed = tile_codes.pack(jnp.asarray(grid))
    assert packed.shape == (2, tile_codes.packed_size(height, width)) and packed.shape[1] % 32 == 0
    assert np.array_equal(tile_codes.unpack(packed, height, width), grid)
    counted = np.asarray(packed) == tile_codes.WALL
    assert (counted.sum(1) - (grid == tile_codes.WALL).sum((1, 2)) == packed.shape[1] - height * width).all()


def test_states_are_small():
    assert (
        tile_codes.packed_size(16, 16) <= 900 and tile_codes.packed_size(25, 25) <= 1900
    )  # the rest of a state is 21 bytes


def changed(**cells) -> Level:
    level = room()
    for place, code in cells.items():
        level.grid[int(place[2]), int(place[1])] = code
    return level


@pytest.mark.parametrize(
    ("level", "words"),
    [
        (changed(c22=7), "row 2 holds 7, which is the code of nothing"),
        (changed(c31=tile_codes.WALL + 1), "column 3, row 1"),
        (room()._replace(grid=room().grid[0]), "shape (6,)"),
        (room()._replace(grid=room().grid[None]), "without leading axes"),
        (room()._replace(grid=room().grid.astype(float)), "float64"),
        (room()._replace(grid=room().grid[:2]), "3 to 127"),
        (room()._replace(grid=np.zeros((5, 128), np.uint8)), "3 to 127"),
        (room()._replace(grid=room().grid.astype(np.int32) - 300), "the code of nothing"),
        (changed(c22=tile_codes.WALL), "there is a wall"),
        (changed(c22=tile_codes.LOCKED), "red locked door"),
        (room()._replace(x=np.int8(6)), "inside 6 columns"),
        (room()._replace(y=np.int8(-1)), "they must be inside"),
        (room()._replace(direction=np.int8(4)), "0 to 3"),
        (room(target=np.uint8(tile_codes.WALL)), "NO_TARGET"),
        (room(target=np.uint8(250)), "no code"),
        (changed(c50=tile_codes.EMPTY, c51=tile_codes.EMPTY), "column 5, row 1"),
        (changed(c24=tile_codes.CLOSED), "close the outer wall"),
    ],
)
def test_a_malformed_level_is_refused(level, words):
    with pytest.raises(ValueError) as error:
        check_level(level)
    assert words in str(error.value)


# Without N12, which is the slowest to draw and like the others.
@pytest.mark.parametrize("task", [task for task in oracle.IDS if "N12" not in task])
def test_the_packages_levels_are_sound(task):
    """`check_level` raises for a level that is not."""
    env = oracle.make(task)
    env.reset(seed=0)
    check_level(oracle.level_of(env))


def test_a_level_made_by_hand_is_sound():
    check_level(
        room(tile_codes.KEYBOX + 8 * tile_codes.RED + tile_codes.GREY, target=np.uint8(tile_codes.KEY + tile_codes.RED))
    )
