"""Returns and advantages against loops, and against rlax."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.agents.returns import gae, lambda_returns, vtrace

RLAX = np.load(Path(__file__).parent / "data" / "rlax_returns.npz", allow_pickle=False)


def by_hand(log_ratio, reward, discount, value, bootstrap, rho=1.0):
    """The sums of Section 4.1 of the paper, term by term."""
    length, ratio = len(reward), np.exp(log_ratio)
    values = np.append(value, bootstrap)
    deltas = [min(rho, ratio[t]) * (reward[t] + discount[t] * values[t + 1] - values[t]) for t in range(length)]
    targets = []
    for start in range(length):
        target, weight = values[start], 1.0
        for t in range(start, length):
            target += weight * deltas[t]
            weight *= discount[t] * min(1.0, ratio[t])
        targets.append(target)
    ahead = [*targets[1:], bootstrap]
    gains = [min(1.0, ratio[t]) * (reward[t] + discount[t] * ahead[t] - values[t]) for t in range(length)]
    return np.array(targets), np.array(gains)


def by_hand_truncated(log_ratio, reward, discount, value, bootstrap, terminated, truncated, final_value):
    """The same as a loop over steps, from the last to the first, where each step says what follows it."""
    values, targets, gains = np.append(value, bootstrap), np.append(value, bootstrap), np.zeros(len(reward))
    for t in reversed(range(len(reward))):
        weight = min(1.0, np.exp(log_ratio[t]))
        if terminated[t]:
            ahead, target_ahead, beyond = 0.0, 0.0, 0.0
        elif truncated[t]:
            ahead, target_ahead, beyond = final_value[t], final_value[t], 0.0
        else:
            ahead, target_ahead, beyond = values[t + 1], targets[t + 1], targets[t + 1] - values[t + 1]
        gains[t] = weight * (reward[t] + discount * target_ahead - value[t])
        targets[t] = value[t] + weight * (reward[t] + discount * ahead - value[t]) + discount * weight * beyond
    return targets[:-1], gains


def with_ends(seed: int, length: int = 12):
    """A stream with a termination at 3, truncations at 6 and at the last step, and both at 8."""
    rng = np.random.default_rng(seed)
    log_ratio, reward, value, final_value = np.float32(rng.normal(size=(4, length)))
    terminated, truncated = (np.isin(np.arange(length), at) for at in ((3, 8), (6, 8, length - 1)))
    return log_ratio, reward, value, np.float32(rng.normal()), terminated, truncated, final_value


def bootstrapped(log_ratio, reward, value, bootstrap, terminated, truncated, final_value):
    given = (log_ratio, reward, 0.9 * ~terminated, value, bootstrap, truncated, final_value)
    *given, truncated, final_value = (jnp.asarray(x, None if x.dtype == bool else jnp.float32) for x in given)
    return vtrace(*given, last=(truncated, final_value))


def test_a_truncated_step_bootstraps_from_its_final_value_as_in_a_loop():
    for seed in range(5):
        log_ratio, reward, value, bootstrap, *ends = with_ends(seed)
        ours = bootstrapped(log_ratio, reward, value, bootstrap, *ends)
        for mine, wanted in zip(ours, by_hand_truncated(log_ratio, reward, 0.9, value, bootstrap, *ends), strict=True):
            np.testing.assert_allclose(mine, wanted, rtol=2e-5, atol=2e-6)


def test_on_policy_a_truncated_step_gets_the_discounted_final_value_and_a_terminated_one_nothing():
    _, reward, *rest = with_ends(0)
    target, advantage = bootstrapped(np.zeros_like(reward), reward, *rest)
    value, final_value = rest[0], rest[-1]
    for t in (6, len(reward) - 1):
        np.testing.assert_allclose(target[t], reward[t] + 0.9 * final_value[t], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(advantage[t], target[t] - value[t], rtol=1e-5, atol=1e-6)
    for t in (3, 8):
        np.testing.assert_allclose(target[t], reward[t], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("end", [3, 6, 8])
def test_the_trace_is_cut_where_an_episode_terminates_or_is_truncated(end):
    parts = with_ends(0)
    later = [parts[0], parts[1] + np.where(np.arange(12) > end, 7, 0), parts[2] + np.where(np.arange(12) > end, 5, 0)]
    before, after = bootstrapped(*parts), bootstrapped(*map(np.float32, later), *parts[3:])
    for mine, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(mine[: end + 1], other[: end + 1])
        assert (mine[end + 1 :] != other[end + 1 :]).any()


def stream(seed: int, length: int = 9):
    rng = np.random.default_rng(seed)
    log_ratio, reward, value = rng.normal(size=(3, length))
    discount = 0.9 * (rng.random(length) > 0.25)  # some episodes end on the way
    return [np.float32(x) for x in (log_ratio, reward, discount, value, rng.normal())]


@pytest.mark.parametrize("clips", [{}, {"rho": 2.0}])
def test_equals_the_sums_of_the_paper(clips):
    for seed in range(5):
        ours = vtrace(*map(jnp.asarray, stream(seed)), **clips)
        for mine, wanted in zip(ours, by_hand(*stream(seed), **clips), strict=True):
            np.testing.assert_allclose(mine, wanted, rtol=2e-5, atol=2e-6)


def test_on_policy_without_ends_it_is_the_discounted_return():
    _, reward, _, value, bootstrap = stream(3)
    discount = np.full(9, 0.9, np.float32)
    wanted = sum(0.9**t * reward[t] for t in range(9)) + 0.9**9 * bootstrap
    ours = vtrace(*map(jnp.asarray, (np.zeros(9, np.float32), reward, discount, value, bootstrap)))
    np.testing.assert_allclose(ours.target[0], wanted, rtol=1e-5)


def test_nothing_flows_back_over_the_end_of_an_episode():
    parts = [jnp.asarray(x) for x in stream(0)]
    parts[2] = parts[2].at[4].set(0.0)
    before, after = vtrace(*parts), vtrace(parts[0], parts[1].at[5:].add(7.0), *parts[2:])
    for mine, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(mine[:5], other[:5])
        assert (mine[5:] != other[5:]).any()


def test_streams_side_by_side_are_each_their_own():
    many = [jnp.stack(x, -1) for x in zip(*(stream(seed) for seed in range(3)), strict=True)]
    together = vtrace(*many)
    for i in range(3):
        for whole, alone in zip(together, vtrace(*map(jnp.asarray, stream(i))), strict=True):
            np.testing.assert_allclose(whole[:, i], alone, rtol=1e-6)


@pytest.mark.parametrize("case", range(6))
def test_equals_rlax(case):
    """V-trace, GAE and lambda-returns of rlax for these numbers; data/rlax_returns.py made the file."""
    log_ratio, reward, discount, value, bootstrap = (
        jnp.asarray(RLAX[name][case]) for name in ("log_ratio", "reward", "discount", "value", "bootstrap")
    )
    ours = vtrace(log_ratio, reward, discount, value, bootstrap, rho=float(RLAX["rho"][case]))
    close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=3e-6)
    close(ours.target - value, RLAX["errors"][case])
    close(ours.advantage, RLAX["advantage"][case])
    lam, over, following = float(RLAX["lam"][case]), discount == 0, jnp.append(value[1:], bootstrap)
    close(gae(reward, value, following, over, over, discount=0.95, gae_lambda=lam), RLAX["gae"][case])
    close(lambda_returns(reward, discount, following, lam), RLAX["lambda_returns"][case])


advantages = jax.jit(gae)


def drawn(seed: int, shape=(30, 5)):
    rng = np.random.default_rng(seed)
    reward, value, next_value = (rng.normal(size=shape).astype(np.float32) for _ in range(3))
    terminated = rng.random(shape) < 0.1
    return reward, value, next_value, terminated, terminated | (rng.random(shape) < 0.1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("discount", "gae_lambda"), [(0.99, 0.95), (0.9, 1.0), (0.9, 0.0), (0.0, 0.5)])
def test_gae_equals_the_recursion(seed, discount, gae_lambda):
    reward, value, next_value, terminated, done = drawn(seed)
    found = advantages(*drawn(seed), discount=discount, gae_lambda=gae_lambda)
    wanted, beyond = np.zeros_like(reward), np.zeros(5)
    for t in reversed(range(30)):
        delta = reward[t] + discount * next_value[t] * ~terminated[t] - value[t]
        wanted[t] = beyond = delta + discount * gae_lambda * ~done[t] * beyond
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_gae_with_lambda_one_is_the_return_less_the_value():
    rng = np.random.default_rng(0)
    reward, value = rng.normal(size=(2, 30, 5)).astype(np.float32)
    over = np.zeros((30, 5), bool)
    over[29] = True
    found = advantages(reward, value, np.roll(value, -1, 0), over, over, discount=0.9, gae_lambda=1.0)
    returns = [sum(0.9**i * r for i, r in enumerate(reward[t:])) for t in range(30)]
    np.testing.assert_allclose(found, np.array(returns) - value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_lambda_returns_are_their_recursion(lam):
    rng = np.random.default_rng(0)
    reward, discount, value = rng.normal(size=(5, 3)), rng.uniform(size=(5, 3)), rng.normal(size=(5, 3))
    found = lambda_returns(*(jnp.asarray(x, jnp.float32) for x in (reward, discount, value)), lam)
    wanted, after = np.zeros((5, 3)), value[-1]
    for t in reversed(range(5)):
        after = reward[t] + discount[t] * ((1 - lam) * value[t] + lam * after)
        wanted[t] = after
    assert np.allclose(found, wanted, atol=1e-5)
    one_step = reward + discount * value
    many_steps = sum(np.prod(discount[:t], 0) * reward[t] for t in range(5)) + np.prod(discount, 0) * value[-1]
    assert lam != 0.0 or np.allclose(found, one_step, atol=1e-5)
    assert lam != 1.0 or np.allclose(found[0], many_steps, atol=1e-5)
