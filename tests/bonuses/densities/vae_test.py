"""The VAE as a density: its bound recomputed in NumPy, its window, its ranks, and what it says of collapse."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bonuses.programs import fed, quick, read
from scipy.stats import norm

from made.bonuses.densities.vae import VAE, ImageDecoder, conv3x3, latent_metrics
from made.bonuses.release import ReleaseDecoder, _way
from made.core import Space, Spec, Transition, state_action_grid
from made.nets.fast_conv import upconv3x3
from made.nets.fit import Fit
from made.nets.layers import Linear, to_cells, to_pixels
from made.nets.likelihood import LEAST_SCALE, leaf_of, observation_model

TABLE = Spec(Space((), jnp.int32, 5), Space((), jnp.int32, 2))
VECTOR = Spec(Space((3,), jnp.float32), Space((2,), jnp.float32))
GRID = Spec(Space((7, 7, 3), jnp.uint8), Space((), jnp.int32, 7))
IMAGE = Spec(Space((36, 40, 3), jnp.uint8), Space((), jnp.int32, 2))


def vae(window=200, capacity=200, **more) -> VAE:
    return VAE(
        window, **{"capacity": capacity, "latent": 3, "width": 8, "fit": Fit(5e-3, batch=32), "fresh": 0, **more}
    )


def draw(space: Space, shape, rng):
    if space.n is not None:
        return rng.integers(0, space.n, (*shape, *space.shape)).astype(np.int32)
    if jnp.dtype(space.dtype) == jnp.uint8:
        return rng.integers(0, 4, (*shape, *space.shape)).astype(np.uint8)
    return rng.normal(2, 3, (*shape, *space.shape)).astype(np.float32)


def batch_of(spec, shape=(4, 3), seed=0) -> Transition:
    rng = np.random.default_rng(seed)
    obs, zeros = jnp.asarray(draw(spec.obs, shape, rng)), jnp.zeros(shape)
    return Transition(obs, jnp.asarray(draw(spec.action, shape, rng)), zeros, obs, zeros > 0, zeros > 0)


def dense(mlp, x):
    """An MLP of the package in NumPy."""
    for i, layer in enumerate(mlp.layers):
        x = np.asarray(layer.weight, np.float64) @ x + np.asarray(layer.bias, np.float64)
        x = np.maximum(x, 0) if i + 1 < len(mlp.layers) else x
    return x


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def bound(network, shown, noise, log_likelihood):
    """E log p(x | z) - KL, from the parameters, in float64."""
    mean, log_deviation = np.split(dense(network.encoder, shown), 2)
    log_deviation = np.clip(log_deviation, -7, 2)
    fits = [log_likelihood(dense(network.decoder, mean + np.exp(log_deviation) * eps)) for eps in np.asarray(noise)]
    return np.mean(fits) - (0.5 * (mean**2 + np.exp(2 * log_deviation) - 1) - log_deviation).sum()


def test_the_bound_of_symbols_is_recomputed_from_the_parameters():
    density, batch = vae(samples=3), batch_of(GRID)
    state, _ = fed(density, GRID, [batch])
    image, action = np.asarray(batch.obs[1, 2]).reshape(49, 3), int(batch.action[1, 2])
    one_hot = np.concatenate([np.eye(n)[image[:, c]] for c, n in enumerate((11, 6, 4))], -1).ravel()
    shown = np.concatenate([one_hot, np.eye(7)[action]])

    def log_likelihood(answer):
        cells, last = answer[:-7].reshape(49, 21), answer[-7:]
        parts = np.split(cells, [11, 17], -1)
        total = sum(log_softmax(part)[np.arange(49), image[:, c]].sum() for c, part in enumerate(parts))
        return total + log_softmax(last)[action]

    expected = bound(state.learned.params, shown, state.noise, log_likelihood)
    assert np.isclose(read(density, state, batch)[1, 2], expected, rtol=1e-5)
    assert state.noise.shape == (3, 3) and (state.noise != 0).all()
    assert [x.dtype for x in state.ring.items] == [jnp.uint8, jnp.uint8]  # as small as it can be kept


def test_the_bound_of_vectors_has_a_learnt_scale_and_standardised_inputs():
    density, batch = vae(), batch_of(VECTOR, (10, 4))
    state, _ = fed(density, VECTOR, [batch])
    parts = [np.asarray(x).reshape(40, -1) for x in (batch.obs, batch.action)]
    shown = np.concatenate([(x[7] - x.mean(0)) / x.std(0) for x in parts])
    network = state.learned.params
    assert state.noise.shape == (1, 3) and not state.noise.any()  # read at the mean of q
    scale = LEAST_SCALE + np.exp(np.asarray(network.log_scale))
    assert network.log_scale.shape == (5,) and (network.log_scale != 0).all()
    expected = bound(network, shown, state.noise, lambda answer: norm.logpdf(shown, answer, scale).sum())
    assert np.isclose(read(density, state, batch).ravel()[7], expected, rtol=1e-4)


def test_images_go_through_convolutions_and_come_back_at_their_size():
    density, batch = vae(window=8, capacity=8), batch_of(IMAGE, (2, 2))
    state, _ = fed(density, IMAGE, [])
    network = state.learned.params
    assert jax.eval_shape(lambda z: network.decode(z), jnp.zeros(3)).shape == (
        36 * 40 * 3 + 2,
    ) and network.log_scale.shape == (1,)
    logs = np.asarray(read(density, state, batch))
    assert np.isfinite(logs).all() and len(np.unique(logs)) == 4
    for height, width in ((100, 100), (64, 84), (7, 9)):
        latent = jnp.zeros(4 * ((height + 7) // 8) * ((width + 7) // 8))
        decode = lambda key, shape=(height, width, 3): ReleaseDecoder(shape, (4, 4, 4, 4), key)  # noqa: E731
        up = jax.eval_shape(lambda key, x=latent, f=decode: f(key)(x), jax.random.key(0))
        assert up.shape == (height, width, 3)
    assert _way(100) == (1, 0, 0)  # 13 - 26 - 51 - 101 - 100, as the authors have it


PROBABILITIES = np.array([0.5, 0.25, 0.15, 0.1, 0.0])


@pytest.fixture(scope="module")
def trained():
    """A tiny discrete problem: 400 pairs whose states have those probabilities and whose actions are even."""
    states = np.repeat(np.arange(5), (400 * PROBABILITIES).astype(int))
    obs, action = states.reshape(40, 10), np.tile([0, 1], 200).reshape(40, 10)
    zeros = jnp.zeros(obs.shape)
    batch = Transition(jnp.asarray(obs), jnp.asarray(action), zeros, jnp.asarray(obs), zeros > 0, zeros > 0)
    density = vae(400, 400, latent=1, width=16, samples=64, fit=Fit(5e-3, steps=400, batch=128))
    return density, *fed(density, TABLE, [batch] * 3)


def test_the_bound_lies_below_the_exact_density_of_the_model_and_of_the_data(trained):
    """log p(x) = log of the integral of p(x | z) N(z) dz, by quadrature, for one latent."""
    density, state, _ = trained
    network, grid = state.learned.params, state_action_grid(5, 2)
    z = jnp.linspace(-8, 8, 4001)
    answers = quick(jax.vmap(lambda z: network.decode(z)))(z[:, None])
    p_s, p_a = jax.nn.softmax(answers[:, :5]), jax.nn.softmax(answers[:, 5:])
    exact = np.log(np.einsum("zs,za,z->sa", p_s, p_a, norm.pdf(z)) * (z[1] - z[0]))
    assert np.isclose(np.exp(exact).sum(), 1, atol=1e-4)  # a density: it sums to one
    bounds = np.asarray(read(density, state, grid))
    assert (bounds[:4] <= exact[:4] + 0.05).all() and (bounds[:4] > exact[:4] - 0.7).all()  # 64 draws: nearly exact
    d = PROBABILITIES[:4, None] * np.full((1, 2), 0.5)
    assert (d * bounds[:4]).sum() <= (d * np.log(d)).sum() + 0.02  # Gibbs: on average below the entropy


def test_a_trained_vae_ranks_pairs_by_frequency(trained):
    density, state, metrics = trained
    bounds = np.asarray(read(density, state, state_action_grid(5, 2))).mean(1)
    assert (np.diff(bounds) < 0).all() and bounds[4] < bounds[3] - 0.5  # what was never seen is least dense
    assert set(metrics) == {f"vae/{name}" for name in ("loss", "kl", "reconstruction", "active", "collapsed")}


def test_what_has_left_the_window_is_forgotten():
    """Claim 16 for the density: equal visits, one of them long ago. The ring holds the last pairs only."""
    old, new = (batch_of(TABLE, (20, 2))._replace(obs=jnp.full((20, 2), s)) for s in (0, 1))
    density = vae(40, 60, fit=Fit(1e-2, steps=60, batch=32))
    state, _ = fed(density, TABLE, [old] * 2 + [new] * 2)
    assert set(np.asarray(state.ring.items[0])[:40].tolist()) == {1}
    logs = np.asarray(read(density, state, state_action_grid(5, 2))).mean(1)
    assert logs[1] > logs[0] + 1


def test_reads_are_pure_and_take_any_leading_axes():
    density, batch = vae(), batch_of(VECTOR)
    state, _ = fed(density, VECTOR, [batch])
    before = jax.tree.map(np.array, state)
    logs = read(density, state, batch)
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (before, state)), strict=True))
    assert np.array_equal(logs, read(density, state, batch))
    one = read(density, state, jax.tree.map(lambda x: x[2, 1], batch))
    assert one.shape == () and np.isclose(one, logs[2, 1], atol=1e-5)


@pytest.mark.parametrize("size", [1e30, -1e30, 0.0])
def test_extreme_numbers_stay_finite(size):
    density, batch = vae(), batch_of(VECTOR)
    state, metrics = fed(density, VECTOR, [batch._replace(obs=jnp.full_like(batch.obs, size))])
    assert np.isfinite(read(density, state, batch)).all()
    assert all(np.isfinite(x) for x in metrics.values())


def test_collapse_is_told_from_the_nats_that_latents_carry():
    idle = latent_metrics(jnp.full((10, 4), 0.001))
    half = latent_metrics(jnp.array([[0.0, 0.0, 1.0, 1.0]]))
    assert idle["collapsed"] == 1 and idle["active"] == 0 and np.isclose(idle["kl"], 0.004)
    assert half["collapsed"] == 0 and half["active"] == 2 and half["kl"] == 2


def test_leaves_are_modelled_by_what_they_are():
    kinds = {
        "values": (Space((2,), jnp.int32, 300), Space((5, 5, 3), jnp.uint8)),
        "bytes": (Space((64, 64, 3), jnp.uint8), Space((9, 9, 4), jnp.uint8)),
        "numbers": (Space((4,), jnp.float32),),
    }
    assert all(leaf_of(space).kind == kind for kind, spaces in kinds.items() for space in spaces)
    assert leaf_of(Space((5, 5, 3), jnp.uint8), symbols=()).kind == "bytes"
    assert leaf_of(kinds["values"][0]).dtype == jnp.int32 and leaf_of(kinds["values"][0]).size == 600
    with pytest.raises(ValueError, match="uint32"):
        leaf_of(Space((2,), jnp.uint32))
    full = Spec({"image": GRID.obs, "hash": Space((2,), jnp.uint32)}, GRID.action)
    assert observation_model(full).size == 49 * 21 + 7  # the hash is for counting alone


@pytest.mark.parametrize("wrong", [{"window": 300}, {"latent": 0}, {"samples": -1}, {"fit": Fit(batch=0)}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        vae(**wrong)


def test_cells_hold_every_pixel_and_an_image_of_any_size_is_painted():
    image = jnp.arange(9 * 6 * 2.0).reshape(9, 6, 2)
    cells = to_cells(image, 4)
    assert cells.shape == (3, 2, 32) and np.array_equal(cells[1, 0].reshape(4, 4, 2), image[4:8, :4])
    assert np.array_equal(to_pixels(cells, 4)[:9, :6], image)
    for height, width in ((15, 15), (84, 84), (100, 37)):
        painter = ImageDecoder((height, width, 3), (2, 2), jax.random.key(0))
        assert jax.eval_shape(painter, jnp.zeros(painter.size)).shape == (height, width, 3)


def test_a_convolution_as_a_product_is_the_convolution(monkeypatch):
    rng = np.random.default_rng(0)
    layer, x = Linear(9 * 2, 4, jax.random.key(0)), jnp.asarray(rng.normal(size=(7, 6, 2)))
    filters = layer.weight.reshape(4, 3, 3, 2).transpose(2, 1, 3, 0)  # columns of rows of channels
    for stride in (1, 2):
        true = jax.lax.conv_general_dilated(
            x[None], filters, (stride, stride), [(1, 1)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )[0]
        for backend in ("cpu", "gpu"):  # a product of matrices, and the compiler's own convolution
            monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
            assert np.allclose(conv3x3(layer, x, stride), true + jnp.asarray(layer.bias), atol=1e-5)


def test_the_work_of_an_update_is_in_proportion_to_what_came_in():
    """The rule of `VAE.fit`: one Adam step for 384 new pairs, and eight for the 3,200 of 32 environments x 100."""
    assert [VAE().fit.after(n, VAE().fresh).steps for n in (1, 512, 1200, 3200, 10**6)] == [1, 1, 3, 8, 8]
    counts = [
        int(fed(vae(fit=Fit(5e-3, steps=4, batch=4), fresh=2), TABLE, [batch_of(TABLE, shape)])[0]
            .learned.optimiser[1][0].count) for shape in ((2, 2), (6, 4))]  # fmt: skip
    assert counts == [1, 3]
    assert Fit(steps=5, batch=4).after(1, fresh=0).steps == 5


@pytest.mark.parametrize("more", [0, 1])
def test_doubling_is_a_transposed_convolution(more):
    layer = eqx.nn.ConvTranspose2d(3, 2, 3, 2, output_padding=(more, 0), padding=1, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (5, 4, 3))
    true = jnp.moveaxis(layer(jnp.moveaxis(x, -1, 0)), 0, -1)
    assert true.shape == (9 + more, 7, 2) and np.allclose(upconv3x3(layer, x), true, atol=1e-6)
