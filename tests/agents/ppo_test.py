"""PPO: its data against steps of the network one by one, its loss against NumPy, each setting, and that it learns."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.settings import Drift, Walk, quick, small_grid

from made.agents import PPO
from made.agents.policy_net import Layout
from made.bonuses import NoBonus
from made.core import Environment, Space, Spec, Step, trees
from made.training.backends.compiled_envs import run_batch
from made.training.on_policy import RunConfig
from made.training.rollout import reset_slots, rollout

TINY = {"channels": (4,), "strides": (2,), "dense": (8,), "width": 6}
FEED_FORWARD = Layout(**TINY, memory="")
NETWORKS = [("lstm", 2), ("gru", 1), ("", 1)]
T, N = 12, 4


def collected(agent: PPO, env, steps: int = T, n: int = N):
    """(agent state, batch [T, N]) of a policy that has just been drawn; episodes end on the way."""
    state = agent.init(jax.random.key(0), env.spec)
    state = eqx.tree_at(lambda s: s.params.net.policy.weight, state, 100 * state.params.net.policy.weight)
    state = eqx.tree_at(lambda s: s.params.net.value.bias, state, state.params.net.value.bias + 1)

    def collect(state, key):
        streams = reset_slots(env, agent, NoBonus(), (), n, key)
        return rollout(env, agent, NoBonus(), state, (), streams, steps, key).batch

    return state, quick(collect)(state, jax.random.key(1))


@pytest.mark.parametrize(("memory", "layers"), NETWORKS)
@pytest.mark.parametrize("env", [small_grid, Drift])
def test_the_learner_recomputes_the_log_probabilities_of_the_actor(memory, layers, env):
    """So the first ratio is 1, with memory and over episode ends too."""
    agent = PPO(Layout(**TINY, memory=memory, layers=layers))
    state, batch = collected(agent, env())
    assert bool((batch.terminated | batch.truncated)[:-1].any())
    samples = quick(agent.samples)(state.params.net, batch, batch.reward)
    first = trees.index(batch.extras.carry, 0)
    _, metrics = quick(agent.loss)(state.params, samples, first)
    assert float(metrics["approx_kl"]) == pytest.approx(0, abs=1e-5) and float(metrics["clip_fraction"]) == 0
    assert np.unique(np.asarray(batch.extras.log_prob).round(4)).size > 3


@pytest.mark.parametrize(("memory", "layers"), NETWORKS)
@pytest.mark.parametrize("episodic", [True, False])
def test_targets_equal_the_recursion_over_steps_of_the_network(memory, layers, episodic):
    agent = PPO(
        Layout(**TINY, memory=memory, layers=layers), discount=0.9, discount_intrinsic=0.8, gae_lambda=0.7, heads=2,
        episodic_intrinsic=episodic,
    )  # fmt: skip
    state, batch = collected(agent, Walk(), steps=20, n=3)
    some = jnp.arange(20)[:, None] == jnp.array([2, 8, 13])  # more ends, some of them beside a truncation
    batch = batch._replace(terminated=batch.terminated | some)
    batch = batch._replace(truncated=(batch.truncated | (jnp.arange(20)[:, None] == 19)) & ~batch.terminated)
    found = quick(agent.samples)(state.params.net, batch, batch.reward + 0.3)
    found, batch = jax.tree.map(np.asarray, (found, batch))  # each index of an array of JAX's is a program
    step = quick(lambda carry, obs: state.params.net.step(carry, obs, ()))
    assert int(batch.truncated.sum(0).max()) > 1
    value, rewards = np.asarray(batch.extras.value), np.stack([batch.reward, np.full((20, 3), 0.3)], -1)
    for n in range(3):
        carry, successors = trees.index(batch.extras.carry, (0, n)), []
        for t in range(20):
            after = step(carry, batch.obs[t, n])[0]
            successors.append(np.asarray(step(after, batch.next_obs[t, n])[2]))
            carry = agent.carry(Walk().spec) if bool(batch.terminated[t, n] | batch.truncated[t, n]) else after
        beyond = np.zeros(2)
        for t in reversed(range(20)):
            over, cut = bool(batch.terminated[t, n]), bool(batch.terminated[t, n] | batch.truncated[t, n])
            ends, ahead = np.array([over, over & episodic]), successors[t].copy()
            cuts = np.array([cut, cut & episodic])
            if not episodic and t < 19:
                ahead[1] = value[t + 1, n, 1]
            discount = np.array([0.9, 0.8])
            beyond = rewards[t, n] + discount * ~ends * ahead - value[t, n] + discount * 0.7 * ~cuts * beyond
            np.testing.assert_allclose(found.target[t, n] - value[t, n], beyond, atol=1e-4)
            assert float(found.advantage[t, n]) == pytest.approx(beyond.sum(), abs=1e-4)


@pytest.mark.parametrize("clip_range_value", [None, 0.05])
@pytest.mark.parametrize("normalize", [True, False])
def test_the_loss_is_that_of_the_paper(clip_range_value, normalize):
    agent = PPO(
        FEED_FORWARD, clip_range=0.05, clip_range_value=clip_range_value, normalize_advantage=normalize, entropy=0.1
    )
    state, batch = collected(agent, Walk())
    samples = quick(agent.samples)(state.params.net, batch, batch.reward)
    moved = eqx.tree_at(
        lambda p: (p.net.policy.bias, p.net.value.bias),
        state.params,
        (jnp.array([0.2, -0.1]), state.params.net.value.bias + 0.1),
    )
    loss, metrics = quick(agent.loss)(moved, samples, ())
    unrolled = quick(lambda net, obs, fresh: net.unroll((), obs, (), fresh))(moved.net, batch.obs, samples.fresh)
    logits, value = map(np.asarray, unrolled[1:])
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    chosen = np.take_along_axis(p, np.asarray(batch.action)[..., None], -1)[..., 0]
    ratio, advantage = chosen / np.exp(np.asarray(samples.log_prob)), np.asarray(samples.advantage)
    if normalize:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy_loss = -np.minimum(ratio * advantage, np.clip(ratio, 0.95, 1.05) * advantage).mean()
    old, target, value = np.asarray(samples.value)[..., 0], np.asarray(samples.target)[..., 0], value[..., 0]
    error = (target - value) ** 2
    if clip_range_value:
        error = np.maximum(error, (target - old - np.clip(value - old, -0.05, 0.05)) ** 2)
    entropy = -(p * np.log(p)).sum(-1).mean()
    assert float(metrics["clip_fraction"]) == pytest.approx((abs(ratio - 1) > 0.05).mean()) and (ratio > 1.05).any()
    assert float(loss) == pytest.approx(policy_loss + 0.25 * error.mean() - 0.1 * entropy, rel=1e-4)


def test_a_step_is_adam_on_the_clipped_gradient():
    agent = PPO(FEED_FORWARD, epochs=1, minibatches=1, learning_rate=0.01, max_grad_norm=0.1)
    state, batch = collected(agent, Walk())
    samples = quick(agent.samples)(state.params.net, batch, batch.reward)
    flat = jax.tree.map(lambda x: x.reshape((1, -1, *x.shape[2:])), samples)
    gradient = quick(jax.grad(lambda p: agent.loss(p, flat, ())[0]))(state.params)
    norm = np.sqrt(sum(float((g**2).sum()) for g in jax.tree.leaves(gradient)))
    assert norm > 0.1
    after, metrics = quick(lambda s, b: agent.update(s, b, lambda b: b.reward, jax.random.key(0)))(state, batch)
    assert float(metrics["gradient_norm"]) == pytest.approx(norm, rel=1e-4)
    for old, new, g in zip(*map(jax.tree.leaves, (state.params, after.params, gradient)), strict=True):
        g = np.asarray(g) * 0.1 / norm
        np.testing.assert_allclose(new, np.asarray(old) - 0.01 * g / (abs(g) + 1e-5), atol=2e-4)


@pytest.mark.parametrize("memory", ["gru", ""])
def test_every_epoch_uses_every_step_once(memory):
    """With a learning rate that is negligible, the mean over minibatches is the loss of the whole rollout."""
    agent = PPO(Layout(**TINY, memory=memory), learning_rate=1e-12, normalize_advantage=False, epochs=3, minibatches=2)
    state, batch = collected(agent, small_grid())
    samples = quick(agent.samples)(state.params.net, batch, batch.reward + 0.1)
    _, whole = quick(agent.loss)(state.params, samples, trees.index(batch.extras.carry, 0))
    key = jax.random.key(0)
    _, found = quick(lambda s, b: agent.update(s, b, lambda b: b.reward + 0.1, key))(state, batch)
    for name in ("policy_loss", "value_loss", "entropy"):
        assert float(found[name]) == pytest.approx(float(whole[name]), abs=1e-5)


def test_target_kl_skips_the_rest_of_an_update():
    agent = PPO(FEED_FORWARD, learning_rate=0.05, minibatches=2)
    state, batch = collected(agent, Walk())
    update = lambda agent: quick(  # noqa: E731
        lambda s, b: agent.update(s, b, lambda b: b.reward - (b.action == 0), jax.random.key(0))
    )(state, batch)
    free, (stopped, metrics) = update(agent)[0], update(dataclasses.replace(agent, target_kl=1e-4))
    never, untouched = update(dataclasses.replace(agent, target_kl=1e4))
    assert metrics["stopped_early"] == 1 and untouched["stopped_early"] == 0
    far = lambda s: float(jnp.abs(s.params.net.policy.weight - state.params.net.policy.weight).max())  # noqa: E731
    assert 0 < far(stopped) < 0.5 * far(free) and far(never) == far(free)


def test_the_learning_rate_falls_to_nothing():
    agent = PPO(FEED_FORWARD, learning_rate=0.1, decay=2.0)
    state, batch = collected(agent, Walk())
    update, rates = quick(lambda s, b: agent.update(s, b, lambda b: b.reward, jax.random.key(0))), []
    for _ in range(4):
        before = state.params
        state, metrics = update(state, batch)
        rates.append(float(metrics["learning_rate"]))
    assert rates == pytest.approx([0.1, 0.05, 0, 0]) and eqx.tree_equal(before, state.params)


@pytest.mark.parametrize("memory", ["gru", ""])
def test_it_learns_a_short_walk(memory):
    """Five places, the reward at one end: a random walk gets about a third."""
    agent = PPO(Layout(**TINY, memory=memory), learning_rate=5e-3, minibatches=2)
    run = RunConfig(Walk(), agent, NoBonus(), n_envs=8, unroll=12, iterations=24, every=2)
    rows = run_batch([run], [0])[0].rows
    assert rows["return"][0] < 0.8 < 0.95 < rows["return"][-1]


class Aim(Environment):
    """One continuous action an episode, rewarded by its distance to a point that is seen."""

    @property
    def spec(self):
        return Spec(Space((2,), jnp.float32), Space((2,), jnp.float32, None, -2.0, 2.0), horizon=1)

    def reset(self, key):
        point = jax.random.uniform(key, (2,), minval=-1.5, maxval=1.5)
        return point, point

    def step(self, state, action, key):
        over = jnp.ones((), bool)
        return state, Step(state, -jnp.sum((action - state) ** 2), over, ~over)


def test_it_learns_continuous_actions():
    agent = PPO(
        Layout(**TINY | {"dense": (32,), "width": 32}, memory=""), learning_rate=3e-3, entropy=0.0, discount=0.0
    )
    run = RunConfig(Aim(), agent, NoBonus(), n_envs=64, unroll=4, iterations=120, every=4)
    returns = run_batch([run], [0])[0].rows["return"]
    assert returns[0] < -2 and returns[-1] > -0.3


class Switches(Environment):
    """Three switches of four positions, to be set to the positions that are seen."""

    @property
    def spec(self):
        return Spec(Space((3,), jnp.int32, 4), Space((3,), jnp.int32, 4), horizon=1)

    def reset(self, key):
        wanted = jax.random.randint(key, (3,), 0, 4)
        return wanted, wanted

    def step(self, state, action, key):
        over = jnp.ones((), bool)
        return state, Step(state, (action == state).mean(), over, ~over)


def test_it_learns_multi_discrete_actions():
    agent = PPO(Layout(**TINY | {"dense": (32,), "width": 32}, memory=""), learning_rate=5e-3, discount=0.0)
    run = RunConfig(Switches(), agent, NoBonus(), n_envs=64, unroll=4, iterations=60, every=4)
    returns = run_batch([run], [0])[0].rows["return"]
    assert returns[0] < 0.5 < 0.9 < returns[-1]


def test_settings_that_do_not_fit_together_are_errors():
    with pytest.raises(ValueError, match="takes heads=1 or heads=2, got heads=3"):
        PPO(heads=3)
    with pytest.raises(ValueError, match="needs a value of its own: set heads=2"):
        PPO(episodic_intrinsic=False)
    for memory, message in (
        ("gru", r"environments \(4\) into minibatches=3"),
        ("", r"rollout \(48\) into minibatches=5"),
    ):
        agent = PPO(Layout(**TINY, memory=memory), minibatches=3 if memory else 5)
        state, batch = jax.eval_shape(lambda agent=agent: collected_shapes(agent))
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(
                lambda s, b, agent=agent: agent.update(s, b, lambda b: b.reward, jax.random.key(0)), state, batch
            )


@pytest.mark.parametrize("bounds", [(None, None), (-np.inf, np.inf), (0.0, np.inf)])
def test_continuous_actions_without_finite_bounds_are_an_error(bounds):
    with pytest.raises(ValueError, match=r"without finite bounds\. Wrap the environment in gymnasium"):
        PPO().init(jax.random.key(0), Spec(Space((2,), jnp.float32), Space((1,), jnp.float32, None, *bounds)))


@pytest.mark.parametrize("name", ["target_kl", "clip_range_value", "clip_range", "max_grad_norm"])
def test_limits_of_zero_are_an_error(name):
    """They would stop every update, or hold every value where it is."""
    with pytest.raises(ValueError, match=f"PPO takes a number above 0 as {name}, got 0"):
        PPO(**{name: 0.0})


def collected_shapes(agent):
    state = agent.init(jax.random.key(0), Walk().spec)
    streams = reset_slots(Walk(), agent, NoBonus(), (), N, jax.random.key(0))
    return state, rollout(Walk(), agent, NoBonus(), state, (), streams, T, jax.random.key(0)).batch
