"""The Gymnasium wrapper against a loop by hand, with both kinds of autoreset."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import made.adapters.gymnasium
from made.adapters.gymnasium import BonusVectorWrapper
from made.bonuses import Count, FirstVisit
from made.core.trees import stack
from made.envs.host_env import true_successor
from made.training.host.bonus import HostBonus

N, EVERY, STEPS = 3, 5, 40


def bonus():
    return FirstVisit(Count(power=0.5))


def lakes(mode, n=N):
    make = lambda: gymnasium.make("FrozenLake-v1", is_slippery=False, max_episode_steps=7)  # noqa: E731
    return SyncVectorEnv([make] * n, autoreset_mode=mode)


def actions(seed=0):
    return np.random.default_rng(seed).integers(0, 4, (STEPS, N))


def by_hand_same_step():
    """What each step should earn, by HostBonus in a plain loop."""
    envs, host = lakes(AutoresetMode.SAME_STEP), HostBonus(bonus(), *spaces(), N)
    obs, _ = envs.reset(seed=1)
    host.reset(obs)
    paid, steps = [], []
    for action in actions():
        after, reward, terminated, truncated, info = envs.step(action)
        successor = true_successor(after, info, terminated | truncated)
        steps.append(host.observe(obs, action, reward, successor, terminated, truncated, after))
        paid.append((reward, host.reward(steps[-1])))
        if len(steps) == EVERY:
            host.update(stack(steps))
            steps = []
        obs = after
    return paid, host


def spaces():
    return gymnasium.spaces.Discrete(16), gymnasium.spaces.Discrete(4)


def test_same_step_equals_the_loop_by_hand():
    expected, host = by_hand_same_step()
    envs = BonusVectorWrapper(lakes(AutoresetMode.SAME_STEP), bonus(), coef=0.5, every=EVERY)
    envs.reset(seed=1)
    ends = 0
    for action, (extrinsic, intrinsic) in zip(actions(), expected, strict=True):
        _, reward, terminated, truncated, info = envs.step(action)
        assert np.array_equal(info["extrinsic"], extrinsic) and np.array_equal(info["intrinsic"], 0.5 * intrinsic)
        assert np.array_equal(reward, extrinsic + 0.5 * intrinsic) and reward.dtype == extrinsic.dtype
        ends += (terminated | truncated).sum()
    assert ends > 10 and np.array_equal(envs.bonus.state, host.state)


def test_next_step_pays_and_learns_only_from_true_steps():
    """Counts by hand: the call after an end earns nothing, is not learnt, and starts a blank episode."""
    envs = BonusVectorWrapper(lakes(AutoresetMode.NEXT_STEP), bonus(), every=EVERY)
    obs, _ = envs.reset(seed=1)
    plain = lakes(AutoresetMode.NEXT_STEP)
    plain.reset(seed=1)
    seen, queue, resets = [{int(o)} for o in obs], [[] for _ in range(N)], 0
    ended, counts = np.zeros(N, bool), np.zeros((16, 4))
    for action in actions():
        after, reward, terminated, truncated, info = envs.step(action)
        _, extrinsic, *_ = plain.step(action)
        expected = np.zeros(N)
        for i in range(N):
            if ended[i]:
                seen[i], resets = {int(after[i])}, resets + 1
                continue
            first = int(after[i]) not in seen[i]
            seen[i].add(int(after[i]))
            expected[i] = first * max(counts[obs[i], action[i]], 1) ** -0.5
            queue[i].append((int(obs[i]), int(action[i])))
        assert np.allclose(info["intrinsic"], expected) and np.allclose(reward, extrinsic + expected)
        if min(map(len, queue)) >= EVERY:
            for i in range(N):
                for pair in queue[i][:EVERY]:
                    counts[pair] += 1
                del queue[i][:EVERY]
        obs, ended = after, terminated | truncated
    assert resets > 10 and np.array_equal(envs.bonus.state, counts) and counts.sum() % (EVERY * N) == 0


def test_next_step_loses_no_transition_where_lengths_of_episodes_differ():
    make = lambda most: lambda: gymnasium.make("FrozenLake-v1", is_slippery=False, max_episode_steps=most)  # noqa: E731
    lanes = SyncVectorEnv([make(1), make(9), make(90)], autoreset_mode=AutoresetMode.NEXT_STEP)
    envs = BonusVectorWrapper(lanes, Count(power=0.5), every=EVERY)
    obs, _ = envs.reset(seed=1)
    counts, ended = np.zeros((16, 4)), np.zeros(N, bool)
    for action in np.random.default_rng(0).choice([0, 3], (300, N)):  # left and up: in the corner no lake ends
        after, _, terminated, truncated, _ = envs.step(action)
        np.add.at(counts, (obs[~ended], action[~ended]), 1)
        obs, ended = after.copy(), terminated | truncated
    waiting = envs.payer.waiting
    for step, true in zip(waiting.steps, waiting.true, strict=True):
        np.subtract.at(counts, (step.obs[true], step.action[true]), 1)
    assert np.array_equal(envs.bonus.state, counts) and counts.sum() > 600 and len(waiting.steps) < 4 * EVERY


def test_statistics_inside_stay_extrinsic_and_saving_goes_on(tmp_path):
    def new():
        return BonusVectorWrapper(RecordEpisodeStatistics(lakes(AutoresetMode.SAME_STEP)), bonus(), every=EVERY)

    envs, other = new(), new()
    envs.reset(seed=1)
    returns = []
    for action in actions():
        info = envs.step(action)[-1]
        returns += info["episode"]["r"][info["_episode"]].tolist() if "episode" in info else []
    assert len(returns) > 10 and set(returns) <= {0.0, 1.0}  # the lake's own, with nothing added
    envs.save(tmp_path / "bonus")
    other.load(tmp_path / "bonus")
    runs = []
    for one in (envs, other):
        one.reset(seed=7)
        runs.append([one.step(action)[1] for action in actions(3)])
    assert np.array_equal(*runs)


def test_compiled_grids_go_in_with_both_modes():
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        grid = gymnasium.make_vec(
            "made/MiniGrid-Empty-5x5-v0", num_envs=N, shows=("image", "hash"), autoreset_mode=mode
        )
        envs = BonusVectorWrapper(grid, "first-visit", horizon=100)
        envs.reset(seed=0)
        paid = np.array([envs.step(np.full(N, t % 3))[-1]["intrinsic"] for t in range(12)])
        assert set(np.unique(paid)) == {0.0, 1.0}  # some states are new in the episode, some are not


def test_what_cannot_work_is_refused():
    with pytest.raises(ValueError, match="SAME_STEP or NEXT_STEP"):
        BonusVectorWrapper(lakes(AutoresetMode.DISABLED), bonus())
    with pytest.raises(gymnasium.error.ResetNeeded):
        BonusVectorWrapper(lakes(AutoresetMode.SAME_STEP), bonus()).step(np.zeros(N, int))
    assert made.adapters.gymnasium.PREFIX == "made/"
