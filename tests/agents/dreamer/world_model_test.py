"""The recurrent state-space model against NumPy, step by step, and where gradients may not go."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.settings import quick
from jax.tree_util import Partial

from made.agents.dreamer import world_model
from made.agents.dreamer.network import Layout
from made.agents.dreamer.world_model import RSSM, Latent
from made.core import trees
from made.nets.distributions import Normal

LAYOUT = Layout(stoch=3, deter=6, hidden=5)
T, B, ACTIONS, EMBEDDING = 7, 4, 2, 5


@pytest.fixture(scope="module")
def model() -> RSSM:
    return trained(LAYOUT)


def trained(layout: Layout) -> RSSM:
    """With biases that are not zero, as after some training."""
    drawn = quick(lambda key: RSSM(EMBEDDING, ACTIONS, layout, key=key))(jax.random.key(0))
    leaves, tree = jax.tree.flatten(drawn)
    rng = np.random.default_rng(0)
    return jax.tree.unflatten(tree, [x + 0.3 * rng.normal(size=x.shape).astype(np.float32) for x in leaves])


def compiled(method):
    """A method of a model that holds arrays, which has no hash."""
    return quick(lambda *given: method(*given))


def real(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def state(*lead: int, seed: int = 2) -> Latent:
    return Latent(jnp.asarray(real(*lead, 6, seed=seed)), jnp.asarray(real(*lead, 3, seed=seed + 1)))


def close(one, other, atol=1e-5) -> bool:
    pairs = zip(*(jax.tree.leaves(x) for x in (one, other)), strict=True)
    return all(np.allclose(a, b, atol=atol) for a, b in pairs)


class ByHand:
    """The formulas of the module's docstring in NumPy."""

    def __init__(self, model: RSSM):
        self.model = jax.tree.map(np.asarray, model)

    @staticmethod
    def elu(x):
        return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))

    @staticmethod
    def normal(x) -> Normal:
        mean, raw = np.split(x, 2, -1)
        return Normal(mean, np.log1p(np.exp(raw)) + 0.1)

    def carried(self, before, action):
        m, sigmoid = self.model, lambda x: 1 / (1 + np.exp(-x))
        x = self.elu(np.concatenate([before.stoch, action], -1) @ m.inputs.weight + m.inputs.bias)
        r, u, n = np.split(x @ m.gates.weight + m.gates.bias, 3, -1)
        r_h, u_h, n_h = np.split(before.deter @ m.mixed.weight + m.mixed.bias, 3, -1)
        keep = sigmoid(u + u_h)
        return keep * before.deter + (1 - keep) * np.tanh(n + sigmoid(r + r_h) * n_h)

    def expected(self, deter) -> Normal:
        first, second = self.model.prior.layers
        return self.normal(self.elu(deter @ first.weight + first.bias) @ second.weight + second.bias)

    def judged(self, deter, embed) -> Normal:
        m = self.model
        x = self.elu(np.concatenate([deter, embed], -1) @ m.joined.weight + m.joined.bias)
        return self.normal(x @ m.posterior.weight + m.posterior.bias)


def one_step(model: RSSM, before: Latent, action, noise) -> Latent:
    return trees.index(model.follow(before, action[None], noise[None]), 0)


def test_a_step_is_its_formula(model):
    before, action, embed, noise = state(B), real(B, ACTIONS), real(B, EMBEDDING, seed=5), real(B, 3, seed=6)
    hand = ByHand(model)
    deter = hand.carried(jax.tree.map(np.asarray, before), action)
    prior, posterior = hand.expected(deter), hand.judged(deter, embed)
    ahead = compiled(lambda *given: one_step(model, *given))(before, action, noise)
    told = compiled(model.posterior_step)(before, action, embed, noise)
    assert close(ahead, Latent(deter, prior.mean + prior.std * noise))
    assert close(told.latent, Latent(deter, posterior.mean + posterior.std * noise))
    assert close((told.posterior, told.prior), (posterior, prior)) and float(told.prior.std.min()) > 0.1
    assert np.array_equal(ahead.features, jnp.concatenate([ahead.stoch, ahead.deter], -1))


def test_the_divergence_is_its_integral():
    """One number, by a sum over a fine grid; several add up."""
    q, p = Normal(np.array([0.3]), np.array([0.7])), Normal(np.array([-0.5]), np.array([1.4]))
    x = np.linspace(-12, 12, 200_001)
    density = lambda of: np.exp(-0.5 * ((x - of.mean) / of.std) ** 2) / (of.std * np.sqrt(2 * np.pi))  # noqa: E731
    truth = (density(q) * np.log(density(q) / density(p))).sum() * (x[1] - x[0])
    assert np.isclose(q.kl(p), truth, atol=1e-5)
    twice = lambda of: Normal(np.tile(of.mean, 2), np.tile(of.std, 2))  # noqa: E731
    assert np.isclose(twice(q).kl(twice(p)), 2 * truth, atol=1e-5) and np.isclose(q.kl(q), 0.0)


def test_a_sequence_is_its_steps_and_begins_again_where_an_episode_does(model):
    fresh = np.zeros((T, B), bool)
    fresh[0], fresh[3, 1], fresh[5, 1], fresh[1, 2] = True, True, True, True
    starts, actions = state(T, B), real(T, B, ACTIONS)
    embeds, noise = real(T, B, EMBEDDING, seed=7), real(T, B, 3, seed=8)
    whole = compiled(model.observe)(starts, fresh, actions, embeds, noise)
    told, before = compiled(model.posterior_step), trees.index(starts, 0)
    for t in range(T):
        before = trees.select(jnp.asarray(fresh[t]), trees.index(starts, t), before)
        one = told(before, actions[t], embeds[t], noise[t])
        assert close(trees.index(whole, t), one)
        before = one.latent
    # What came before the last reset of a stream makes no difference to what comes after.
    other = compiled(model.observe)(starts, fresh, np.where(np.arange(T)[:, None, None] < 5, 0, actions), embeds, noise)
    assert close(other.latent.deter[5:, 1], whole.latent.deter[5:, 1])
    assert not close(other.latent.deter[5:, 0], whole.latent.deter[5:, 0])


def test_an_episode_begins_from_nothing(model):
    embed, noise = real(2, B, EMBEDDING), real(2, B, 3, seed=3)
    blank, still = Latent(np.zeros((2, B, 6)), np.zeros((2, B, 3))), np.zeros((2, B, ACTIONS), np.float32)
    assert close(compiled(model.begin)(embed, noise), compiled(model.posterior_step)(blank, still, embed, noise))


def test_imagination_is_its_steps_and_an_open_loop_follows_its_actions(model):
    start, key, weight = state(B), jax.random.key(3), jnp.asarray(real(9, ACTIONS))

    def policy(features, key):
        action = jnp.tanh(features @ weight + jax.random.normal(key, (B, ACTIONS)))
        return action, action.sum(-1)

    imagined, sums = quick(lambda start, key: model.imagine(start, Partial(policy), 4, key))(start, key)
    before, actions, noises, ahead = start, [], [], compiled(lambda *given: one_step(model, *given))
    for t, k in enumerate(jax.random.split(key, 4)):
        k_act, k_noise = jax.random.split(k)
        action, noise = policy(before.features, k_act)[0], jax.random.normal(k_noise, (B, 3))
        before = ahead(before, action, noise)
        assert close(trees.index(imagined, t), before) and np.allclose(sums[t], action.sum(-1), atol=1e-5)
        actions.append(action)
        noises.append(noise)
    assert close(compiled(model.follow)(start, jnp.stack(actions), jnp.stack(noises)), imagined)


def test_steps_that_share_a_pass_of_the_loop_give_the_same_states_and_slopes(model, monkeypatch):
    """Five of seven, and of three: a pass that is not full, and a loop that is shorter than one."""
    fresh, actions, noise = np.zeros((T, B), bool), real(T, B, ACTIONS), real(T, B, 3, seed=8)
    fresh[0], fresh[3, 1] = True, True
    given = state(T, B), fresh, actions, real(T, B, EMBEDDING, seed=7), noise

    def found(model):
        policy = Partial(lambda features, key: (jnp.tanh(features[:, :ACTIONS]), features.sum(-1)))
        ways = model.observe(*given), model.imagine(state(B), policy, 3, jax.random.key(3))
        answers = (*ways, model.follow(state(B), actions, noise))
        return sum((x**2).sum() for x in jax.tree.leaves(answers)), answers

    def scans(backend: str):
        monkeypatch.setattr(jax, "default_backend", lambda: backend)
        program = jax.make_jaxpr(lambda model: jax.grad(lambda model: found(model)[0])(model))(model)  # the way there
        scans = [one.params for one in program.eqns if one.primitive.name == "scan"]
        return [one["unroll"] for one in scans if not one["reverse"]]

    assert scans("cpu") == [1, 1, 1] and scans("gpu") == [5, 3, 5]
    shared = quick(lambda model: jax.grad(found, has_aux=True)(model))(model)
    monkeypatch.setattr(world_model, "UNROLLED", 2)
    assert scans("gpu") == [2, 2, 2]
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    alone = quick(lambda model: jax.grad(found, has_aux=True)(model))(model)
    for one, other in zip(*(jax.tree.leaves(x) for x in (shared, alone)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_gradients_reach_a_policy_by_its_actions_and_not_by_what_it_looked_at(model):
    start, key = state(B), jax.random.key(3)

    def end(weight, looks: float, acts: float):
        def policy(weight, looks, acts, features, key):
            action = jnp.tanh(features @ weight)
            seen = looks * jax.lax.stop_gradient(action) + acts * action
            return seen, seen

        return model.imagine(start, Partial(policy, weight, looks, acts), 3, key)[0].features[-1].sum()

    slope = quick(jax.grad(end))
    weight = jnp.asarray(real(9, ACTIONS))
    assert np.abs(slope(weight, 0.0, 1.0)).max() > 1e-3
    assert np.array_equal(slope(weight, 1.0, 0.0), np.zeros_like(weight))
    # The features that a policy is shown carry no gradient of their own.
    shown = quick(
        jax.grad(
            lambda x: model.imagine(Latent(x, start.stoch), Partial(lambda f, k: (0 * f[:, :2], f)), 2, key)[1].sum()
        )
    )
    assert np.array_equal(shown(start.deter), np.zeros_like(start.deter))


def test_products_in_half_precision_stay_close_and_the_state_is_whole(model):
    half = trained(Layout(stoch=3, deter=6, hidden=5, precision="bfloat16"))
    given = state(B), real(B, ACTIONS), real(B, EMBEDDING, seed=5), real(B, 3, seed=6)
    one, other = compiled(model.posterior_step)(*given), compiled(half.posterior_step)(*given)
    assert other.latent.deter.dtype == jnp.float32 and close(one, other, atol=0.2) and not close(one, other, atol=1e-4)
