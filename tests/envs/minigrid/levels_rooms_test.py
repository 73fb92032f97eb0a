"""The builder of rooms in rows and columns, against brute force and against the package; and the table of tasks."""

from itertools import product
from math import factorial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from envs.minigrid import oracle
from envs.minigrid.levels_record import package

from made.envs.minigrid import GRIDS, DoorKey, Empty, KeyCorridor, Maze, make_grid, rooms
from made.envs.minigrid.rooms import NO_WAY, OPEN_WAY, RoomGrid


def test_picks_are_floors_of_fractions():
    words = np.concatenate([np.array([0, 1, 2**16 - 1, 2**16, 2**31, 2**32 - 1]), np.arange(0, 2**32, 2**20 - 7)])
    for n in (1, 2, 3, 6, 157, 2**16):
        found = rooms.pick(jnp.asarray(words, jnp.uint32), n)
        np.testing.assert_array_equal(found, [int(w) * n >> 32 for w in words])


def test_choices_are_even_over_what_is_allowed():
    allowed = np.array([0, 1, 1, 0, 0, 1, 0, 1, 1, 0], bool)
    words = jnp.asarray(np.linspace(0, 2**32 - 1, 5000), jnp.uint32)
    found = jax.vmap(rooms.choose, in_axes=(0, None))(words, jnp.asarray(allowed))
    counts = np.bincount(found, minlength=10)
    assert (counts[~allowed] == 0).all() and abs(counts[allowed] - 1000).max() <= 1


def test_every_order_comes_from_one_set_of_picks():
    """720 ways to pick, 720 orders of six."""
    picks = list(product(*(range(m + 2) for m in range(5))))
    words = [[int((at + 0.5) * 2**32 / (m + 2)) for m, at in enumerate(row)] for row in picks]
    orders = jnp.stack(jax.vmap(rooms.shuffle)(jnp.asarray(words, jnp.uint32)), 1)
    assert len({tuple(order) for order in np.asarray(orders).tolist()}) == factorial(6)
    assert (np.sort(orders, 1) == np.arange(6)).all()


def connected(grid: RoomGrid, start, order) -> list[bool]:
    """Add doors one by one until every room can be reached, as the package does."""
    size = grid.rows * grid.columns
    ends = [((i, j), (i + 1, j) if side == 0 else (i, j + 1)) for i, j, side in grid.passages]
    ways = [ends[p] for p, turn in enumerate(order) if turn == OPEN_WAY]
    added = [False] * len(order)
    for p in [int(p) for p in np.argsort(order) if OPEN_WAY < order[p] < NO_WAY] + [None]:
        reached, waiting = set(), [start]
        while waiting:
            room = waiting.pop()
            if room not in reached:
                reached.add(room)
                waiting += [b if a == room else a for a, b in ways if room in (a, b)]
        if len(reached) == size or p is None:
            return added
        added[p] = True
        ways.append(ends[p])
    return added


@pytest.mark.parametrize("grid", [RoomGrid(3, 3, 3), RoomGrid(4, 2, 3)])
def test_doors_are_added_until_all_rooms_are_connected(grid):
    rng = np.random.default_rng(grid.rows)
    order = rng.integers(1, 2**32 - 1, (300, len(grid.passages)), dtype=np.uint32)
    order[rng.random(order.shape) < 0.2] = OPEN_WAY
    order[150:, 0] = NO_WAY  # leaves no room without a way
    found = jax.jit(jax.vmap(lambda row: rooms.connect_all(grid, (1, 1), row)))(jnp.asarray(order))
    np.testing.assert_array_equal(found, [connected(grid, (1, 1), row) for row in order])
    assert 0.2 < np.asarray(found).mean() < 0.8


def test_the_table_has_the_package_s_tasks():
    assert set(oracle.IDS) <= set(GRIDS)
    extra = {"MiniGrid-MultiRoomNoisyTV-N7-S4-v0", "MiniGrid-ObstructedMaze-2Q-RIDE-v0"}
    assert set(GRIDS) - set(oracle.IDS) == extra
    for task in GRIDS.keys() - {"MiniGrid-MultiRoomNoisyTV-N7-S4-v0"}:
        env, maker = package(task), make_grid(task).maker
        assert (maker.width, maker.height, maker.max_steps) == (env.width, env.height, env.max_steps), task
        assert maker.see_through == env.see_through_walls, task


def test_an_unknown_task_is_met_with_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'MiniGrid-MultiRoom-N7-S8-v0'"):
        make_grid("MiniGrid-MultiRoom-N7-S9-v0")


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: KeyCorridor(2, 3), "room_size=2"),
        (lambda: Maze(5), "quarters=5"),
        (lambda: DoorKey(4), "at least 5"),
        (lambda: Empty(2), "at least 4"),
    ],
)
def test_bad_sizes_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()
