"""Pictures against the package's own renderer, pixel for pixel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from envs.minigrid import oracle
from envs.minigrid.oracle import grid_for

from made.envs.minigrid import render, tile_codes


def _pair(task: str, seed: int, scene: bool):
    env = oracle.make(task)
    env.reset(seed=seed)
    if scene:
        changed, hand, steps = oracle.scene(oracle.level_of(env), np.random.default_rng(seed), env.max_steps)
        oracle.load(env, changed, hand, steps)
    return env, grid_for(env), oracle.state_of(env)


@pytest.mark.parametrize("task", ["MultiRoom-N6", "KeyCorridorS4R3", "ObstructedMaze-1Dlhb", "Empty-8x8"])
@pytest.mark.parametrize("scene", [False, True])
def test_a_picture_equals_the_packages(task, scene):
    env, grid, state = _pair(f"MiniGrid-{task}-v0", 3, scene)
    theirs = env.render().astype(int)
    ours = render.draw(grid, state)
    assert ours.shape == theirs.shape and ours.dtype == np.uint8
    assert np.abs(ours - theirs).max() == 0


def test_every_tile_equals_the_packages():
    worst = 0
    for code in np.flatnonzero(tile_codes.KNOWN):
        thing = oracle.thing_of(int(code))
        for agent, lit in ((None, False), (None, True), (int(code) % 4, False), (int(code) % 4, True)):
            theirs = oracle.PackageGrid.render_tile(thing, agent, lit, tile_size=16).astype(np.uint8)
            worst = max(worst, np.abs(render.tile(int(code), agent, lit, 16).astype(int) - theirs).max())
    assert worst == 0


def test_without_highlight_and_at_another_size():
    env, grid, state = _pair("MiniGrid-DoorKey-6x6-v0", 1, False)
    assert np.array_equal(render.draw(grid, state, size=20, highlight=False), env.get_frame(False, 20))


def test_a_visit_map_tints_what_was_visited_and_nothing_else():
    _, grid, state = _pair("MiniGrid-Empty-5x5-v0", 0, False)
    visits = np.zeros((5, 5), int)
    visits[1, 2], visits[3, 1] = 1, 50
    picture, plain = render.visit_map(grid, state, visits, 8), render.draw(grid, state, 8, highlight=False)
    differs = (picture != plain).any(-1).reshape(5, 8, 5, 8).any((1, 3))
    assert np.array_equal(differs, visits > 0)
    mean = picture.reshape(5, 8, 5, 8, 3).mean((1, 3))
    assert mean[1, 2, 1] > mean[3, 1, 1] + 50 and mean[3, 1, 0] > 150  # yellow for few, red for many
    with pytest.raises(ValueError, match="5 rows"):
        render.visit_map(grid, state, visits[:4], 8)


def test_rendering_follows_the_state_after_a_step():
    env, grid, state = _pair("MiniGrid-Empty-6x6-v0", 0, False)
    step = jax.jit(lambda s: grid.step(s, jnp.int32(2), jax.random.key(0))[0])
    env.step(2)
    assert np.array_equal(render.draw(grid, step(state)), env.render())
