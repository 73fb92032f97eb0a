"""IMPALA: what it writes down is what it learns from, each setting does what it says, and it learns."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.settings import Drift, Walk, quick, small_grid

from made.agents import IMPALA
from made.agents.policy_net import LAYOUTS, Layout, Patches, PolicyNet
from made.bonuses import ConstantBonus, NoBonus, Scaled
from made.core import Space, trees
from made.core.config import config_id, override, to_dict
from made.nets.layers import orthogonal_dense
from made.training.backends.compiled_envs import run_batch
from made.training.on_policy import RunConfig, improve
from made.training.rollout import reset_slots, rollout

TINY = {"channels": (4,), "strides": (2,), "dense": (8,), "width": 6}


def collected(agent: IMPALA, env, steps: int = 12, n: int = 3):
    """(agent state, batch [T, N]) of a policy that has just been drawn; episodes end on the way."""
    state = agent.init(jax.random.key(0), env.spec)

    def collect(state, key):
        streams = reset_slots(env, agent, NoBonus(), (), n, key)
        return rollout(env, agent, NoBonus(), state, (), streams, steps, key).batch

    return state, quick(collect)(state, jax.random.key(1))


@pytest.mark.parametrize("memory, layers", [("lstm", 2), ("gru", 1), ("", 1)])
def test_the_learner_finds_the_probabilities_that_the_actor_wrote_down(memory, layers):
    """So the recurrent state is carried and reset alike in both: the ratio of on-policy data is one."""
    agent = IMPALA(Layout(**TINY, memory=memory, layers=layers))
    state, batch = collected(agent, small_grid())
    assert bool((batch.terminated | batch.truncated)[:-1].any())
    logits = _unrolled(state.net, batch)[1]
    found = jnp.take_along_axis(jax.nn.log_softmax(logits), batch.action[..., None], -1)[..., 0]
    np.testing.assert_allclose(found, batch.extras.log_prob, atol=1e-5)
    assert np.unique(np.asarray(found).round(4)).size > 3


def _unrolled(net, batch):
    done = batch.terminated | batch.truncated
    fresh = jnp.concatenate([jnp.zeros_like(done[:1]), done[:-1]])
    return quick(lambda net, *given: net.unroll(*given[:2], (), given[2]))(
        net, trees.index(batch.extras.carry, 0), batch.obs, fresh
    )


@pytest.mark.parametrize("memory, layers", [("lstm", 2), ("gru", 1), ("", 1)])
@pytest.mark.parametrize(("heads", "episodic"), [(1, True), (2, True), (2, False)])
def test_a_truncated_step_bootstraps_from_the_value_of_its_true_successor(memory, layers, heads, episodic):
    """Against steps of the network one by one: the recurrent state goes on to the last observation before the reset."""
    agent = IMPALA(
        Layout(**TINY, memory=memory, layers=layers), heads=heads, discount=0.9, discount_intrinsic=0.8,
        episodic_intrinsic=episodic,
    )  # fmt: skip
    state, batch = collected(agent, Walk(), steps=20)
    batch = batch._replace(extras=batch.extras._replace(carry=jax.tree.map(lambda x: x + 0.3, batch.extras.carry)))
    some = jnp.arange(20)[:, None] == jnp.array([2, 8, 13])
    batch = batch._replace(terminated=batch.terminated | some)
    rewards = np.asarray(agent.streams(batch, batch.reward + 0.3))
    batch = jax.tree.map(np.asarray, batch)  # each index of an array of JAX's is a program
    assert bool((batch.truncated & ~batch.terminated)[:-1].any())
    net = eqx.tree_at(lambda net: net.value.bias, state.net, state.net.value.bias + 1)  # so that bootstrapping matters
    aims = {False: np.zeros((20, 3, heads)), True: np.zeros((20, 3, heads))}
    values, step = np.zeros((20, 3, heads)), jax.jit(lambda carry, obs: net.step(carry, obs, ()))
    for n in range(3):
        carry, gone, blank = jax.tree.map(lambda x, n=n: x[0, n], batch.extras.carry), [], agent.carry(Walk().spec)
        ratios = np.zeros(20)
        for t in range(20):
            here, action = batch.obs[t, n], batch.action[t, n]
            carry, logits, values[t, n] = step(carry, here)
            ratios[t] = np.exp(np.asarray(jax.nn.log_softmax(logits))[action] - batch.extras.log_prob[t, n])
            gone.append(np.asarray(step(carry, batch.next_obs[t, n])[2]))
            if bool(batch.terminated[t, n] | batch.truncated[t, n]):
                carry = blank
        for bootstraps, aim in aims.items():
            beyond = np.zeros(heads)
            for t in reversed(range(20)):
                discount, weight = np.array([0.9, 0.8])[:heads], min(1.0, ratios[t])
                over = batch.terminated[t, n] | (batch.truncated[t, n] & (not bootstraps))
                cut = batch.terminated[t, n] | batch.truncated[t, n]
                over, cut, ahead = np.array([over] * heads), np.array([cut] * heads), gone[t].copy()
                if not episodic:  # the second value goes on to the first of the next episode
                    over[1] = cut[1] = False
                    ahead[1] = values[t + 1, n, 1] if t < 19 else gone[t][1]
                delta = weight * (rewards[t, n] + ~over * discount * ahead - values[t, n])
                beyond = delta + ~cut * discount * weight * beyond
                aim[t, n] = values[t, n] + beyond
    losses = {}
    for bootstraps, aim in aims.items():
        chosen = dataclasses.replace(agent, bootstrap_truncated=bootstraps)
        losses[bootstraps] = float(quick(chosen.loss)(net, batch, rewards)[1]["baseline_loss"])
        assert losses[bootstraps] == pytest.approx(0.5 * ((aim - values) ** 2).sum(-1).mean(), rel=1e-4)
    assert losses[True] != pytest.approx(losses[False], rel=0.05)


def test_a_non_episodic_return_needs_two_heads():
    assert "episodic_intrinsic" not in to_dict(IMPALA())
    with pytest.raises(ValueError, match="set heads=2"):
        IMPALA(episodic_intrinsic=False)


def test_bootstrapping_at_truncation_is_chosen_by_name_and_leaves_run_ids_as_they_were():
    assert "bootstrap_truncated" not in to_dict(IMPALA())
    changed = override(IMPALA(), "bootstrap_truncated", "true")
    assert changed.bootstrap_truncated is True and to_dict(changed)["bootstrap_truncated"] is True
    assert config_id(changed) != config_id(IMPALA())


def test_one_update_is_rmsprop_on_the_clipped_gradient():
    agent = IMPALA(Layout(**TINY), learning_rate=1e-2, clip_gradient=0.01)
    state, batch = collected(agent, small_grid())
    loss = lambda net, batch: agent.loss(net, batch, agent.streams(batch, batch.reward + 0.3))[0]  # noqa: E731
    gradient = quick(jax.grad(loss))(state.net, batch)
    norm = np.sqrt(sum(float(jnp.sum(g**2)) for g in jax.tree.leaves(gradient)))
    assert norm > 0.01
    after, metrics = quick(lambda s, b: agent.update(s, b, lambda b: b.reward + 0.3, None))(state, batch)
    for old, new, g in zip(*map(jax.tree.leaves, (state.net, after.net, gradient)), strict=True):
        g = np.asarray(g) * 0.01 / norm
        wanted = np.asarray(old) - 1e-2 * g / (np.sqrt(0.01 * g**2) + 1e-5)
        np.testing.assert_allclose(new, wanted, rtol=2e-3, atol=2e-5)
    assert float(metrics["gradient_norm"]) == pytest.approx(norm, rel=1e-3)


def test_rewards_are_clipped_and_come_apart_with_two_heads():
    agent, (_, batch) = IMPALA(Layout(**TINY), heads=2), collected(IMPALA(Layout(**TINY)), small_grid())
    batch = batch._replace(reward=jnp.full_like(batch.reward, 0.5))
    apart = agent.streams(batch, batch.reward + 3.0)
    assert apart.shape == (12, 3, 2) and (apart[..., 0] == 0.5).all() and (apart[..., 1] == 1.0).all()
    assert (IMPALA().streams(batch, batch.reward + 3.0) == 1.0).all()
    state = agent.init(jax.random.key(0), small_grid().spec)
    after, _ = quick(lambda s, b: agent.update(s, b, lambda b: b.reward - 0.1, None))(state, batch)
    before, now = _unrolled(state.net, batch)[2].mean((0, 1)), _unrolled(after.net, batch)[2].mean((0, 1))
    assert now[0] > before[0] and now[1] < before[1]  # each value moves towards its own stream


def test_actors_lag_behind_by_as_many_updates_as_asked():
    agent = IMPALA(Layout(**TINY), learning_rate=1e-2, lag=2)
    state, batch = collected(agent, small_grid())
    update, nets = quick(lambda s, b: agent.update(s, b, lambda b: b.reward + 0.3, None)), [state.net]
    for _ in range(3):
        state, _ = update(state, batch)
        nets.append(state.net)
    assert eqx.tree_equal(trees.index(state.older, 0), nets[1])
    obs = trees.index(trees.index(batch.obs, 0), 0)
    blank = agent.carry(small_grid().spec)
    _, action, acted = quick(lambda s, obs: agent.act(s, blank, obs, (), jax.random.key(0)))(state, obs)
    wanted = jax.nn.log_softmax(quick(lambda net, obs: net.step(blank, obs, ()))(nets[1], obs)[1])[action]
    assert float(acted.log_prob) == pytest.approx(float(wanted), abs=1e-6)


def test_the_learning_rate_falls_to_nothing():
    agent = IMPALA(Layout(**TINY), learning_rate=1.0, decay=2.0)
    state, batch = collected(agent, small_grid())
    update = quick(lambda s, b: agent.update(s, b, lambda b: b.reward, None))
    rates = []
    for _ in range(4):
        before = state.net
        state, metrics = update(state, batch)
        rates.append(float(metrics["learning_rate"]))
    assert rates == [1.0, 0.5, 0.0, 0.0] and eqx.tree_equal(before, state.net)


def test_it_learns_a_short_walk():
    """Five places, the prize at one end: a random walk earns about a third."""
    agent = IMPALA(Layout(**TINY), learning_rate=5e-3)
    run = RunConfig(Walk(), agent, NoBonus(), n_envs=8, unroll=12, iterations=60, every=2)
    rows = run_batch([run], [0])[0].rows
    assert rows["return"][0] < 0.7 < 0.95 < rows["return"][-1]


def test_it_follows_the_reward_it_is_given():
    """With nothing but a bonus for the action 0, that is the action it takes."""

    class Zero(ConstantBonus):
        def reward(self, state, batch, *, value=None):
            return (batch.action == 0).astype(float)

    run = RunConfig(Walk(), IMPALA(Layout(**TINY), learning_rate=1e-2), Scaled(Zero()), n_envs=8, unroll=12)
    state = jax.jit(lambda run, key: run.start(key))(run, jax.random.key(0))
    batch = None

    @jax.jit
    def step(state, key):
        rolled = rollout(state.env, run.agent, run.bonus, state.agent, (), state.streams, 12, key)
        after, _ = improve(run, state, rolled.batch, key)
        return after._replace(streams=rolled.streams), rolled.batch

    for i in range(60):
        state, batch = step(state, jax.random.key(i))
    assert batch is not None and float((batch.action == 0).mean()) > 0.8


def test_a_goal_that_is_a_cell_is_one_more_channel_of_the_image():
    spec = small_grid().spec._replace(goal=Space((), jnp.int32, 49))
    net = PolicyNet(Layout(**TINY), spec, 1, "", key=jax.random.key(0))
    assert net.convolutions[0][0].dense.weight.shape[0] == 9 * 4
    obs = {"image": jnp.ones((7, 7, 3), jnp.uint8), "hash": jnp.zeros(2, jnp.uint32)}
    one, other = (net.features(obs, jnp.asarray(goal)) for goal in (3, 30))
    assert not np.allclose(one, other)
    elsewhere = PolicyNet(Layout(**TINY), spec._replace(goal=Space((), jnp.int32, 5)), 1, "", key=jax.random.key(0))
    assert elsewhere.dense[0].weight.shape[0] == net.dense[0].weight.shape[0] + 5


@pytest.mark.parametrize("stride", [1, 2])
def test_patches_are_a_convolution(stride):
    layer = Patches(orthogonal_dense(27, 5, jax.random.key(0)), stride)
    image = jax.random.normal(jax.random.key(1), (2, 7, 7, 3))
    kernel = layer.dense.weight.reshape(3, 3, 3, 5)
    shape = ("NHWC", "HWIO", "NHWC")
    wanted = jax.lax.conv_general_dilated(image, kernel, (stride,) * 2, [(1, 1)] * 2, dimension_numbers=shape)
    np.testing.assert_allclose(layer(image), wanted, atol=1e-5)


def test_half_precision_is_close_and_the_parameters_stay_whole():
    _, batch = collected(IMPALA(Layout(**TINY)), small_grid())
    nets = [
        PolicyNet(Layout(**TINY, precision=p), small_grid().spec, 1, "", key=jax.random.key(0))
        for p in ("float32", "bfloat16")
    ]
    whole, half = (_unrolled(net, batch) for net in nets)
    assert half[1].dtype == jnp.float32 and jax.tree.leaves(half[0])[0].dtype == jnp.float32
    np.testing.assert_allclose(half[1], whole[1], atol=0.1)
    assert not np.array_equal(half[1], whole[1])


def test_the_networks_of_the_papers_have_their_sizes():
    spec = small_grid().spec
    net = jax.eval_shape(lambda: PolicyNet(LAYOUTS["ride"], spec, 1, "", key=jax.random.key(0)))
    assert net.dense[0].weight.shape == (32, 1024) and len(net.core) == 2 and net.core[1].weights.shape == (1024, 4096)
    net = jax.eval_shape(lambda: PolicyNet(LAYOUTS["noveld"], spec, 1, "", key=jax.random.key(0)))
    assert net.dense[0].weight.shape == (2048, 1024) and net.policy.weight.shape == (1024, 7)
    assert LAYOUTS["mid-ff"].memory == "" and LAYOUTS["mid-ff"].dense == (256, 256)


@pytest.mark.parametrize("lag", [0, 2])
def test_parameters_cast_once_for_a_rollout_act_as_those_cast_at_every_step(lag):
    env = small_grid()
    agent = IMPALA(Layout(**TINY, precision="bfloat16"), lag=lag)
    state = agent.init(jax.random.key(0), env.spec)
    ready = agent.acting_params(state)
    assert ready.net.dense[0].weight.dtype == jnp.bfloat16 and ready.net.policy.weight.dtype == jnp.float32
    _, obs = env.reset(jax.random.key(1))
    first, second = (agent.act(s, agent.carry(env.spec), obs, (), jax.random.key(2)) for s in (state, ready))
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_the_small_network_is_for_two_cores():
    """A frame takes it about 140,000 products, so that the goal of 25,000 frames a second can be met there."""
    spec, agent = small_grid().spec, IMPALA()
    assert agent.layout == LAYOUTS["small"]
    net = jax.eval_shape(lambda: PolicyNet(agent.layout, spec, 1, "", key=jax.random.key(0)))
    seen = jax.tree.map(lambda space: jax.ShapeDtypeStruct(space.shape, space.dtype), spec.obs, is_leaf=_is_space)
    told = jax.jit(lambda net, obs: net.step(agent.carry(spec), obs, ())).lower(net, seen).cost_analysis()
    assert told and 2 * 130_000 < told["flops"] < 2 * 150_000


def _is_space(x) -> bool:
    return isinstance(x, Space)


def test_bad_settings_are_refused_in_one_sentence():
    with pytest.raises(ValueError, match="discrete actions"):
        IMPALA().init(jax.random.key(0), Drift().spec)
    with pytest.raises(ValueError, match="heads=3"):
        IMPALA(heads=3)
    with pytest.raises(ValueError, match="memory='rnn'"):
        Layout(memory="rnn")
    with pytest.raises(ValueError, match="a stride for each convolution"):
        Layout(strides=(1,))
    with pytest.raises(ValueError, match="precision='float32'"):
        Layout(precision="half")
