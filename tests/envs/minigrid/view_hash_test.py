"""The hash of a state: kept up to date step by step, equal for equal states, different for different ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from envs.minigrid.conftest import room

from made.envs.minigrid import dynamics, tile_codes


@pytest.fixture(scope="module")
def walk(grid):
    """A long random walk among things of all sorts: states [T, N] and the hash from scratch."""
    rng = np.random.default_rng(0)
    level = room()
    level.grid[1:4, 1:5] = rng.choice(np.flatnonzero(tile_codes.KNOWN)[:-1], (3, 4))
    level.grid[2, 2] = tile_codes.EMPTY
    level.grid[level.grid == tile_codes.GOAL] = level.grid[level.grid == tile_codes.LAVA] = tile_codes.EMPTY
    state, _ = grid.start(level)

    @jax.jit
    def run(actions):
        step = jax.vmap(lambda s, a: grid.step(s, a, jax.random.key(0))[0])
        start = jax.tree.map(lambda x: jnp.broadcast_to(x, (actions.shape[1], *x.shape)), state)
        states = jax.lax.scan(lambda s, a: (step(s, a),) * 2, start, actions)[1]
        return states, dynamics.grid_hash(states.grid), jax.vmap(jax.vmap(dynamics.state_hash))(states)

    return jax.device_get(run(jax.random.randint(jax.random.key(1), (200, 40), 0, 7)))


def test_the_running_hash_is_the_one_from_scratch(walk):
    states, scratch, _ = walk
    assert np.array_equal(states.hash, scratch)


def test_states_and_hashes_are_one_to_one_over_thousands_of_steps(walk):
    states, _, hashes = walk
    parts = (states.grid.reshape(8000, -1), *(np.reshape(p, (8000, 1)) for p in states[1:5]))
    whole = np.concatenate([np.asarray(p).astype(np.int16) for p in parts], axis=1)
    pairs = np.concatenate([whole, hashes.reshape(8000, 2).view(np.int16)], axis=1)
    distinct = len(np.unique(whole, axis=0))
    assert distinct > 1000
    assert distinct == len(np.unique(hashes.reshape(8000, 2), axis=0)) == len(np.unique(pairs, axis=0))


def test_either_half_of_the_hash_alone_tells_these_states_apart(walk):
    _, _, hashes = walk
    both = len(np.unique(hashes.reshape(8000, 2), axis=0))
    assert len(np.unique(hashes[..., 0])) == len(np.unique(hashes[..., 1])) == both


def test_everything_but_the_clock_and_the_target_counts(grid):
    state, _ = grid.start(room(tile_codes.BOX + tile_codes.GREY, x=3, y=1))
    told = lambda s: tuple(np.asarray(dynamics.state_hash(s._replace(hash=dynamics.grid_hash(s.grid)))))  # noqa: E731
    place = tile_codes.LEAD + tile_codes.stride(6) + 4
    other = [
        state._replace(x=state.x + 1),
        state._replace(y=state.y + 1),
        state._replace(direction=state.direction + 1),
        state._replace(carrying=jnp.uint8(tile_codes.KEY)),
        state._replace(grid=state.grid.at[place].set(tile_codes.KEYBOX + tile_codes.GREY)),
        state._replace(x=state.y, y=state.x),
    ]
    assert len({told(s) for s in [state, *other]}) == 7
    assert told(state._replace(steps=jnp.int32(5), target=jnp.uint8(7))) == told(state)
