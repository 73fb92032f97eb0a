"""`Grid` as an environment: its spec, its starts, the noisy television, and rollouts."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from envs.minigrid.conftest import Same, room

from made.envs.minigrid import dynamics, tile_codes
from made.envs.minigrid.dynamics import DROP, FORWARD, PICK_UP
from made.envs.minigrid.env import Grid

EVERYTHING = ("image", "direction", "full", "hash")


def test_the_spec_is_what_is_observed():
    grid = Grid(Same(room()), shows=EVERYTHING)
    state, obs = jax.jit(lambda key: grid.reset_many(key, 3))(jax.random.key(0))
    assert list(grid.spec.obs) == list(EVERYTHING) and (grid.spec.action.n, grid.spec.horizon) == (7, 20)
    for part, space in grid.spec.obs.items():
        assert obs[part].shape == (3, *space.shape) and obs[part].dtype == space.dtype, part
    one = jax.tree.map(lambda x: x[0], state)
    _, step = eqx.filter_jit(grid.step)(one, jnp.int32(FORWARD), jax.random.key(1))
    assert all(step.obs[part].dtype == obs[part].dtype for part in EVERYTHING)


def test_the_state_keeps_its_types_over_a_step(grid, step):
    before = jax.eval_shape(grid.reset, jax.random.key(0))[0]
    after = jax.eval_shape(grid.step, before, jnp.int32(0), jax.random.key(0))[0]
    assert before == after
    assert sum(x.size * x.dtype.itemsize for x in before) <= 1024


@pytest.mark.parametrize("shows", [(), ("image", "pixels")])
def test_unknown_views_are_refused(shows):
    with pytest.raises(ValueError, match="image, direction, full, hash"):
        Grid(Same(room()), shows=shows)


def test_what_is_shown_is_what_the_views_say():
    grid = Grid(Same(room(tile_codes.KEY + tile_codes.RED)), shows=EVERYTHING)
    state, obs = eqx.filter_jit(grid.reset)(jax.random.key(0))
    assert np.array_equal(obs["image"], dynamics.image(state, tile_codes.stride(6)))
    assert np.array_equal(obs["full"], dynamics.full_view(state, 5, 6))
    assert np.array_equal(obs["hash"], dynamics.state_hash(state)) and int(obs["direction"]) == tile_codes.RIGHT


# The noisy television


@pytest.fixture(scope="module")
def noisy():
    level = room()
    level.grid[:, 4] = tile_codes.WALL  # two columns to walk in, and a third behind a door
    level.grid[2, 4] = tile_codes.CLOSED + tile_codes.BLUE
    grid = Grid(
        Same(level._replace(grid=np.pad(level.grid, ((0, 0), (0, 3)), constant_values=tile_codes.WALL)), width=9)
    )
    grid.maker.level.grid[1:4, 5:8] = tile_codes.EMPTY
    grid = Grid(grid.maker, noisy_tv=True)
    return grid, jax.jit(lambda key: grid.reset_many(key, 600)[0]), jax.jit(jax.vmap(grid.step))


def balls(state) -> np.ndarray:
    return (np.asarray(state.grid) // 8 == tile_codes.BALL // 8).sum(1)


def test_the_ball_lies_anywhere_in_the_agents_room_in_any_color(noisy):
    _, reset, _ = noisy
    cells = np.asarray(tile_codes.unpack(reset(jax.random.key(0)).grid, 5, 9))
    n, y, x = np.nonzero(cells // 8 == tile_codes.BALL // 8)
    assert np.array_equal(n, np.arange(600))
    room_cells = {(a, b) for a in (1, 2, 3) for b in (1, 2, 3)} - {(2, 2)}
    places, often = np.unique(np.stack([x, y], 1), axis=0, return_counts=True)
    assert {tuple(p) for p in places.tolist()} == room_cells and often.min() > 40  # 75 are expected
    assert np.bincount(cells[n, y, x] % 8, minlength=6).min() > 60  # 100 are expected


def test_drop_recolors_the_ball_and_puts_nothing_down(noisy):
    _, reset, step = noisy
    states, keys = reset(jax.random.key(1)), jax.random.split(jax.random.key(2), 600)
    held = states._replace(carrying=jnp.full(600, tile_codes.KEY + tile_codes.RED, jnp.uint8))
    after, _ = step(held, jnp.full(600, DROP), keys)
    assert (np.asarray(after.carrying) == tile_codes.KEY + tile_codes.RED).all() and (balls(after) == 1).all()
    before_cells, after_cells = np.asarray(held.grid), np.asarray(after.grid)
    moved = before_cells != after_cells
    assert (moved.sum(1) <= 1).all() and (before_cells[moved] // 8 == tile_codes.BALL // 8).all()
    drawn = after_cells[after_cells // 8 == tile_codes.BALL // 8] % 8
    assert np.bincount(drawn, minlength=6).min() > 60 and moved.any(1).mean() == pytest.approx(5 / 6, abs=0.06)
    assert np.array_equal(after.hash, jax.vmap(dynamics.grid_hash)(after.grid))


def test_a_carried_ball_is_recolored_too(noisy):
    _, reset, step = noisy
    states, keys = reset(jax.random.key(3)), jax.random.split(jax.random.key(4), 600)
    empty = jnp.where(states.grid // 8 == tile_codes.BALL // 8, jnp.uint8(tile_codes.EMPTY), states.grid)
    held = states._replace(grid=empty, carrying=jnp.full(600, tile_codes.BALL + tile_codes.RED, jnp.uint8))
    after, _ = step(held, jnp.full(600, DROP), keys)
    colors = np.asarray(after.carrying)
    assert (colors // 8 == tile_codes.BALL // 8).all() and np.bincount(colors % 8, minlength=6).min() > 60


def test_other_actions_leave_the_television_alone(noisy):
    _, reset, step = noisy
    states = reset(jax.random.key(5))
    for action in set(range(7)) - {DROP, PICK_UP}:
        after, _ = step(states, jnp.full(600, action), jax.random.split(jax.random.key(6), 600))
        assert np.array_equal(states.grid, after.grid), action


def test_without_it_drop_puts_down_and_no_ball_lies_about(grid, step):
    state, _ = step(room(), DROP, hand=tile_codes.BALL + tile_codes.RED)
    assert int(state.carrying) == tile_codes.EMPTY
    plain, _ = grid.reset_many(jax.random.key(0), 4)
    assert balls(plain).sum() == 0
