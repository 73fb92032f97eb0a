"""A scripted policy, played out: its returns here and in the package have one distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from envs.minigrid import oracle
from envs.minigrid.planner import DONE, returned, solve
from scipy import stats

from made.envs.minigrid import make_grid
from made.envs.minigrid.tile_codes import Level

TASKS = [
    "MiniGrid-Empty-Random-6x6-v0",
    "MiniGrid-DoorKey-8x8-v0",
    "MiniGrid-FourRooms-v0",
    "MiniGrid-MultiRoom-N4-S5-v1",
    "MiniGrid-KeyCorridorS4R3-v0",
    "MiniGrid-ObstructedMaze-1Dlhb-v0",
    "MiniGrid-ObstructedMaze-2Dlhb-v0",
]
N = 200
THRESHOLD = 0.001 / len(TASKS)


def play_ours(task: str) -> tuple[np.ndarray, np.ndarray]:
    """The returns of the plans for N of our levels: as played in our environment, and as the planner says."""
    grid = make_grid(task)
    levels = jax.jit(lambda key: grid.maker.levels(key, N))(jax.random.key(7))
    plans = [solve(Level(*(np.asarray(leaf)[i] for leaf in levels))) for i in range(N)]
    longest = max(len(plan or ()) for plan in plans)
    actions = np.array([[*(plan or ()), *[DONE] * (longest - len(plan or ()))] for plan in plans])

    def episode(level: Level, actions):
        def step(carry, action):
            state, over = carry
            state, outcome = grid.step(state, action, jax.random.key(0))
            return (state, over | outcome.terminated | outcome.truncated), jnp.where(over, 0, outcome.reward)

        return jax.lax.scan(step, (grid.start(level)[0], jnp.zeros((), bool)), actions)[1].sum()

    played = np.asarray(jax.jit(jax.vmap(episode))(levels, jnp.asarray(actions)), float)
    return played, np.array([returned(plan, grid.maker.max_steps) for plan in plans])


def play_package(task: str) -> tuple[np.ndarray, np.ndarray]:
    """The same of N levels of the package, played in it."""
    env, played, said = oracle.make(task), [], []
    env.reset(seed=5)
    for _ in range(N):
        plan = solve(oracle.level_of(env))
        said.append(returned(plan, env.max_steps))
        played.append(sum(env.step(action)[1] for action in plan or ()))
        env.reset()
    return np.array(played), np.array(said)


@pytest.mark.parametrize("task", TASKS)
def test_a_script_earns_the_same_here_and_there(task):
    ours, ours_said = play_ours(task)
    theirs, theirs_said = play_package(task)
    np.testing.assert_allclose(ours, ours_said, rtol=1e-5)
    np.testing.assert_allclose(theirs, theirs_said, rtol=1e-5)
    p = stats.ks_2samp(np.round(ours, 5), np.round(theirs, 5)).pvalue
    print(f"{task}: mean return {ours.mean():.4f} here, {theirs.mean():.4f} there, p = {p:.2g}")
    assert p > THRESHOLD
