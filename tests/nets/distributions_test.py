"""Distributions against SciPy and distreqx, and the actions that an environment gets."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from contracts.settings import quick
from scipy import stats

from made.core import Space
from made.nets.distributions import Categorical, Normal, OneHot, TanhNormal, action_distribution, to_bounds

MULTI = Space((3,), jnp.int32, 4)
BOX = Space((2,), jnp.float32, None, -2.0, 4.0)


def test_multi_discrete_entries_are_independent_choices():
    outputs = jax.random.normal(jax.random.key(0), (5, 12))
    policy = action_distribution(MULTI, outputs, jnp.zeros(0))
    actions = policy.sample(jax.random.key(1))
    assert actions.shape == (5, 3) and actions.dtype == jnp.int32 and len(np.unique(actions)) > 1
    p = np.asarray(jax.nn.softmax(outputs.reshape(5, 3, 4)))
    wanted = [sum(np.log(p[i, j, a]) for j, a in enumerate(row)) for i, row in enumerate(np.asarray(actions))]
    np.testing.assert_allclose(policy.log_prob(actions), wanted, rtol=1e-4)
    entropy = [sum(stats.entropy(p[i, j]) for j in range(3)) for i in range(5)]
    np.testing.assert_allclose(policy.entropy(), entropy, rtol=1e-4)
    assert (policy.mode() == p.argmax(-1)).all()


def test_a_choice_is_drawn_as_often_as_it_is_likely():
    policy = action_distribution(Space((), jnp.int32, 3), jnp.log(jnp.array([0.5, 0.3, 0.2])), jnp.zeros(0))
    drawn = jax.vmap(policy.sample)(jax.random.split(jax.random.key(0), 4000))
    np.testing.assert_allclose(np.bincount(drawn) / 4000, [0.5, 0.3, 0.2], atol=0.03)


def test_continuous_actions_are_normal():
    mean, log_std = jax.random.normal(jax.random.key(0), (5, 2)), jnp.array([-0.5, 0.3])
    policy = action_distribution(BOX, mean, log_std)
    action = policy.sample(jax.random.key(1))
    normal = stats.norm(np.asarray(mean), np.exp(np.asarray(log_std)))
    np.testing.assert_allclose(policy.log_prob(action), normal.logpdf(np.asarray(action)).sum(-1), rtol=1e-4)
    np.testing.assert_allclose(policy.entropy(), normal.entropy().sum(-1), rtol=1e-4)
    assert (policy.mode() == mean).all()


def test_continuous_actions_are_clipped_and_scaled_to_the_bounds():
    sent = to_bounds(BOX, jnp.array([[0.0, 0.5], [-3.0, 9.0]]))
    np.testing.assert_allclose(sent, [[1.0, 2.5], [-2.0, 4.0]])
    assert (to_bounds(MULTI, jnp.array([1, 2, 3])) == jnp.array([1, 2, 3])).all()


def tanh_normal(mean, std) -> TanhNormal:
    return TanhNormal(mean, std, jnp.log(std))


def test_kl_of_normals_equals_its_integral():
    q, p = Normal(jnp.array([0.3]), jnp.array([0.7])), Normal(jnp.array([-0.5]), jnp.array([1.4]))
    x = np.linspace(-9, 9, 20_001)
    log_q, log_p = stats.norm(0.3, 0.7).logpdf(x), stats.norm(-0.5, 1.4).logpdf(x)
    np.testing.assert_allclose(q.kl(p), (np.exp(log_q) * (log_q - log_p)).sum() * (x[1] - x[0]), rtol=1e-4)


def test_distributions_equal_those_of_distreqx():
    """For the numbers that data/distreqx_distributions.py wrote."""
    stored = np.load(Path(__file__).parent / "data" / "distreqx_distributions.npz", allow_pickle=False)
    mean, std, logits, action, chosen = (stored[x] for x in ("mean", "std", "logits", "action", "chosen"))
    normal, categorical, vector = Normal(mean, std), Categorical(logits), jax.nn.one_hot(chosen, 3)
    found = {
        "tanh_normal_log_prob": tanh_normal(mean, std).log_prob(action),
        "normal_log_prob": normal.log_prob(action),
        "normal_entropy": normal.entropy(),
        "normal_kl": normal.kl(Normal(np.zeros((8, 3)), np.ones((8, 3)))),
        "categorical_log_prob": categorical.log_prob(chosen),
        "categorical_entropy": categorical.entropy(),
    }
    for name, x in found.items():
        np.testing.assert_allclose(x, stored[name], rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(OneHot(logits).log_prob(vector), found["categorical_log_prob"], rtol=1e-6)


def test_a_tanh_normal_is_the_change_of_variables():
    """log p(a) = log N(arctanh a) - log(1 - a^2), for a sample and for a given action."""
    keys = jax.random.split(jax.random.key(0), 3)
    mean = 0.5 * jax.random.normal(keys[0], (50, 3))
    std = jax.random.uniform(keys[1], (50, 3), minval=0.1, maxval=0.8)
    policy = tanh_normal(mean, std)
    action, log_prob = quick(lambda key: policy.sample_and_log_prob(key))(keys[2])
    a = np.asarray(action, np.float64)
    assert np.abs(a).max() < 0.9999 and np.array_equal(action, quick(lambda key: policy.sample(key))(keys[2]))
    wanted = (stats.norm(np.asarray(mean), np.asarray(std)).logpdf(np.arctanh(a)) - np.log1p(-(a**2))).sum(-1)
    np.testing.assert_allclose(log_prob, wanted, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(policy.log_prob(action), wanted, rtol=1e-3, atol=1e-3)


def test_a_squashed_normal_is_a_density_and_its_best_draw_the_likeliest():
    policy = tanh_normal(jnp.array([0.4]), jnp.array([0.8]))
    u = np.linspace(-9, 9, 20_001)
    density = np.exp(policy._log_prob_before(jnp.asarray(u[:, None], jnp.float32)))
    action = np.tanh(u)
    assert np.isclose((density[1:] * np.diff(action)).sum(), 1.0, atol=1e-3)  # it integrates to one over (-1, 1)
    inside = np.abs(u) < 2
    by_hand = np.exp(-0.5 * ((u - 0.4) / 0.8) ** 2) / (0.8 * np.sqrt(2 * np.pi)) / (1 - action**2)
    assert np.allclose(density[inside], by_hand[inside], rtol=1e-3)

    @quick
    def tried(key):
        wide, (one, other) = tanh_normal(jnp.full((2000, 1), 0.4), jnp.full((2000, 1), 0.8)), jax.random.split(key)
        drawn, best = wide.sample(one), wide.best(other)
        return drawn, best, wide.log_prob(drawn), wide.log_prob(best), wide.entropy(one)

    drawn, best, of_drawn, of_best, entropy = map(np.asarray, tried(jax.random.key(0)))
    assert best.std() < 0.3 * drawn.std() and of_best.min() > np.median(of_drawn)
    assert np.isclose(entropy.mean(), -of_drawn.mean(), atol=1e-3)


def test_discrete_actions_carry_the_gradient_of_their_probabilities():
    logits, weight = jnp.array([[0.1, 2.0, -1.0]]), jnp.array([[1.0, -2.0, 0.5]])

    @quick
    def tried(key):
        through = jax.grad(lambda x: (OneHot(x).sample(key) * weight).sum())(logits)
        wanted = jax.grad(lambda x: (jax.nn.softmax(x) * weight).sum())(logits)
        many = OneHot(jnp.tile(logits, (5000, 1))).sample(key)
        return through, wanted, many, OneHot(logits).entropy(key), OneHot(logits).best(key)

    through, wanted, many, entropy, best = map(np.asarray, tried(jax.random.key(1)))
    assert np.allclose(through, wanted, atol=1e-6) and np.abs(wanted).max() > 0.1
    shares = np.exp(logits[0]) / np.exp(logits[0]).sum()
    assert np.allclose(many.max(1), 1) and np.allclose(many.sum(1), 1) and np.allclose(many.mean(0), shares, atol=0.03)
    assert np.isclose(entropy[0], -(shares * np.log(shares)).sum()) and best.tolist() == [[0, 1, 0]]


def test_noise_is_added_to_vectors_and_replaces_discrete_actions():
    @quick
    def tried(key):
        keys, still = jax.random.split(key, 3), tanh_normal(jnp.zeros((4000, 1)), jnp.ones((4000, 1)))
        moved = still.noisy(jnp.full((4000, 1), 0.2), 0.3, keys[0])
        one = jnp.tile(jnp.array([0.0, 1.0, 0.0, 0.0]), (4000, 1))
        return moved, still.noisy(moved, 5.0, keys[1]), OneHot(one).noisy(one, 0.4, keys[2])

    moved, far, replaced = map(np.asarray, tried(jax.random.key(0)))
    assert np.isclose(moved.mean(), 0.2, atol=0.03) and np.isclose(moved.std(), 0.3, atol=0.03)
    assert np.abs(far).max() == 1.0 and np.allclose(replaced.mean(0), [0.1, 0.7, 0.1, 0.1], atol=0.03)
