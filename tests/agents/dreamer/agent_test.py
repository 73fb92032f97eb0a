"""Dreamer: its formulas against NumPy, where its gradients go, and that it fits what it is shown."""

import dataclasses
import itertools
import math
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.settings import leaves_are_arrays, quick, rnd, shapes
from jax.tree_util import Partial

from made.agents.dreamer.agent import Dreamer, DreamerState
from made.agents.dreamer.network import Actor, Decoder, Encoder, Layout, Leaf, as_vectors, leaf_of, leaves_of
from made.agents.dreamer.world_model import Latent, imagination_starts, open_loop
from made.bonuses import NovelD
from made.core import Space, Spec, Transition, trees

TINY = Layout(stoch=3, deter=6, hidden=6, units=8, depth=2, reward=1, ends=1, value=1, actor=1)
VECTOR = Spec(Space((2,), jnp.float32), Space((2,), jnp.float32, None, -1.0, 1.0), horizon=5)
PIXELS = Spec(Space((64, 64, 3), jnp.uint8), Space((1,), jnp.float32, None, -1.0, 1.0))


def paid(batch: Transition):
    return batch.reward


def equal(one, other) -> bool:
    pairs = zip(*(jax.tree.leaves(x) for x in (one, other)), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def walks(steps: int = 6, n: int = 3, ends: tuple = ()) -> Transition:
    """SequenceBuffer of a point in the plane; `ends` are (t, b, terminated) where an episode ended."""
    rng = np.random.default_rng(0)
    real = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    obs, after, over = real(steps, n, 2), real(steps, n, 2), np.zeros((2, steps, n), bool)
    for t, b, terminated in ends:
        over[int(not terminated), t, b] = True
    follows = ~over.any(0)[:-1]
    obs[1:][follows] = after[:-1][follows]
    return Transition(obs, np.tanh(real(steps, n, 2)), real(steps, n), after, over[0], over[1])


def begun(agent: Dreamer, spec: Spec):
    """A state as `init` gives, with parameters drawn by NumPy, which need not be compiled."""
    rng = np.random.default_rng(0)
    state = jax.eval_shape(lambda key: agent.init(key, spec), jax.random.key(0))
    draw = lambda x: jnp.asarray(rng.normal(size=x.shape) / math.sqrt(sum(x.shape[-2:])), jnp.float32)  # noqa: E731
    networks = [jax.tree.map(draw, part) for part in (state.world, state.actor, state.value)]
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (state.optimisers, state.k))
    bonus, latents = agent.curiosity, spec._replace(obs=Space((agent.layout.features,), jnp.float32))
    return DreamerState(*networks, blank[0], () if bonus is None else bonus.init(jax.random.key(1), latents), blank[1])


@pytest.fixture(scope="module")
def point():
    """(agent, its state, sequences with two episodes that end within), in the plane."""
    agent = Dreamer(TINY, horizon=4, ends=True)
    state = begun(agent, VECTOR)
    return agent, state, walks(ends=((2, 0, True), (2, 1, False), (2, 2, False), (5, 2, True)))


def noiseless(fn):
    """The function compiled, with states that are drawn without noise."""
    program = quick(fn)

    def call(*given):
        with pytest.MonkeyPatch.context() as patch:  # it is traced in its first call
            patch.setattr(jax.random, "normal", lambda key, shape: jnp.zeros(shape))
            return program(*given)

    return call


@pytest.fixture(scope="module")
def slope(point):
    """(world, nats that are free) -> (loss, (watched, parts)), gradient, on those sequences."""
    agent, _, batch = point

    def loss(world, free):
        return dataclasses.replace(agent, free_nats=free).model_loss(world, batch, batch.reward, jax.random.key(0))

    return noiseless(jax.value_and_grad(loss, has_aux=True))


# Formulas


def test_the_amount_of_noise_halves_down_to_its_least():
    agent = Dreamer(noise=0.4, noise_half=100.0, noise_least=0.05)
    assert np.allclose([agent.amount(jnp.int32(k)) for k in (0, 100, 200, 9000)], [0.4, 0.2, 0.1, 0.05])
    assert np.isclose(Dreamer().amount(jnp.int32(10**6)), 0.3)


def test_a_new_actor_is_wide_and_its_mean_bounded():
    @quick
    def tried(key):
        k_init, k_features = jax.random.split(key)
        actor = Actor(Layout(units=16, actor=1), VECTOR.action, key=k_init)
        return actor(100 * jax.random.normal(k_features, (50, 230))), actor(jnp.zeros((1, 230)))

    far, new = tried(jax.random.key(0))
    assert far.mean.shape == (50, 2) and 4.5 < np.abs(far.mean).max() <= 5.0 and np.allclose(new.std, 5.0, atol=1e-3)


def test_likelihoods_of_every_kind_of_leaf():
    rng = np.random.default_rng(0)
    normal = lambda x, mean, std: (-0.5 * ((x - mean) / std) ** 2 - np.log(std * np.sqrt(2 * np.pi))).sum()  # noqa: E731
    pixels = rng.integers(0, 256, (2, 64, 64, 3)).astype(np.uint8)
    answer = rng.normal(size=pixels.shape)
    found = Leaf((64, 64, 3), "pixels").score(answer, pixels, 0.1)
    assert np.allclose(found, [normal(x / 255 - 0.5, y, 1.0) for x, y in zip(pixels, answer, strict=True)], rtol=1e-4)
    numbers, answer = rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
    found = Leaf((3,), "numbers").score(answer, numbers, 0.2)
    assert np.allclose(found, [normal(x, y, 0.2) for x, y in zip(numbers, answer, strict=True)], rtol=1e-4)
    grid, answer = rng.integers(0, 4, (2, 3, 3, 1)), rng.normal(size=(2, 36))
    leaf = Leaf((3, 3, 1), "values", 4)
    logits = answer.reshape(2, 9, 4)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    wanted = np.take_along_axis(log_p, grid.reshape(2, 9, 1), -1).sum((1, 2))
    assert np.allclose(leaf.score(answer, grid, 0.1), wanted, rtol=1e-4)
    assert np.allclose(leaf.best(answer), logits.argmax(-1).reshape(2, 3, 3, 1) / 3)


def test_a_leaf_is_modelled_by_what_it_is():
    kinds = {
        "pixels": Space((64, 64, 3), jnp.uint8),
        "bytes": Space((7, 7, 1), jnp.uint8),
        "numbers": Space((4,), jnp.float32),
        "values": Space((7, 7, 3), jnp.uint8, high=10.0),
    }
    assert {name: leaf_of(space).kind for name, space in kinds.items()} == {name: name for name in kinds}
    assert leaf_of(Space((), jnp.int32, 5)) == Leaf((), "values", 5) and leaf_of(kinds["values"]).n == 11
    with pytest.raises(ValueError, match=r"\(84, 84, 3\): render at size=64"):
        leaf_of(Space((84, 84, 3), jnp.uint8))
    both = {"image": kinds["pixels"], "hash": Space((2,), jnp.uint32), "place": kinds["numbers"]}
    assert [leaf.kind for leaf in leaves_of(both, "")] == ["pixels", "numbers"]
    encoder, decoder = jax.eval_shape(
        lambda key: (Encoder(both, Layout(), key=key), Decoder(both, Layout(), key=key)), jax.random.key(0)
    )
    assert [layer.weight.shape for layer in encoder.convolutions[0]] == [
        (4, 4, 3, 32),
        (4, 4, 32, 64),
        (4, 4, 64, 128),
        (4, 4, 128, 256),
    ]
    obs = {name: jax.ShapeDtypeStruct((2, 5, *space.shape), space.dtype) for name, space in both.items()}
    assert jax.eval_shape(lambda e, x: e(x), encoder, obs).shape == (2, 5, encoder.size) == (2, 5, 1024 + 400)
    answers = jax.eval_shape(lambda d, x: d(x), decoder, jax.ShapeDtypeStruct((2, 5, 230), jnp.float32))
    assert [x.shape for x in answers] == [(2, 5, 64, 64, 3), (2, 5, 4)]


def test_pictures_are_taken_in_and_drawn_as_by_plain_loops():
    """Four convolutions, each with a relu, and back by four transposed ones, the last without: it draws dark pixels."""
    layout = dataclasses.replace(TINY, depth=1)
    world, rng = begun(Dreamer(layout), PIXELS).world, np.random.default_rng(1)
    image, features = rng.integers(0, 256, (64, 64, 3)).astype(np.uint8), rng.normal(size=9).astype(np.float32)
    seen, (drawn,) = quick(lambda world: (world.encoder(image), world.decoder(features)))(world)
    (down,), (up,), (start,) = world.encoder.convolutions, world.decoder.convolutions, world.decoder.starts
    x = image / 255 - 0.5
    for layer in down:
        windows = np.lib.stride_tricks.sliding_window_view(x, (4, 4), (0, 1))[::2, ::2]
        x = np.maximum(np.einsum("pqckl,klco->pqo", windows, layer.weight) + layer.bias, 0)
    assert np.allclose(seen, x.reshape(-1), rtol=1e-4, atol=1e-4) and (x > 0.1).any() and (x == 0).any()
    x = (features @ start.weight + start.bias)[None, None]
    for i, layer in enumerate(up):
        kernel, side = np.asarray(layer.weight)[::-1, ::-1], x.shape[0]
        k = kernel.shape[0]
        y = np.tile(np.asarray(layer.bias), (2 * side + k - 2, 2 * side + k - 2, 1))
        for row, column in itertools.product(range(side), repeat=2):
            y[2 * row : 2 * row + k, 2 * column : 2 * column + k] += x[row, column] @ kernel
        x = y if i == 3 else np.maximum(y, 0)
    assert drawn.shape == (64, 64, 3) and np.allclose(drawn, x, rtol=1e-4, atol=1e-4)
    assert x.min() < -0.1 and x.max() > 0.1


# The world model on windows that hold the ends of episodes


def test_a_window_is_worth_the_episodes_it_holds(point, slope):
    """Each episode judged by itself gives the same sums, observations after resets included: all are of three steps."""
    agent, state, batch = point
    judge = noiseless(lambda world, batch: agent.model_loss(world, batch, batch.reward, jax.random.key(0))[1][1])
    cut = lambda x: np.asarray(x).reshape(2, 3, 3, *x.shape[2:])  # noqa: E731
    apart = [jax.tree.map(lambda x, i=i, b=b: cut(x)[i, :, b : b + 1], batch) for i in range(2) for b in range(3)]
    alone = [judge(state.world, episode) for episode in apart]
    _, (_, parts) = slope(state.world, 3.0)[0]
    for name in ("kl", "image", "reward", "ends"):
        assert np.isclose(parts[f"model/{name}"], np.mean([x[f"model/{name}"] for x in alone]), rtol=1e-4), name


def test_imagination_sets_out_from_every_state_but_those_an_episode_ended_in(point, slope):
    _, state, batch = point
    posteriors = slope(state.world, 3.0)[0][1][0]
    states, live = imagination_starts(posteriors, jnp.asarray(batch.terminated))
    starts, arrivals = posteriors.starts.latent.deter, posteriors.arrivals.latent.deter
    found = np.asarray(states.deter).reshape(7, 3, 6)
    assert np.array_equal(found[0], starts[0])
    for t in range(6):
        for b in range(3):
            ended = t == 2
            assert np.array_equal(found[t + 1, b], starts[t + 1, b] if ended else arrivals[t, b])
    wanted = np.ones((7, 3), bool)
    wanted[6, 2] = False  # a task ended with the window: there is no next episode to set out from
    assert np.array_equal(np.asarray(live).reshape(7, 3), wanted)


def test_nats_below_the_free_ones_teach_nothing(point, slope):
    _, state, _ = point
    (loss, (_, parts)), free = slope(state.world, 1e6)
    (tight, _), bound = slope(state.world, 0.0)
    nothing = lambda tree: all(not np.any(x) for x in jax.tree.leaves(tree))  # noqa: E731
    assert nothing(free.rssm.prior) and not nothing(bound.rssm.prior)  # only the divergence teaches the prior
    assert not nothing(free.encoder) and not nothing(free.reward_head) and not nothing(free.ends_head)
    rest = -parts["model/image"] - parts["model/reward"] - 10 * parts["model/ends"]
    assert np.isclose(loss, 1e6 + rest) and np.isclose(tight, parts["model/kl"] + rest, rtol=1e-4)


# The actor


def test_the_actor_climbs_through_the_imagined_dynamics(point):
    """Its gradient is that of the loss, by differences, and is nothing where actions change nothing.

    With a bonus in imagination too, which is climbed in the same way.
    """
    agent, bonus = dataclasses.replace(point[0], horizon=2, curiosity=rnd()), rnd()
    latents = VECTOR._replace(obs=Space((TINY.features,), jnp.float32))
    state = point[1]._replace(curiosity=bonus.init(jax.random.key(1), latents))
    rng, live = np.random.default_rng(1), jnp.ones(40, bool).at[:5].set(False)
    start = Latent(*(jnp.asarray(rng.normal(size=(40, n)), jnp.float32) for n in (6, 3)))

    def loss(actor, state, coef):
        paid = dataclasses.replace(agent, curiosity_coef=coef)
        return paid.actor_loss(actor, state, start, live, jax.random.key(3))

    # What an action does to later ones is left out by design: an actor that looks at nothing has nothing left out.
    blind = eqx.tree_at(lambda a: a.net.layers[0].weight, state.actor, replace_fn=jnp.zeros_like)
    climb, slopes = quick(jax.value_and_grad(loss, has_aux=True)), []
    for coef in (0.0, 1.0):
        _, gradient = climb(blind, state, coef)
        norm = math.sqrt(sum(float((x**2).sum()) for x in jax.tree.leaves(gradient)))
        steps = [jax.tree.map(lambda x, g, by=by / norm: x + by * g, blind, gradient) for by in (0.005, -0.005)]
        above, below = (float(climb(actor, state, coef)[0][0]) for actor in steps)
        assert norm > 1e-3 and np.isclose((above - below) / 0.01, norm, rtol=0.02), coef
        slopes.append(np.concatenate([np.ravel(x) for x in jax.tree.leaves(gradient)]))
    assert np.abs(slopes[1] - slopes[0]).max() > 0.1 * np.abs(slopes[0]).max(), "the bonus has a slope of its own"
    deaf = eqx.tree_at(lambda w: w.rssm.inputs.weight, state.world, replace_fn=lambda x: x.at[3:].set(0.0))
    assert not any(np.any(x) for x in jax.tree.leaves(climb(blind, state._replace(world=deaf), 1.0)[1]))


def test_what_is_imagined_counts_by_its_discount_and_likelihood_ratios_need_no_path(point):
    """Where the task is over nothing counts. With `reinforce` the loss is - mean w log pi(a) (R - V)."""
    agent, state, _ = point
    rng, live, key = np.random.default_rng(1), jnp.ones(40, bool).at[:5].set(False), jax.random.key(3)
    start = Latent(*(jnp.asarray(rng.normal(size=(40, n)), jnp.float32) for n in (6, 3)))

    @quick
    def tried(state):
        def policy(features, key):
            of = state.actor(features)
            action = of.sample(jax.random.split(key)[0])
            return action, of.log_prob(action)

        likely = dataclasses.replace(agent, reinforce=1.0)
        loss, (dreamt, _) = likely.actor_loss(state.actor, state, start, live, key)
        scores = state.world.rssm.imagine(start, Partial(policy), agent.horizon, key)[1]
        before = jnp.concatenate([start.features[None], dreamt.features[:-1]])
        value = state.value(before, jnp.float32)[..., 0]
        return loss, dreamt, state.world.discounts(dreamt.features, 0.9), scores, value

    loss, dreamt, gone, scores, value = jax.tree.map(np.asarray, tried(state))
    weights = dreamt.weights
    assert weights.shape == (3, 40) and not weights[:, :5].any() and (weights[0, 5:] == 1).all()
    assert np.allclose(weights[2, 5:], (gone[0] * gone[1])[5:], atol=1e-5)
    assert np.isclose(loss, -(weights * scores[:-1] * (dreamt.returns - value)).mean(), rtol=1e-3)


# The whole


def test_each_part_steps_by_adam_after_its_gradient_was_cut(point):
    """Two steps against NumPy: a gradient of norm 10,000 before one of 50, ordinary ones, some near epsilon."""
    agent, state, _ = point
    rng, rates = np.random.default_rng(2), (6e-4, 8e-5, 8e-5)
    state = jax.tree.map(jnp.zeros_like, state)  # so that parameters are what was added to them
    parts, moved, wanted = ("world", "actor", "value"), quick(agent._moved), {}
    shaped = {name: jax.tree.map(lambda x: rng.normal(size=x.shape), getattr(state, name)) for name in parts}
    lengths = {name: math.sqrt(sum((x**2).sum() for x in jax.tree.leaves(shaped[name]))) for name in parts}
    for t, norms in enumerate(((1e4, 3.0, 1e-6), (50.0, 2.0, 2e-6)), 1):
        gradients = []
        for name, norm, rate in zip(parts, norms, rates, strict=True):
            turned = jax.tree.map(lambda x, t=t: np.roll(x, t - 1), shaped[name])  # another direction at each step
            gradients.append(jax.tree.map(lambda x, by=norm / lengths[name]: (by * x).astype(np.float32), turned))
            cut = np.concatenate([np.ravel(x) for x in jax.tree.leaves(gradients[-1])]) * min(1.0, 100 / norm)
            mean, square, at = wanted.get(name, (0.0, 0.0, 0.0))
            mean, square = 0.9 * mean + 0.1 * cut, 0.999 * square + 0.001 * cut**2
            at = at - rate * (mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.999**t)) + 1e-7)
            wanted[name] = mean, square, at
        state, told = moved(state, tuple(gradients))
        assert np.allclose([told[f"{name}_gradient"] for name in ("model", "actor", "value")], norms, rtol=1e-4)
        for name in parts:
            found = np.concatenate([np.ravel(x) for x in jax.tree.leaves(getattr(state, name))])
            assert np.allclose(found, wanted[name][2], rtol=2e-3, atol=1e-8), (name, t)
    assert int(state.k) == 2


def slides(steps: int = 8, n: int = 6) -> Transition:
    """A bright square on 12 x 12 cells that continuous actions push about; it is paid for being on the right."""
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (steps, n, 1)).astype(np.float32)
    places = [rng.uniform(2, 7, n)]
    for action in actions:
        places.append(np.clip(places[-1] + 3 * action[:, 0], 0, 9))
    at, columns = np.round(np.array(places)), np.arange(12)
    lit = (columns >= at[..., None]) & (columns < at[..., None] + 3)
    image = np.where(lit[:, :, None, :, None] & (np.abs(columns - 5) < 2)[:, None, None], 230, 40)
    image = np.broadcast_to(image, (*at.shape, 12, 12, 3)).astype(np.uint8)
    reward, off = (at[1:] / 9).astype(np.float32), np.zeros((steps, n), bool)
    return Transition(image[:-1], actions, reward, image[1:], off, off)


@pytest.fixture(scope="module")
def fitted():
    """(state, sequences, metrics [K]) after 200 updates on six sequences of small images."""
    layout = Layout(stoch=8, deter=24, hidden=24, units=24, reward=1, value=1, actor=1, spread=0.3)
    agent, batch = Dreamer(layout, horizon=2, model_rate=5e-3, free_nats=0.0), slides()
    spec = PIXELS._replace(obs=Space((12, 12, 3), jnp.uint8))

    def fit(key):
        k_init, k_fit = jax.random.split(key)
        step = lambda state, key: agent.update(state, batch, lambda b: 2 * b.reward, key)  # noqa: E731
        return jax.lax.scan(step, agent.init(k_init, spec), jax.random.split(k_fit, 200))

    state, metrics = quick(fit)(jax.random.key(0))
    return state, batch, jax.tree.map(np.asarray, metrics)


def test_a_few_sequences_are_learnt_by_heart(fitted):
    """The squared errors behind the likelihoods, of an image and of what `reward_fn` paid, twice the reward."""
    constant = lambda size, std: -size * math.log(std * math.sqrt(2 * math.pi))  # noqa: E731
    for name, of_nothing in (("image", constant(12 * 12 * 3, 0.3)), ("reward", constant(1, 1.0))):
        errors = of_nothing - fitted[2][f"model/{name}"]
        assert errors.min() > 0 and errors[-20:].mean() < 0.1 * errors[:3].mean(), name


def videos(world, batch: Transition) -> list[np.ndarray]:
    """(truth, model, difference), each [B, T + 1, h, w, 3] as shares, of every sequence after five observations."""
    video = quick(lambda world, batch, key: open_loop(world, batch, key, 5))
    turned = [jax.tree.map(lambda x, i=i: np.roll(x, -i, 1), batch) for i in range(batch.reward.shape[1])]
    told = [np.asarray(video(world, one, jax.random.key(i))) for i, one in enumerate(turned)]  # of the first of each
    assert told[0].dtype == np.uint8
    return np.split(np.stack(told) / 255.0, 3, 3)


def errors(truth, model) -> tuple[float, float]:
    """Squared errors of the first five pictures and of those foretold, where the fifth shown on and on has 1."""
    squares = lambda a, b: ((a - b) ** 2).mean()  # noqa: E731
    stays = squares(truth[:, 5:], truth[:, 4:5])
    return squares(model[:, :5], truth[:, :5]) / stays, squares(model[:, 5:], truth[:, 5:]) / stays


def test_it_sees_coming_what_it_is_not_shown(fitted):
    """After five observations, four more from the actions alone: nearer to the truth than the fifth again is."""
    state, batch, _ = fitted
    truth, model, error = videos(state.world, batch)
    assert truth.shape == (6, 9, 12, 12, 3)
    shown = np.concatenate([batch.obs[:1], batch.next_obs])
    assert np.array_equal(np.round(255 * truth), np.moveaxis(shown, 1, 0))
    assert np.abs(error - (model - truth + 1) / 2).mean() < 0.02  # but for what is cut off at black and white
    seen, ahead = errors(truth, model)
    assert ahead < 0.6 and seen < 0.2
    with pytest.raises(ValueError, match="context=9"):
        open_loop(state.world, batch, jax.random.key(0), 9)


def test_convolutions_learn_pictures_by_heart_and_what_comes_next():
    """The same squares on 64 x 64 pixels, three sequences. Not one loop of the compiler's, which convolves slowly."""
    batch, edge = slides(n=3), ((0, 0), (0, 0), (2, 2), (2, 2), (0, 0))
    large = lambda x: np.pad(x.repeat(5, 2).repeat(5, 3), edge, constant_values=40)  # noqa: E731
    batch = batch._replace(obs=large(batch.obs), next_obs=large(batch.next_obs))
    layout = Layout(stoch=8, deter=24, hidden=24, units=24, depth=8, reward=1, value=1, actor=1)
    agent = Dreamer(layout, horizon=2, model_rate=5e-3, free_nats=0.0)
    state = quick(lambda key: agent.init(key, PIXELS))(jax.random.key(0))
    update = quick(lambda state, key: agent.update(state, batch, paid, key))
    likely = []
    for key in jax.random.split(jax.random.key(1), 120):
        state, metrics = update(state, key)
        likely.append(metrics["model/image"])
    squares = -64 * 64 * 3 * math.log(math.sqrt(2 * math.pi)) - np.array(likely)
    assert squares.min() > 0 and squares[-10:].mean() < 0.1 * squares[:3].mean()
    seen, ahead = errors(*videos(state.world, batch)[:2])
    assert seen < 0.4 and ahead < 0.8


def test_half_precision_says_nearly_the_same_of_pixels():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, 1, 64, 64, 3)).astype(np.uint8)
    zeros, off = np.zeros((1, 1), np.float32), np.zeros((1, 1), bool)
    batch = Transition(images[:1], zeros[..., None], zeros, images[1:], off, off)
    told = []
    for precision in ("float32", "bfloat16"):
        agent = Dreamer(dataclasses.replace(TINY, precision=precision))
        world = begun(agent, PIXELS).world
        assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(world))
        judge = quick(lambda world, agent=agent: agent.model_loss(world, batch, zeros, jax.random.key(1))[1][1])
        told.append(jax.tree.map(float, judge(world)))
        drawn = str(
            jax.make_jaxpr(lambda world: world.decoder(world.rssm.begin(world.encoder(images), 0.0).latent.features))(
                world
            )
        )
        kinds = set(re.findall(r":(\w+)\[[\d,]+\] = conv_general_dilated", drawn))
        assert kinds == {"f32" if precision == "float32" else "bf16"}
    assert told[0] != told[1] and told[0].keys() == told[1].keys()
    assert all(np.isclose(x, told[1][name], rtol=0.02) for name, x in told[0].items())


@pytest.fixture(scope="module")
def grid():
    """(agent, spec, state, sequences, update): symbols, a hash that is not looked at, episodes that end.

    A bonus on latent states is paid beside. The numbers of the agent are arguments of the compiled update.
    """
    rng, ends = np.random.default_rng(0), np.zeros((2, 4, 3), bool)
    obs = {"image": rng.integers(0, 11, (8, 3, 3, 3, 3)).astype(np.uint8), "hash": np.zeros((8, 3, 2), np.uint32)}
    ends[0, 1, 0], ends[1, 2, 1] = True, True
    first, second = ({name: x[part] for name, x in obs.items()} for part in (slice(4), slice(4, 8)))
    batch = Transition(first, rng.integers(0, 7, (4, 3)), rng.normal(size=(4, 3)).astype(np.float32), second, *ends)
    spaces = {"image": Space((3, 3, 3), jnp.uint8, high=10.0), "hash": Space((2,), jnp.uint32)}
    spec = Spec(spaces, Space((), jnp.int32, 7))
    agent = Dreamer(TINY, horizon=3, ends=True, entropy=1e-3, free_nats=0.0, curiosity=rnd())
    update = quick(lambda agent, state: agent.update(state, batch, paid, jax.random.key(1)))

    def updated(state, **numbers):
        changed = dataclasses.replace(agent, **numbers)
        return update(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), changed), state)

    return agent, spec, begun(agent, spec), batch, updated


def test_an_update_keeps_the_kind_of_its_state_and_a_bonus_pays_in_imagination(grid):
    _, _, state, batch, updated = grid
    after, metrics = updated(state)
    assert shapes(after) == shapes(state) and leaves_are_arrays(after) and int(after.k) == 1
    assert all(np.isfinite(x) and x.shape == () for x in metrics.values())
    assert np.isclose(metrics["reward"], batch.reward.mean()) and not equal(after.curiosity, state.curiosity)
    unpaid = updated(state, curiosity_coef=0.0)[1]
    assert float(metrics["dream/reward"]) > float(unpaid["dream/reward"]) + 0.01
    assert np.isclose(metrics["model_loss"], unpaid["model_loss"])


def test_each_part_learns_by_its_own_loss_alone(grid):
    _, _, state, _, updated = grid
    whole, parts = updated(state)[0], {"model": "world", "actor": "actor", "value": "value"}
    for name, own in parts.items():
        after = updated(state, **{f"{name}_rate": 0.0})[0]
        for part in parts.values():
            assert equal(getattr(after, part), getattr(state if part == own else whole, part)), (name, part)
        pairs = zip(*(jax.tree.leaves(getattr(x, own)) for x in (state, whole)), strict=True)
        assert all(not np.array_equal(a, b) for a, b in pairs), name


def test_it_acts_with_discrete_actions_and_carries_on_with_what_it_did(grid):
    agent, spec, state, batch, _ = grid
    obs, first = trees.index(trees.index(batch.obs, 0), 0), agent.carry(spec)
    assert all(not np.any(x) for x in jax.tree.leaves(first))

    @quick
    def act(state, keys):
        one = lambda key, explore: agent.act(state, first, obs, (), key, explore=explore)[:2]  # noqa: E731
        begun = state.world.rssm.begin(state.world.encoder(obs), jnp.zeros(3))
        return *(jax.vmap(lambda key, x=x: one(key, x))(keys) for x in (True, False)), begun.latent.deter

    (carry, drawn), (_, best), deter = act(state, jax.random.split(jax.random.key(2), 60))
    assert shapes(trees.index(carry, 0)) == shapes(first) and drawn.dtype == best.dtype == jnp.int32
    assert len(set(drawn.tolist())) > len(set(best.tolist())) and len(set(drawn.tolist())) > 3 and int(drawn.max()) < 7
    assert np.allclose(carry[1], jax.nn.one_hot(drawn, 7), atol=1e-6) and np.allclose(carry[0].deter, deter, atol=1e-5)


def test_acting_with_vectors_stays_within_bounds_and_without_noise_at_the_mode(point):
    agent, state, batch = point
    narrowed = lambda x: x.at[2:].add(-7.0) if x.shape == (4,) else 0.1 * x  # noqa: E731
    state, obs = state._replace(actor=jax.tree.map(narrowed, state.actor)), jnp.asarray(batch.obs[0, 0])

    def act(noise, key, explore: bool):
        of = dataclasses.replace(agent, noise=noise)
        return of.act(state, of.carry(VECTOR), obs, (), key, explore=explore)[1]

    keys = jax.random.split(jax.random.key(0), 40)
    both = quick(lambda noise: [jax.vmap(lambda key, x=x: act(noise, key, x))(keys) for x in (True, False)])
    (noisy, best), (quiet, _) = both(0.3), both(0.0)
    assert noisy.shape == (40, 2) and float(jnp.abs(noisy).max()) <= 1.0
    spreads = [np.std(x, 0).mean() for x in (noisy, quiet, best)]
    assert spreads[0] > 1.5 * spreads[1] > 1.5 * spreads[2]
    assert np.array_equal(as_vectors(jnp.array([2, 0]), Space((), jnp.int32, 3)), [[0, 0, 1], [1, 0, 0]])


def test_what_cannot_be_is_refused():
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="horizon >= 2"):
        Dreamer(horizon=1)
    with pytest.raises(ValueError, match=r"vectors within \[-1, 1\]"):
        Dreamer(TINY).init(key, VECTOR._replace(action=Space((2,), jnp.float32, None, -2.0, 2.0)))
    with pytest.raises(ValueError, match="not shown goals"):
        Dreamer(TINY).init(key, VECTOR._replace(goal=Space((), jnp.int32, 4)))
    with pytest.raises(ValueError, match="NovelD reads"):
        Dreamer(TINY, curiosity=NovelD(rnd()))
    with pytest.raises(ValueError, match="as units, got 0"):
        Layout(units=0)
    with pytest.raises(ValueError, match="'float16'"):
        Layout(precision="float16")
    with pytest.raises(ValueError, match="as spread, got 0"):
        Layout(spread=0)


V1 = {"horizon": 15, "discount": 0.99, "lam": 0.95, "free_nats": 3.0, "kl_scale": 1.0, "clip": 100.0, "noise": 0.3}
V1 |= {"model_rate": 6e-4, "actor_rate": 8e-5, "value_rate": 8e-5, "noise_half": 0.0, "noise_least": 0.0}
V1 |= {"ends": False, "ends_scale": 10.0}
NOT_OF_V1 = {"entropy": 0.0, "reinforce": 0.0, "curiosity": None, "curiosity_coef": 1.0}
V1_LAYOUT = {"stoch": 30, "deter": 200, "hidden": 200, "units": 400, "depth": 32, "reward": 2, "ends": 3, "value": 3}
V1_LAYOUT |= {"actor": 4}
NOT_OF_V1_LAYOUT = {"spread": 0.1, "view": "", "precision": "float32"}


def test_the_defaults_are_those_of_dreamer_v1():
    agent = Dreamer()
    told = lambda of: {field.name: getattr(of, field.name) for field in dataclasses.fields(of)}  # noqa: E731
    assert told(agent) == {"layout": Layout(), **V1, **NOT_OF_V1}
    assert told(agent.layout) == {**V1_LAYOUT, **NOT_OF_V1_LAYOUT}
    state = jax.eval_shape(lambda key: agent.init(key, PIXELS), key := jax.random.key(0))
    del key
    count = lambda tree: sum(math.prod(x.shape) for x in jax.tree.leaves(tree))  # noqa: E731
    layers = lambda *sizes: sum(i * o + o for i, o in itertools.pairwise(sizes))  # noqa: E731
    rssm = layers(31, 200, 600) + 200 * 600 + 600 + layers(200, 200, 60) + layers(1224, 200, 60)
    assert count(state.world.rssm) == rssm
    assert count(state.world.reward_head) == layers(230, 400, 400, 1)
    assert count(state.value) == layers(230, 400, 400, 400, 1)
    assert count(state.actor) == layers(230, 400, 400, 400, 400, 2)
