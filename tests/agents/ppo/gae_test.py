"""Generalized advantage estimation against an explicit loop."""

import jax
import numpy as np
import pytest

from made.agents.ppo.gae import gae

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
