"""Distributions over actions against SciPy, and what reaches the environment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from made.agents.ppo.actions import check_actions, distribution, to_environment
from made.core import Space

MULTI = Space((3,), jnp.int32, 4)
BOX = Space((2,), jnp.float32, None, -2.0, 4.0)


def test_multi_discrete_entries_are_independent_choices():
    outputs = jax.random.normal(jax.random.key(0), (5, 12))
    policy = distribution(MULTI, outputs, jnp.zeros(0))
    actions = policy.sample(jax.random.key(1))
    assert actions.shape == (5, 3) and actions.dtype == jnp.int32 and len(np.unique(actions)) > 1
    p = np.asarray(jax.nn.softmax(outputs.reshape(5, 3, 4)))
    wanted = [sum(np.log(p[i, j, a]) for j, a in enumerate(row)) for i, row in enumerate(np.asarray(actions))]
    np.testing.assert_allclose(policy.log_prob(actions), wanted, rtol=1e-4)
    entropy = [sum(stats.entropy(p[i, j]) for j in range(3)) for i in range(5)]
    np.testing.assert_allclose(policy.entropy(), entropy, rtol=1e-4)
    assert (policy.mode() == p.argmax(-1)).all()


def test_a_choice_is_drawn_as_often_as_it_is_likely():
    policy = distribution(Space((), jnp.int32, 3), jnp.log(jnp.array([0.5, 0.3, 0.2])), jnp.zeros(0))
    drawn = jax.vmap(policy.sample)(jax.random.split(jax.random.key(0), 4000))
    np.testing.assert_allclose(np.bincount(drawn) / 4000, [0.5, 0.3, 0.2], atol=0.03)


def test_continuous_actions_are_normal():
    mean, log_std = jax.random.normal(jax.random.key(0), (5, 2)), jnp.array([-0.5, 0.3])
    policy = distribution(BOX, mean, log_std)
    action = policy.sample(jax.random.key(1))
    normal = stats.norm(np.asarray(mean), np.exp(np.asarray(log_std)))
    np.testing.assert_allclose(policy.log_prob(action), normal.logpdf(np.asarray(action)).sum(-1), rtol=1e-4)
    np.testing.assert_allclose(policy.entropy(), normal.entropy().sum(-1), rtol=1e-4)
    assert (policy.mode() == mean).all()


def test_continuous_actions_are_clipped_and_scaled_to_the_bounds():
    sent = to_environment(BOX, jnp.array([[0.0, 0.5], [-3.0, 9.0]]))
    np.testing.assert_allclose(sent, [[1.0, 2.5], [-2.0, 4.0]])
    assert (to_environment(MULTI, jnp.array([1, 2, 3])) == jnp.array([1, 2, 3])).all()


def test_continuous_actions_without_bounds_are_an_error():
    with pytest.raises(ValueError, match=r"without finite bounds\. Wrap the environment in gymnasium"):
        check_actions(Space((2,), jnp.float32))
    check_actions(BOX), check_actions(MULTI)
