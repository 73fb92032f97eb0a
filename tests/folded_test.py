"""Convolutions from blocks of four pixels against the plain ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.folded import folded, for_blocks, plain, relu

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
