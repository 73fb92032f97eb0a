"""Views against the package's: shadows, edges, walls that are seen through, and the whole grid."""

from functools import partial

import jax
import numpy as np
import pytest
from envs.minigrid import oracle
from minigrid.core.grid import Grid as PackageGrid
from minigrid.envs import EmptyEnv
from minigrid.wrappers import FullyObsWrapper

from made.envs.minigrid import dynamics, tile_codes
from made.envs.minigrid.tile_codes import Level

CODES = np.flatnonzero(tile_codes.KNOWN)


@pytest.fixture(scope="module")
def lit():
    return jax.jit(jax.vmap(dynamics.lit))


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7])
def test_shadows_fall_as_in_the_package(lit, share):
    rng = np.random.default_rng(int(100 * share))
    walls = rng.random((150, 7, 7)) < share
    codes = np.where(walls, rng.choice(CODES[CODES >= tile_codes.OPAQUE_FROM], walls.shape), tile_codes.EMPTY).astype(
        np.uint8
    )
    ours = np.asarray(lit(codes))
    for cells, seen in zip(codes, ours, strict=True):
        theirs = PackageGrid(7, 7)
        for column, row in np.ndindex(7, 7):
            theirs.set(column, row, oracle.thing_of(int(cells[column, row])))
        assert np.array_equal(theirs.process_vis((3, 6)), seen)


@pytest.mark.parametrize("size", [5, 11])  # rows with room to spare behind them, and with just enough
def test_views_from_every_place_and_side_even_of_a_grid_without_an_outer_wall(size):
    rng, env = np.random.default_rng(size), EmptyEnv(size=size)
    env.reset(seed=0)
    states, theirs = [], {False: [], True: []}
    for x, y, direction in np.ndindex(size - 2, size - 2, 4):
        wild = rng.random((size, size)) < 0.4
        cells = np.where(wild, rng.choice(CODES, (size, size)), tile_codes.EMPTY).astype(np.uint8)
        level = Level(cells, *np.array([x + 1, y + 1, direction], np.int8), np.uint8(tile_codes.NO_TARGET))
        oracle.load(env, level, hand=int(rng.choice([tile_codes.EMPTY, tile_codes.KEY + tile_codes.BLUE])))
        states.append(oracle.state_of(env))
        for see in theirs:
            env.see_through_walls = see
            theirs[see].append(env.gen_obs()["image"])
    states = jax.tree.map(lambda *x: np.stack(x), *states)
    for see in theirs:
        view = partial(dynamics.image, stride=tile_codes.stride(size), see_through=see)
        assert np.array_equal(jax.jit(jax.vmap(view))(states), np.stack(theirs[see])), see


@pytest.mark.parametrize("task", ["MiniGrid-MultiRoom-N6-v0", "MiniGrid-ObstructedMaze-1Dlhb-v0"])
def test_the_full_view_is_the_packages(task):
    env = FullyObsWrapper(oracle.make(task))
    obs, _ = env.reset(seed=5)
    state = oracle.state_of(env.unwrapped)
    full = dynamics.full_view(state, env.unwrapped.height, env.unwrapped.width)
    assert full.dtype == np.uint8 and np.array_equal(full, obs["image"])
