"""Control tasks as Gymnasium environments."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from made.envs.control import Control
from made.envs.control.gym_env import ControlEnv
from made.envs.host_env import spec_of


def test_gymnasiums_own_checks_pass(drawn):
    check_env(
        ControlEnv("cartpole_swingup_sparse", size=24, low_res_shadows=True, render_mode="rgb_array"),
        skip_render_check=True,
    )


def test_an_observation_is_the_last_frames_newest_last(drawn):
    env = ControlEnv("cheetah_run_sparse", size=24, low_res_shadows=True, render_mode="rgb_array")
    obs, _ = env.reset(seed=4)
    assert env.observation_space.contains(obs) and obs.shape == (24, 24, 9)
    pictures = [env.frame]
    assert all(np.array_equal(obs[..., i : i + 3], pictures[0]) for i in (0, 3, 6))
    for _ in range(4):
        before = obs
        obs, reward, terminated, truncated, info = env.step(np.ones(6, np.float32))
        pictures.append(env.frame)
        assert (reward, terminated, truncated, info) == (0.0, False, False, {})
        assert np.array_equal(obs[..., :6], before[..., 3:]) and np.array_equal(obs[..., 6:], pictures[-1])
    assert len({picture.tobytes() for picture in pictures}) == 5 and np.array_equal(env.render(), pictures[-1])
    fresh, _ = env.reset(seed=4)
    assert np.array_equal(fresh[..., :3], pictures[0]) and np.array_equal(fresh[..., 6:], pictures[0])


def test_with_a_stack_of_one_an_observation_is_a_frame(drawn):
    env = ControlEnv(Control("pendulum_swingup", size=24, stack=1, repeat=500, low_res_shadows=True))
    obs, _ = env.reset()
    assert np.array_equal(obs, env.frame)
    env.step(np.ones(1))
    obs, _, terminated, truncated, info = env.step(np.ones(1))
    assert np.array_equal(obs, env.frame) and truncated and not terminated and info == {"return": env.simulation.total}


def test_its_spec_is_that_of_its_spaces(suite):
    env = ControlEnv("walker_walk", pixels=False)
    assert env.made_spec == spec_of(env.observation_space, env.action_space)._replace(horizon=500)
    assert env.reset()[0].shape == env.made_spec.obs.shape == (24,)


def test_it_runs_in_a_vector_environment_of_gymnasium(suite):
    envs = gymnasium.vector.SyncVectorEnv(
        [lambda: ControlEnv("pendulum_swingup", pixels=False, repeat=500)] * 2,
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )
    envs.reset(seed=[0, 1])
    envs.step(np.zeros((2, 1)))
    _, _, terminated, truncated, info = envs.step(np.zeros((2, 1)))
    assert truncated.all() and not terminated.any() and len(info["final_obs"]) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dict(task="hopper_hop", render_mode="human"), "None or 'rgb_array', not 'human'"),
        (dict(task=Control("hopper_hop"), repeat=4), "Settings given twice"),
    ],
)
def test_settings_that_contradict_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        ControlEnv(**given)
