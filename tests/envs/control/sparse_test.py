"""Rewards of the sparse tasks against a computation from the physics alone."""

import numpy as np
import pytest

from made.envs.control.gym_env import load


def walker_reward(physics, speed: float) -> float:
    """stand (5 move + 1) / 6, with stand = (3 standing + upright) / 4, as the suite defines them."""
    height, upright = physics.named.data.xpos["torso", "z"], physics.named.data.xmat["torso", "zz"]
    velocity = physics.named.data.sensordata["torso_subtreelinvel"][0]
    standing = np.exp(np.log(0.1) * (max(1.2 - height, 0) / 0.6) ** 2)  # 1 from 1.2 m up, a tenth at 0.6 m
    stand = (3 * standing + (1 + upright) / 2) / 4
    move = np.clip(1 - max(speed - velocity, 0) / speed, 0, 1)  # a half at half the speed, on a line
    return stand * (5 * move + 1) / 6


def thresholded(reward: float, least: float) -> float:
    return reward if reward >= least else 0.0


@pytest.mark.parametrize("velocity", [-1.0, 0.0, 2.4, 2.6, 6.0, 12.0])
def test_a_cheetah_is_paid_from_a_quarter_of_its_speed_on(suite, velocity):
    env = load("cheetah_run_sparse", seed=0)
    env.reset()
    env.physics.data.qvel[:] = 0
    env.physics.data.qvel[0] = velocity
    env.physics.forward()
    speed = env.physics.named.data.sensordata["torso_subtreelinvel"][0]
    assert speed == pytest.approx(velocity, abs=1e-6)
    assert env.task.get_reward(env.physics) == pytest.approx(thresholded(np.clip(speed / 10, 0, 1), 0.25))


@pytest.mark.parametrize(("name", "speed", "least"), [("walker_run_sparse", 8, 0.25), ("walker_walk_sparse", 1, 0.7)])
def test_a_walker_is_paid_where_the_whole_product_reaches_the_threshold(suite, name, speed, least):
    env, paid, kept = load(name, seed=0), [], []
    env.reset()
    for height in (-0.8, -0.3, 0.0):  # of the root; at 0 the torso is 1.3 m up
        for velocity in (0.0, 0.1, 0.5, 0.6, 0.7, 0.9, 1.5, 2.0, 3.0, 9.0):
            env.physics.data.qpos[:] = 0
            env.physics.data.qvel[:] = 0
            env.physics.data.qpos[0], env.physics.data.qvel[1] = height, velocity
            env.physics.forward()
            dense = walker_reward(env.physics, speed)
            paid.append(env.task.get_reward(env.physics))
            kept.append(thresholded(dense, least))
    assert paid == pytest.approx(kept)
    assert 0 < np.count_nonzero(paid) < len(paid), "both sides of the threshold must be seen"


def test_all_else_is_the_wrapped_tasks_own(suite):
    ours, theirs = load("walker_run_sparse", 5), suite.load("walker", "run", task_kwargs={"random": 5})
    (first, second), steps = (ours.reset(), theirs.reset()), 0
    while not first.last():
        assert all(np.array_equal(first.observation[name], x) for name, x in second.observation.items())
        action = np.full(6, np.sin(steps))
        first, second, steps = ours.step(action), theirs.step(action), steps + 1
        assert first.reward == thresholded(second.reward, 0.25) and first.last() == second.last()
    assert steps == 1000 and first.discount == 1.0
