"""Farama's package as the compiled grids show it: the same hash for the same state, and every MultiRoom size."""

import gymnasium
import jax
import numpy as np
import pytest
from envs.minigrid import oracle
from minigrid.core.world_object import Ball, Box, Key, WorldObj

from made.envs.host_env import space_of
from made.envs.host_grids import ShowState, code_of, package_envs, register_rooms
from made.envs.minigrid import dynamics, make_grid, tile_codes


@pytest.mark.parametrize(
    "task", ["MiniGrid-MultiRoom-N2-S4-v0", "MiniGrid-DoorKey-5x5-v0", "MiniGrid-ObstructedMaze-1Dlhb-v0"]
)
def test_the_hash_is_that_of_the_compiled_state_at_every_step(task):
    """Through scenes full of things, each put into the live grid, and eight purposeful steps in each."""
    env, rng, told, changed = ShowState(oracle.make(task)), np.random.default_rng(0), {}, 0
    shown, base = env.reset(seed=3)[0]["hash"], env.unwrapped
    level, choose, grid = oracle.level_of(base), oracle.purposeful(rng), oracle.grid_for(base)
    hashed = jax.jit(lambda level, hand: dynamics.state_hash(grid.start(level)[0]._replace(carrying=hand)))
    assert np.array_equal(hashed(level, np.uint8(tile_codes.EMPTY)), shown)
    for _ in range(60):
        oracle.load(base, *oracle.scene(level, rng, base.max_steps))
        for _ in range(8):
            before = oracle.codes(base).tobytes()
            obs, _, terminated, truncated, _ = env.step(choose(base))
            now, hand, shown = oracle.level_of(base), oracle.code_of(base.carrying), obs["hash"]
            assert np.array_equal(hashed(now, np.uint8(hand)), shown)
            changed += now.grid.tobytes() != before
            whole = (now.grid.tobytes(), *base.agent_pos, base.agent_dir, hand)
            assert told.setdefault(tuple(shown), whole) == whole
            if terminated or truncated:
                break
    assert changed > 8 and len(told) > 70, "too little was changed or seen"


def test_what_is_shown_is_what_the_compiled_grid_shows():
    envs, grid = (
        package_envs("MiniGrid-MultiRoom-N6-v0", 2),
        make_grid("MiniGrid-MultiRoom-N6-v0", shows=("image", "hash")),
    )
    shown = space_of(envs.single_observation_space)
    for part, space in grid.spec.obs.items():
        assert (shown[part].shape, np.dtype(shown[part].dtype)) == (space.shape, np.dtype(space.dtype))
    assert shown["image"].high == grid.spec.obs["image"].high  # networks divide by it
    assert envs.observation_space.contains(envs.reset(seed=0)[0])


def test_the_rooms_that_only_ride_registered_are_there():
    register_rooms()
    register_rooms()  # a second call changes nothing
    for task, (rooms, largest) in oracle.RIDE.items():
        env = gymnasium.make(task).unwrapped
        assert (env.minNumRooms, env.maxNumRooms, env.maxRoomSize) == (rooms, rooms, largest)
        assert env.max_steps == make_grid(task).spec.horizon
    assert gymnasium.make("MiniGrid-MultiRoom-N4-S5-v1").unwrapped.maxNumRooms == 4
    with pytest.raises(ValueError, match=r"no task 'MiniGrid-MultiRoom-N6'.*Did you mean 'MiniGrid-MultiRoom-N6-v0'"):
        package_envs("MiniGrid-MultiRoom-N6", 1)


def test_boxes_are_told_by_their_keys_and_strange_things_are_refused():
    assert code_of(Box("grey", Key("blue"))) == tile_codes.KEYBOX + 8 * tile_codes.BLUE + tile_codes.GREY
    assert code_of(Box("grey", Ball("red"))) == code_of(Box("grey")) == tile_codes.BOX + tile_codes.GREY

    class Ladder(WorldObj):
        def __init__(self):
            self.type, self.color = "ladder", "red"

    with pytest.raises(ValueError, match=r"'ladder' is no object .* it takes wall, goal"):
        code_of(Ladder())
