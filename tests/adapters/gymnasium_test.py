"""Compiled environments as Gymnasium's: its own checker, both kinds of autoreset, seeds, bad input."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import made.adapters.gymnasium as adapter
from made.envs.minigrid import GRIDS
from made.envs.registry import make
from made.training.host.bonus import HostEnvironment

TASK = "made/MiniGrid-Empty-5x5-v0"
N = 6


@pytest.fixture(scope="module")
def vectors():
    return {
        mode: gymnasium.make_vec(TASK, num_envs=N, autoreset_mode=mode, shows=("image", "direction"))
        for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP)
    }


def played(envs, steps=140, seed=3):
    """Everything that comes out of a random walk: first observations, then what each step returned."""
    rng = np.random.default_rng(0)
    out = [envs.reset(seed=seed)[0]]
    for _ in range(steps):
        out.append(envs.step(rng.integers(0, 3, N)))
    return out


def test_every_grid_is_registered():
    assert {adapter.PREFIX + task for task in GRIDS} <= set(gymnasium.registry)
    adapter.register()  # a second time changes nothing


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gymnasium_s_own_checker_passes():
    check_env(gymnasium.make(TASK, render_mode="rgb_array").unwrapped)
    check_env(adapter.CompiledEnv(make("lock").sample_task(adapter.jax.random.key(0))), skip_render_check=True)


def test_the_same_seed_gives_the_same_episode():
    env = gymnasium.make("made/MiniGrid-DoorKey-5x5-v0")
    first, again, other = (env.reset(seed=s)[0]["image"] for s in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_vector_walks_repeat_and_lie_in_their_spaces(vectors, mode):
    envs = vectors[mode]
    a, b = played(envs), played(envs)
    for x, y in zip(a[1:], b[1:], strict=True):
        assert envs.observation_space.contains(x[0])
        assert all(np.array_equal(p, q) for p, q in zip(x[1:4], y[1:4], strict=True))
        assert np.array_equal(x[0]["image"], y[0]["image"])


def test_same_step_keeps_the_last_observation_and_shows_the_next_episode(vectors):
    before, ends = None, 0
    for obs, reward, terminated, truncated, info in played(vectors[AutoresetMode.SAME_STEP])[1:]:
        done = terminated | truncated
        if done.any():
            assert np.array_equal(info["_final_obs"], done)
            for i in range(N):
                if done[i]:
                    ends += 1
                    assert obs["direction"][i] == 0  # Empty starts looking right
                    assert set(info["final_obs"][i]) == {"image", "direction"}
                else:
                    assert info["final_obs"][i] is None
            assert ((reward > 0) == terminated).all()
        else:
            assert info == {}
        before = obs
    assert before is not None and ends > 3


def test_next_step_resets_in_the_step_after_the_end(vectors):
    ended, resets = np.zeros(N, bool), 0
    for obs, reward, terminated, truncated, info in played(vectors[AutoresetMode.NEXT_STEP])[1:]:
        assert info == {}
        assert not (terminated | truncated)[ended].any() and not reward[ended].any()
        assert (obs["direction"][ended] == 0).all()
        resets += ended.sum()
        ended = terminated | truncated
    assert resets > 3


def test_both_modes_agree_with_one_environment_until_the_first_end(vectors):
    same, following = (played(vectors[mode], steps=10) for mode in vectors)
    for x, y in zip(same[1:], following[1:], strict=True):
        assert np.array_equal(x[0]["image"], y[0]["image"])


def test_fresh_levels_never_repeat_within_a_pool():
    envs = gymnasium.make_vec("made/MiniGrid-FourRooms-v0", num_envs=8)
    envs.reset(seed=0)
    first = envs.unwrapped._state
    seen = {bytes(np.asarray(first.grid[i])) for i in range(8)}
    assert len(seen) == 8


def test_the_host_rollout_takes_our_own_vector_environment():
    host = HostEnvironment(gymnasium.make_vec(TASK, num_envs=2))
    assert host.spec.obs["image"].shape == (7, 7, 3) and host.spec.action.n == 7
    with pytest.raises(ValueError, match="SAME_STEP"):
        HostEnvironment(gymnasium.make_vec(TASK, num_envs=2, autoreset_mode=AutoresetMode.NEXT_STEP))


def test_bad_input_is_refused_with_a_sentence(vectors):
    env = gymnasium.make(TASK).unwrapped
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action 7 is not in Discrete"):
        env.step(7)
    envs = vectors[AutoresetMode.SAME_STEP]
    for wrong in (np.full(N, 9), np.zeros(N + 1, int)):
        with pytest.raises(ValueError, match="are not in"):
            envs.step(wrong)
    with pytest.raises(ValueError, match="Did you mean 'MiniGrid-Empty-5x5-v0'"):
        adapter.make_env("MiniGrid-Empty-5x5-v1")
    with pytest.raises(ValueError, match="num_envs"):
        adapter.make_vector_env("MiniGrid-Empty-5x5-v0", 0)
    with pytest.raises(ValueError, match="render_mode"):
        adapter.make_env("MiniGrid-Empty-5x5-v0", render_mode="ansi")
