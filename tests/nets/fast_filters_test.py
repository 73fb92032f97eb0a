"""The forms that Dreamer's convolutions are given, against plain ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.bonuses.embedding import RandomEncoder
from made.core import Space, Spec
from made.nets.fast_conv import FEW, Filters, filters, with_bias
from made.nets.layers import CHANNELS_LAST
from made.nets.likelihood import observation_model


def both(monkeypatch, call, *args):
    """What is computed, and its slope by the first argument, on a CPU and as on a GPU."""
    found = []
    for backend in ("cpu", "gpu"):
        monkeypatch.setattr(jax, "default_backend", lambda name=backend: name)
        weighed = lambda *x: (call(*x) * jnp.arange(call(*x).size).reshape(call(*x).shape)).mean()  # noqa: E731
        found.append((call(*args), jax.grad(weighed)(*args)))
    return found


@pytest.mark.parametrize("side", [9, 8])
def test_both_forms_give_the_same_numbers_and_slopes(side, monkeypatch):
    (layer,) = filters(((4, 2),), 3, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (2, side, side, 3))
    plain, quick = both(monkeypatch, lambda layer, x: layer.down(x), layer, x)
    assert plain[0].shape == quick[0].shape == (2, 3, 3, 2)
    np.testing.assert_allclose(quick[0], plain[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(quick[1].weight, plain[1].weight, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("kernel", "side"), [(5, 1), (5, 5), (6, 4)])
def test_a_transposed_convolution_is_one(kernel, side):
    """Its slopes are tried with those of `made.nets.fast_conv.scatter_blocks`."""
    (layer,) = filters(((kernel, 2),), 3, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (2, side, side, 3))
    plain = jax.lax.conv_transpose(x, layer.weight, (2, 2), "VALID", dimension_numbers=CHANNELS_LAST)
    assert plain.shape == (2, 2 * side - 2 + kernel, 2 * side - 2 + kernel, 2)
    np.testing.assert_allclose(layer.up(x), plain, rtol=1e-4, atol=1e-5)


def test_many_channels_are_convolved_as_they_are(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr("made.nets.fast_conv.from_cells", None)
    layer = Filters(jnp.ones((4, 4, 8, 1)), jnp.zeros(1))
    assert float(layer.down(jnp.ones((1, 4, 4, 8)))[0, 0, 0, 0]) == 128


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_bias_of_few_channels_has_the_slope_of_a_sum(dtype):
    x = jax.random.normal(jax.random.key(0), (2, 5, 4, 6, 3), dtype)  # two lanes
    bias, weights = jax.random.normal(jax.random.key(1), (2, 3)), jax.random.normal(jax.random.key(2), x.shape, dtype)

    def slopes(add):
        loss = lambda x, bias, weights: (weights * add(x, bias)).sum()  # noqa: E731
        return jax.jit(jax.vmap(jax.grad(loss, (0, 1))))(x, bias, weights)

    by_x, by_bias = slopes(with_bias)
    assert np.array_equal(with_bias(x, bias[:1]), x + bias[0].astype(dtype))
    assert by_x.dtype == dtype and np.array_equal(by_x, weights) and by_bias.dtype == jnp.float32
    np.testing.assert_allclose(by_bias, np.asarray(weights, np.float64).sum((1, 2, 3)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(by_bias, slopes(lambda x, bias: x + bias.astype(dtype))[1], rtol=0.02, atol=0.1)


def test_few_channels_are_summed_in_two_steps_and_many_in_one():
    for channels in (FEW - 1, FEW):
        layer, x = Filters(jnp.ones((1, 1, 1, channels)), jnp.ones(channels)), jnp.ones((2, 3, 4, channels))
        program = jax.make_jaxpr(jax.grad(lambda layer, x=x: layer.biased(x).sum()))(layer)
        sums = [one.outvars[0].aval.shape for one in program.eqns if one.primitive.name == "reduce_sum"]
        assert sums[-1] == (channels,) and ((4 * channels,) in sums) == (channels < FEW)
        assert ("optimization_barrier" in str(program)) == (channels < FEW), "else the compiler may make one sum of two"


def test_the_random_encoder_sees_nearly_the_same_in_blocks(monkeypatch):
    spec = Spec(Space((18, 15, 9), jnp.uint8), Space((1,), jnp.float32, None, -1.0, 1.0))
    encoder = RandomEncoder(observation_model(spec, "", ()), 6, jax.random.key(0))
    image = jax.random.bits(jax.random.key(1), (18, 15, 9), jnp.uint8)
    plain = encoder(image)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(type(encoder.convolutions), "__call__", None)
    quick = encoder(image)
    assert quick.dtype == jnp.float32 and not np.allclose(quick, plain, atol=1e-5), "products are in bfloat16"
    np.testing.assert_allclose(quick, plain, atol=0.02)
