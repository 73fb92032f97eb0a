"""Convolutions from blocks of four pixels, and transposed ones from plain ones, against those of the library."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.nets.fast_conv import dilate, folded, for_blocks, plain, relu, scatter_blocks
from made.nets.layers import CHANNELS_LAST

CHANNELS = (9, 4, 4, 4, 4)


def layers(key):
    keys = jax.random.split(key, 8)
    weights = [0.1 * jax.random.normal(keys[i], (3, 3, *CHANNELS[i : i + 2])) for i in range(4)]
    return weights, [0.1 * jax.random.normal(keys[4 + i], (CHANNELS[i + 1],)) for i in range(4)]


@pytest.mark.parametrize("size", [(15, 16), (17, 18), (21, 32)])  # every remainder after division by four
def test_blocks_give_what_plain_convolutions_give_and_so_do_their_slopes(size):
    weights, biases = layers(jax.random.key(0))
    images = jax.random.bits(jax.random.key(1), (2, *size, 9), jnp.uint8)
    weights[0] /= 255

    def both(way):
        def loss(layers):
            out = way(images, *layers, jnp.float32)
            return (out * jnp.arange(out.size).reshape(out.shape)).mean(), out

        return jax.grad(loss, has_aux=True)((weights, biases))

    (slopes, out), (wanted, expected) = jax.jit(lambda: both(folded))(), jax.jit(lambda: both(plain))()
    assert out.shape == expected.shape and out.dtype == jnp.float32 and float(expected.max()) > 0
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-6)
    for got, want in zip(jax.tree.leaves(slopes), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5 * float(jnp.abs(want).max()))


def test_the_kernel_of_a_block_is_the_plain_one_written_down_four_times():
    weight = jnp.arange(1.0, 10).reshape(3, 3, 1, 1)
    kernel = for_blocks(weight, 1)
    assert kernel.shape == (2, 2, 4, 4)
    # Of the pixel at (1, 1) of a block the window begins at (1, 1): [block row, block column, row, column].
    last = np.asarray(kernel[..., 3]).reshape(2, 2, 2, 2).swapaxes(1, 2).reshape(4, 4)
    assert np.array_equal(last, np.pad(np.arange(1.0, 10).reshape(3, 3), ((1, 0), (1, 0))))
    assert for_blocks(weight, 2).shape == (2, 2, 16, 4) and np.count_nonzero(for_blocks(weight, 2)) == 4 * 9


def test_the_slope_of_the_relu_is_read_off_what_comes_out():
    x = jnp.array([-2.0, 0.0, 3.0])
    weighed = lambda f: jax.grad(lambda x: (f(x) * jnp.array([5.0, 7.0, 9.0])).sum())(x)  # noqa: E731
    assert np.array_equal(weighed(relu), weighed(jax.nn.relu)) and np.array_equal(relu(x), [0.0, 0.0, 3.0])


def transposed(x, weight):
    return jax.lax.conv_transpose(x, weight, (2, 2), "VALID", dimension_numbers=CHANNELS_LAST)


def weighed(way):
    """(the answer, its slopes by x and by the weights when its numbers count as much as they are many)."""

    def loss(*given):
        out = way(*given)
        return (out * jnp.cos(jnp.arange(out.size)).reshape(out.shape)).sum(), out

    return jax.grad(loss, (0, 1), has_aux=True)


def over_images(way):
    """As the VAEs call it: image by image, with the same weights."""
    return lambda x, weight: jax.vmap(lambda image: way(image[None], weight)[0])(x)


@pytest.mark.parametrize(("kernel", "channels"), [(5, 4), (6, 3), (3, 2)])
def test_transposed_convolutions_and_their_slopes_are_those_of_the_library(kernel, channels):
    x = jax.random.normal(jax.random.key(0), (2, 3, 4, 5, 7))  # two lanes of three images
    weight = jax.random.normal(jax.random.key(1), (2, kernel, kernel, 7, channels))

    @jax.jit
    def found(x, weight):
        ways = (weighed(transposed), weighed(scatter_blocks), weighed(over_images(scatter_blocks)))
        return [one for way in ways for one in (way(x[0], weight[0]), jax.vmap(way)(x, weight))]

    first, lanes, *rest = found(x, weight)
    assert first[1].shape == (3, 2 * 4 - 2 + kernel, 2 * 5 - 2 + kernel, channels)
    for i, got in enumerate(rest):
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves((first, lanes)[i % 2]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_transposed_convolutions_in_half_precision_stay_close():
    x = jax.random.normal(jax.random.key(0), (2, 4, 4, 5))
    weight = jax.random.normal(jax.random.key(1), (6, 6, 5, 3))
    whole = jax.jit(weighed(scatter_blocks))(x, weight)
    half = jax.jit(weighed(scatter_blocks))(x.astype(jnp.bfloat16), weight.astype(jnp.bfloat16))
    for got, want in zip(jax.tree.leaves(half), jax.tree.leaves(whole), strict=True):
        assert got.dtype == jnp.bfloat16
        np.testing.assert_allclose(got.astype(np.float32), want, atol=0.03 * float(jnp.abs(want).max()))


def convolutions(program) -> list:
    """Those of a program, and of the programs within it."""
    parts = [part for equation in program.eqns for part in equation.params.values()]
    inner = [part.jaxpr for part in parts if hasattr(part, "jaxpr")]
    found = [equation for equation in program.eqns if equation.primitive.name == "conv_general_dilated"]
    return found + [one for part in inner for one in convolutions(part)]


def test_the_slope_of_the_weights_is_one_convolution_without_padding():
    """With padding it takes many times as long; and so it does image by image."""
    x, weight = jnp.ones((2, 4, 4, 5)), jnp.ones((6, 6, 5, 3))
    for way in (scatter_blocks, over_images(scatter_blocks)):
        program = jax.make_jaxpr(weighed(way))(x, weight)
        made = {one.outvars[0].aval.size: one.params for one in convolutions(program)}
        assert set(made) == {2 * 6 * 6 * 16, 2 * 4 * 4 * 5, 3 * 3 * 5 * 16}, "forward, by x, by the weights"
        assert made[2 * 6 * 6 * 16]["padding"] == ((2, 2), (2, 2)) and made[3 * 3 * 5 * 16]["padding"] == (
            (0, 0),
            (0, 0),
        )
        assert all(one["batch_group_count"] == one["feature_group_count"] == 1 for one in made.values())
        assert str(program).count("optimization_barrier") == 1, "else the compiler may make padding of the zeros"


def test_a_slope_that_nobody_asks_for_is_not_computed():
    x, kernel = jnp.ones((2, 4, 4, 5)), jnp.ones((3, 3, 5, 8))
    for at in (0, 1):
        program = jax.make_jaxpr(jax.grad(lambda *given: (dilate(*given) ** 2).sum(), at))(x, kernel)
        assert len(convolutions(program)) == 2
