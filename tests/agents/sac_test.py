"""RAD and SAC: networks and losses against NumPy, what gradients reach, what the bonus sees, and that they learn."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from contracts.settings import quick

from made.agents.sac import LOG_STD, RAD, Layout, center_crop, networks, random_crop, rounded_product
from made.core import Space, Spec, Transition
from made.nets.distributions import TanhNormal

ACTIONS = Space((2,), jnp.float32, None, -1.0, 1.0)
PIXELS, STATE = Spec(Space((18, 17, 6), jnp.uint8), ACTIONS), Spec(Space((3,), jnp.float32), ACTIONS)
SPECS = {"pixels": PIXELS, "state": STATE}
SMALL = {"channels": 3, "features": 4, "width": 5, "crop": 15}
AGENTS = {name: RAD(Layout(encoder=name, **SMALL), learning_rate=1e-2, alpha_rate=1e-2) for name in SPECS}
B = 6


def batch_of(spec: Spec, b: int = B, seed: int = 0) -> Transition:
    rng = np.random.default_rng(seed)

    def some(shape):
        byte = jnp.dtype(spec.obs.dtype) == jnp.uint8
        return rng.integers(0, 256, shape).astype(np.uint8) if byte else rng.normal(size=shape).astype(np.float32)

    obs, after = some((b, *spec.obs.shape)), some((b, *spec.obs.shape))
    ends = np.arange(b) % 3
    action, reward = rng.uniform(-1, 1, (b, 2)), rng.normal(size=b)
    return Transition(obs, action.astype(np.float32), reward.astype(np.float32), after, ends == 1, ends == 2)


_MADE = {}


def made(name: str):
    """(agent, its state with targets that have fallen behind, a batch, a compiled update)."""
    if name not in _MADE:
        agent, batch = AGENTS[name], batch_of(SPECS[name])
        update = quick(lambda state, key: agent.update(state, batch, lambda b: b.reward + 0.5, key))
        state = quick(lambda key: agent.init(key, SPECS[name]))(jax.random.key(0))
        for i in range(2):
            state, _ = update(state, jax.random.key(i))
        _MADE[name] = agent, state, batch, update
    return _MADE[name]


# The same in NumPy, one item at a time.


def dense(layer, x):
    return x @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias, np.float64)


def mlp(net, x):
    for layer in net.layers[:-1]:
        x = np.maximum(dense(layer, x), 0)
    return dense(net.layers[-1], x)


def trunk(net, x):
    if net is None:
        return x
    x = dense(net.dense, x)
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
    return np.tanh(np.asarray(net.scale, np.float64) * x + np.asarray(net.shift, np.float64))


def see(net, obs):
    if net is None:
        return np.asarray(obs, np.float64)
    x = np.asarray(obs, np.float64) / 255
    for weight, bias, stride in zip(net.weights, net.biases, (2, 1, 1, 1), strict=True):
        side = (x.shape[0] - 3) // stride + 1
        at = [(i, j) for i in range(side) for j in range(side)]
        rows = [np.tensordot(x[stride * i :, stride * j :][:3, :3], np.asarray(weight, np.float64), 3) for i, j in at]
        x = np.maximum(np.reshape(rows, (side, side, -1)) + np.asarray(bias, np.float64), 0)
    return x.reshape(-1)


def policy(actor, seen):
    mean, log_std = np.split(mlp(actor.head, trunk(actor.trunk, seen)), 2)
    return mean, -10 + 6 * (np.tanh(log_std) + 1)


def acted(actor, seen, noise):
    mean, log_std = policy(actor, seen)
    u = mean + np.exp(log_std) * noise
    log_normal = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
    return np.tanh(u), (log_normal - np.log(1 - np.tanh(u) ** 2)).sum()


def values(critic, seen, action):
    x = np.concatenate([trunk(critic.trunk, seen), action])
    return np.array([mlp(head, x)[0] for head in critic.heads])


def cropped(agent, obs):
    return obs if agent.layout.encoder == "state" else np.stack([center_crop(x, agent.layout.crop) for x in obs])


@pytest.mark.parametrize("name", SPECS)
def test_targets_and_losses_are_those_of_numpy(name):
    agent, state, batch, _ = made(name)
    obs, after, key = cropped(agent, batch.obs), cropped(agent, batch.next_obs), jax.random.key(7)
    noise, alpha = np.asarray(jax.random.normal(key, (B, 2)), np.float64), float(np.exp(state.log_alpha))
    y, critic_loss, objective, log_probs = [], 0.0, 0.0, []
    for i in range(B):
        seen, there = see(state.critic.convolutions, obs[i]), see(state.critic.convolutions, after[i])
        action, log_prob = acted(state.actor, there, noise[i])
        value = values(state.target, see(state.target.convolutions, after[i]), action).min() - alpha * log_prob
        y.append(batch.reward[i] + 0.99 * value * (not batch.terminated[i]))
        critic_loss += ((values(state.critic, seen, batch.action[i]) - y[-1]) ** 2).sum() / B
        action, log_prob = acted(state.actor, seen, noise[i])
        objective += (alpha * log_prob - values(state.critic, seen, action).min()) / B
        log_probs.append(log_prob)

    def losses(state):
        y = agent.target(state, batch.reward, after, batch.terminated, key)
        loss, log_prob = agent.actor_loss(state.actor, state.critic, obs, state.log_alpha, key)
        of_alpha = agent.alpha_loss(state.log_alpha, log_prob, 2)
        return y, agent.critic_loss(state.critic, obs, batch.action, y)[0], loss, log_prob, of_alpha

    found = quick(losses)(state)
    of_alpha = np.mean(alpha * (-np.array(log_probs) - (-2)))  # the entropy asked for is -dim(A)
    for one, other in zip(found, (y, critic_loss, objective, log_probs, of_alpha), strict=True):
        assert np.allclose(one, other, rtol=1e-4, atol=1e-4)


def test_the_convolutions_learn_from_the_critic_alone():
    agent, state, batch, update = made("pixels")
    k_obs, k_next, k_target, k_actor = jax.random.split(jax.random.key(5), 4)

    def by_hand(state):
        """The gradients of both losses in the critic, and one step of Adam on its own."""
        obs, after = agent.seen(batch.obs, k_obs), agent.seen(batch.next_obs, k_next)
        y = agent.target(state, batch.reward + 0.5, after, batch.terminated, k_target)
        of_critic = jax.grad(lambda c: agent.critic_loss(c, obs, batch.action, y)[0])(state.critic)
        of_actor = jax.grad(lambda c: agent.actor_loss(state.actor, c, obs, state.log_alpha, k_actor)[0])(state.critic)
        change, _ = optax.adam(1e-2).update(of_critic, state.optimisers[0])
        return of_critic, of_actor, optax.apply_updates(state.critic, change)

    of_critic, of_actor, wanted = quick(by_hand)(state)
    largest = lambda tree: max(float(jnp.abs(x).max()) for x in jax.tree.leaves(tree))  # noqa: E731
    assert largest(of_actor.convolutions) == 0 < largest(of_actor.heads)  # it does look through the critic
    assert largest(of_critic.convolutions) > 0
    after, metrics = update(state, jax.random.key(5))
    for old, new, aim in zip(*map(jax.tree.leaves, (state.critic, after.critic, wanted)), strict=True):
        assert np.allclose(new, aim, atol=1e-5) and not np.allclose(old, new, atol=1e-4)
    assert np.isclose(metrics["reward"], (batch.reward + 0.5).mean(), rtol=1e-5)


def test_targets_follow_at_their_own_rates_and_the_actor_at_every_second_update():
    _, state, _, update = made("pixels")
    assert int(state.k) == 2
    third, told = update(state, jax.random.key(3))
    for part in ("actor", "target", "log_alpha"):
        assert eqx.tree_equal(getattr(third, part), getattr(state, part))
    assert not eqx.tree_equal(third.critic, state.critic) and np.isnan(told["actor_objective"])
    fourth, told = update(third, jax.random.key(4))
    assert np.isfinite(told["actor_objective"]) and not eqx.tree_equal(fourth.actor, third.actor)
    assert float(fourth.log_alpha) != float(third.log_alpha)
    for part, rate in (("convolutions", 0.05), ("trunk", 0.05), ("heads", 0.01)):
        old, now, online = (getattr(x, part) for x in (third.target, fourth.target, fourth.critic))
        aim = jax.tree.map(lambda a, b, rate=rate: (1 - rate) * np.asarray(a) + rate * np.asarray(b), old, online)
        assert all(np.allclose(x, y, atol=1e-6) for x, y in zip(*map(jax.tree.leaves, (now, aim)), strict=True))
        assert not eqx.tree_equal(old, now)


def test_an_update_whose_kind_is_known_is_the_same_and_has_no_choice_in_it():
    agent, state, batch, update = made("state")
    assert int(state.k) == 2
    for k in (3, 4):  # the first leaves the actor alone, the second moves it
        known = lambda state, key, k=k: agent.at_phase(k).update(state, batch, lambda b: b.reward + 0.5, key)  # noqa: E731
        assert "cond[" in str(jax.make_jaxpr(agent._improve_actor)(state, batch.obs, jax.random.key(k)))
        assert "cond[" not in str(jax.make_jaxpr(known)(state, jax.random.key(k)))
        (aim, told), (found, said) = update(state, jax.random.key(k)), quick(known)(state, jax.random.key(k))
        assert np.isnan(said["actor_objective"]) == np.isnan(told["actor_objective"]) == (k == 3)
        assert all(np.allclose(x, y, atol=1e-6) for x, y in zip(*map(jax.tree.leaves, (aim, found)), strict=True))
        state = aim


def test_alpha_moves_towards_the_entropy_that_is_asked_for():
    agent = AGENTS["state"]
    slope = quick(jax.grad(agent.alpha_loss))
    assert slope(jnp.zeros(()), jnp.full(4, 3.0), 2) < 0 < slope(jnp.zeros(()), jnp.full(4, 1.0), 2)  # entropy -3, -1


def test_the_settings_are_those_of_the_release():
    agent, layout = RAD(), Layout()
    rates = (agent.discount, agent.learning_rate, agent.alpha, agent.alpha_rate, agent.polyak, agent.encoder_polyak)
    assert rates == (0.99, 2e-4, 0.1, 1e-3, 0.01, 0.05) and agent.delay == 2
    assert (layout.channels, layout.features, layout.width, layout.depth, layout.crop) == (32, 50, 1024, 2, 84)


@pytest.mark.parametrize("which", range(3))
def test_each_part_is_moved_by_adam_with_the_usual_betas(which):
    """Two steps against NumPy; the second tells the betas."""
    rate = (2e-4, 2e-4, 1e-3)[which]
    adam, slopes = RAD()._rates()[which], (np.array([0.3, -2.0]), np.array([-0.1, 4.0]))
    x, state = jnp.zeros(2), adam.init(jnp.zeros(2))
    m, v, wanted = np.zeros(2), np.zeros(2), np.zeros(2)
    for t, slope in enumerate(slopes, 1):
        change, state = adam.update(jnp.asarray(slope), state, x)
        x = x + change
        m, v = 0.9 * m + 0.1 * slope, 0.999 * v + 0.001 * slope**2
        wanted -= rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    assert np.allclose(x, wanted, rtol=1e-4)


def test_a_clock_is_no_terminal():
    agent, state, batch, _ = made("state")
    y = quick(lambda ends: agent.target(state, batch.reward, batch.next_obs, ends, jax.random.key(0)))
    assert np.array_equal(y(np.ones(B, bool)), batch.reward) and not np.allclose(
        y(batch.truncated & False), batch.reward
    )
    seen = {}
    paid = lambda b: seen.setdefault("batch", b).reward  # noqa: E731
    jax.eval_shape(lambda: agent.update(state, batch, paid, jax.random.key(0)))
    assert seen["batch"].truncated.any()  # they are there, and only `terminated` cuts: see the NumPy target


@pytest.mark.parametrize("lead", [(B,), (1, B), (2, 3)])
def test_the_reward_is_asked_for_whole_images_of_the_batch_as_it_came(lead):
    agent, state, batch, _ = made("pixels")
    shapes = []

    def reward_fn(b):
        shapes.append((b.obs.shape, b.next_obs.shape))
        return b.reward

    given = jax.tree.map(lambda x: x.reshape(*lead, *x.shape[1:]), batch)
    after, _ = jax.eval_shape(lambda s, k: agent.update(s, given, reward_fn, k), state, jax.random.key(0))
    assert shapes == [((*lead, 18, 17, 6),) * 2]
    assert jax.tree.structure(after) == jax.tree.structure(state)


def test_crops_are_parts_of_their_images_at_all_places():
    numbers = np.arange(18 * 17, dtype=np.int32).reshape(1, 18, 17, 1)
    cut = quick(lambda key: random_crop(jnp.broadcast_to(numbers, (400, 18, 17, 1)), 15, key))(jax.random.key(0))
    corners = np.asarray(cut)[:, 0, 0, 0]
    wanted = {17 * i + j for i in range(4) for j in range(3)}
    assert set(corners.tolist()) == wanted and np.bincount(corners)[list(wanted)].min() > 10
    assert all(np.array_equal(x[..., 0] - x[0, 0, 0], numbers[0, :15, :15, 0]) for x in np.asarray(cut)[:20])
    assert center_crop(numbers[0], 15)[0, 0, 0] == 17 + 1


@pytest.mark.parametrize("name", SPECS)
def test_it_acts_by_the_middle_of_the_image(name):
    agent, state, batch, _ = made(name)
    act = quick(lambda obs, key: agent.act(state, (), obs, (), key, explore=False)[1])
    mean, log_std = policy(state.actor, see(state.critic.convolutions, cropped(agent, batch.obs)[0]))
    assert np.allclose(act(batch.obs[0], jax.random.key(0)), np.tanh(mean), atol=1e-5)
    explore = quick(jax.vmap(lambda key: agent.act(state, (), batch.obs[0], (), key)[1]))
    drawn = np.arctanh(np.asarray(explore(jax.random.split(jax.random.key(1), 2000)), np.float64))
    assert np.allclose(drawn.mean(0), mean, atol=5 * np.exp(log_std) / np.sqrt(2000))
    assert np.allclose(drawn.std(0), np.exp(log_std), rtol=0.1)


def test_deviations_stay_within_their_bounds_and_far_actions_have_finite_probability():
    _, state, *_ = made("state")
    far = quick(lambda x: state.actor(x, jnp.float32))(jnp.array([[1e4, -1e4, 1e4], [0.0, 0.0, 0.0]]))
    assert (far.log_std >= LOG_STD[0]).all() and (far.log_std <= LOG_STD[1]).all()
    edge = TanhNormal(jnp.array([[40.0]]), jnp.ones((1, 1)), jnp.zeros((1, 1)))
    action, log_prob = quick(lambda key: edge.sample_and_log_prob(key))(jax.random.key(0))
    assert action[0, 0] == 1 and np.isfinite(log_prob).all()


def test_weights_start_orthogonal_and_biases_at_zero():
    critic, actor = quick(lambda key: networks(AGENTS["pixels"].layout, PIXELS, key))(jax.random.key(3))
    for weight in critic.convolutions.weights:  # type: ignore[union-attr]
        flat = np.asarray(weight).reshape(-1, weight.shape[-1])
        assert np.allclose(flat.T @ flat, 2 * np.eye(3), atol=1e-4)
    for layer in (actor.trunk.dense, *actor.head.layers, *critic.heads[0].layers):  # type: ignore[union-attr]
        w = np.asarray(layer.weight)
        gram = w.T @ w if w.shape[0] >= w.shape[1] else w @ w.T
        assert np.allclose(gram, np.eye(len(gram)), atol=1e-4) and not layer.bias.any()
    assert not np.allclose(critic.heads[0].layers[0].weight, critic.heads[1].layers[0].weight)
    released = jax.eval_shape(
        lambda key: networks(Layout(), Spec(Space((100, 100, 9), jnp.uint8), ACTIONS), key), jax.random.key(0)
    )
    assert released[0].trunk.dense.weight.shape == (32 * 35 * 35, 50)
    assert [x.weight.shape for x in released[1].head.layers] == [(50, 1024), (1024, 1024), (1024, 4)]


@pytest.mark.parametrize(("crop", "pixels"), [(19, 9), (21, 16)])  # blocks that hang over the edge; none that do
def test_on_a_gpu_features_are_blocks_and_all_that_is_made_of_them_is_the_same(crop, pixels, monkeypatch):
    spec, found = PIXELS._replace(obs=Space((21, 21, 6), jnp.uint8)), {}
    batch, agent = batch_of(spec), RAD(Layout(**SMALL | {"crop": crop, "channels": 2}))
    obs, key = batch.obs[:, :crop, :crop], jax.random.key(0)

    def slopes(critic, actor):
        of_actor = jax.value_and_grad(agent.actor_loss, has_aux=True)(actor, critic, obs, jnp.zeros(()), key)
        return jax.value_and_grad(agent.critic_loss, has_aux=True)(critic, obs, batch.action, batch.reward), of_actor

    for backend in ("cpu", "gpu"):
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        nets = quick(lambda key: networks(agent.layout, spec, key))(key)
        found[backend] = nets[0].see(obs, jnp.float32).shape[-1], nets, quick(lambda nets: slopes(*nets))(nets)
    assert (found["cpu"][0], found["gpu"][0]) == (2 * pixels, 2 * 16)
    for one, other in zip(*(jax.tree.leaves(found[name][1:]) for name in found), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


HALF = RAD(Layout(precision="bfloat16", **SMALL), learning_rate=1e-2, alpha_rate=1e-2)


def test_an_encoder_in_half_precision_has_nearly_the_same_loss_and_slopes():
    agent, state, batch, _ = made("pixels")
    obs = cropped(agent, batch.obs)
    slopes = lambda x: jax.value_and_grad(x.critic_loss, has_aux=True)(state.critic, obs, batch.action, batch.reward)  # noqa: E731
    ((one, _), exact), ((other, _), near) = quick(lambda: (slopes(agent), slopes(HALF)))()
    assert float(one) != float(other) and np.isclose(one, other, rtol=0.02)
    for a, b in zip(*map(jax.tree.leaves, (exact, near)), strict=True):
        assert b.dtype == jnp.float32 and np.linalg.norm(a - b) < 0.15 * np.linalg.norm(a) + 1e-6
    x, weight = obs.reshape(B, -1)[:, :40].astype(np.float32), np.asarray(state.critic.heads[0].layers[0].weight)[:, :1]
    weight = np.resize(weight, (40, 3))
    product = quick(lambda x, w: rounded_product(x.astype(jnp.bfloat16), w))(x, weight)
    rounded = np.asarray(jnp.asarray(weight, jnp.bfloat16), np.float64)
    assert np.allclose(product, x @ rounded, rtol=1e-5)  # bytes are exact, and the sum is not rounded once more


def test_what_is_seen_is_learnt_as_well_in_half_precision():
    """What pays depends on which side of an image is bright, so that the loss falls only as far as that is seen."""
    left = np.arange(32) % 2 == 0
    batch, lit = batch_of(PIXELS, 32), (np.arange(17) < 9) == left[:, None]
    batch = batch._replace(obs=np.where(lit[:, None, :, None], 200, batch.obs // 8).astype(np.uint8))

    def learnt(precision: str) -> float:
        layout = Layout(precision=precision, **{**SMALL, "width": 16, "features": 8})
        agent = RAD(layout, learning_rate=3e-3, alpha=1e-3, discount=0.0)
        update = quick(lambda state, key: agent.update(state, batch, lambda b: jnp.where(left, 1.0, -1.0), key))
        state, losses = quick(lambda key: agent.init(key, PIXELS))(jax.random.key(0)), []
        for key in jax.random.split(jax.random.key(1), 60):
            state, told = update(state, key)
            losses.append(float(told["critic_loss"]))
        assert losses[0] > 1.5, "2 for values that do not look"
        return float(np.mean(losses[-5:]))

    full, half = learnt("float32"), learnt("bfloat16")
    assert full < 0.05 and half < full + 0.02


def test_it_finds_the_action_that_pays():
    """One step, paid by how near the action is to (0.5, -0.3): the rest is for the critic to find out."""
    agent = RAD(Layout(encoder="state", width=16), learning_rate=5e-3, delay=1, discount=0.0, polyak=0.1)
    batch = batch_of(STATE, 256)
    paid = lambda b: -((b.action - jnp.array([0.5, -0.3])) ** 2).sum(-1)  # noqa: E731

    def trained(key):
        k_init, k_train = jax.random.split(key)
        update = lambda state, key: (agent.update(state, batch, paid, key)[0], None)  # noqa: E731
        state = jax.lax.scan(update, agent.init(k_init, STATE), jax.random.split(k_train, 300))[0]
        return jax.vmap(lambda obs: agent.act(state, (), obs, (), key, explore=False)[1])(batch.obs)

    assert np.allclose(quick(trained)(jax.random.key(0)).mean(0), [0.5, -0.3], atol=0.15)


@pytest.mark.parametrize(
    ("layout", "spec", "match"),
    [
        ({}, PIXELS._replace(action=Space((), jnp.int32, 4)), "discrete ones"),
        ({}, PIXELS._replace(action=Space((2,), jnp.float32, None, -2.0, 2.0)), r"within \[-1, 1\]"),
        ({"crop": 18}, PIXELS, "crop=18"),
        ({}, STATE, "encoder='state' for vectors"),
        ({"encoder": "state"}, PIXELS, "one vector of reals"),
    ],
)
def test_what_it_cannot_see_or_do_is_refused(layout, spec, match):
    with pytest.raises(ValueError, match=match):
        RAD(Layout(**{**SMALL, **layout})).init(jax.random.key(0), spec)


def test_settings_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match="encoder='pixel'"):
        Layout(encoder="pixel")
    with pytest.raises(ValueError, match="at least 1"):
        Layout(width=0)
    with pytest.raises(ValueError, match="at least 1 as delay, got 0"):
        RAD(delay=0)
