"""Networks: every leaf an array, sizes from the spec, clear refusals."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.core import Space
from made.nets.layers import (
    MLP,
    ConvNet,
    Dense,
    Encoder,
    as_vector,
    convolve,
    glorot_dense,
    orthogonal_dense,
    orthogonal_linear,
    orthonormal,
)


def test_every_leaf_is_an_array_so_networks_ride_in_scan():
    nets = (
        MLP((3, 8, 2), key=jax.random.key(0)),
        ConvNet((3, 4), (1,), key=jax.random.key(1)),
        Encoder({"a": Space((), jnp.int32, 5), "b": Space((7, 7, 3), jnp.uint8)}, 16, key=jax.random.key(3)),
    )
    assert all(eqx.is_array(leaf) for leaf in jax.tree.leaves(nets))
    doubled, _ = jax.lax.scan(lambda nets, _: (jax.tree.map(lambda x: 2 * x, nets), None), nets, None, 1)
    assert np.allclose(doubled[0].layers[0].weight, 2 * nets[0].layers[0].weight)


def test_an_mlp_is_its_formula():
    net = MLP((3, 5, 2), key=jax.random.key(0), activation=jnp.tanh)
    x = jnp.array([0.3, -1.0, 2.0])
    (w1, b1), (w2, b2) = ((layer.weight, layer.bias) for layer in net.layers)
    assert np.allclose(net(x), w2 @ jnp.tanh(w1 @ x + b1) + b2, atol=1e-6)


@pytest.mark.parametrize(
    "space",
    [Space((), jnp.int32, 6), Space((4,), jnp.int32, 3), Space((5,), jnp.float32), Space((9, 9, 3), jnp.uint8)],
)
def test_an_encoder_takes_what_the_spec_describes(space):
    encoder = Encoder(space, 12, key=jax.random.key(0))
    obs = jnp.zeros(space.shape, space.dtype)
    out = encoder(obs)
    assert out.shape == (encoder.size,) == (12,)
    changed = encoder(obs + 1)
    assert not np.allclose(out, changed)


def test_images_in_bytes_are_scaled_to_one():
    space = Space((8, 8, 1), jnp.uint8)
    (convolutions,) = Encoder(space, 4, key=jax.random.key(0)).convolutions
    bright = jnp.full((8, 8, 1), 255, jnp.uint8)
    assert np.allclose(as_vector(bright, space, convolutions), convolutions(jnp.ones((8, 8, 1))), atol=1e-6)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [((7, 9), 3, 2, 0), ((3, 3), 3, 1, 0), ((6, 5), (2, 3), (1, 2), 0), ((7, 7), 3, 2, 1), ((18, 5), 3, 2, 0)],
)
def test_a_small_image_is_convolved_as_a_large_one_is(size, kernel, stride, padding):
    layer = eqx.nn.Conv2d(2, 5, kernel, stride, padding, key=jax.random.key(0))
    image = jax.random.normal(jax.random.key(1), (*size, 2))
    expected = jnp.moveaxis(layer(jnp.moveaxis(image, -1, 0)), 0, -1)
    assert np.allclose(convolve(layer, image), expected, atol=1e-5)


def test_a_leaf_of_few_values_costs_few_columns_and_every_leaf_is_seen():
    spaces = {"direction": Space((), jnp.int32, 4), "image": Space((7, 7, 3), jnp.uint8), "x": Space((2,), jnp.float32)}
    encoder = Encoder(spaces, 16, key=jax.random.key(0))
    assert encoder.dense.weight.shape == (16, 4 + 32 + 2)
    obs = {name: jnp.zeros(space.shape, space.dtype) for name, space in spaces.items()}
    for name in spaces:
        assert not np.allclose(encoder(obs), encoder({**obs, name: obs[name] + 1})), name


def test_an_mlp_of_dense_layers_multiplies_in_the_given_precision():
    net, x = MLP((3, 5, 2), key=jax.random.key(0), layer=glorot_dense), jax.random.normal(jax.random.key(1), (4, 3))
    one, two = (np.asarray(layer.weight) for layer in net.layers)
    assert np.abs(one).max() <= np.sqrt(6 / 8) and not any(layer.bias.any() for layer in net.layers)
    wanted = np.maximum(np.asarray(x) @ one, 0) @ two
    np.testing.assert_allclose(net(x), wanted, rtol=1e-4, atol=1e-6)
    half = net(x, jnp.bfloat16)
    assert half.dtype == jnp.float32 and not np.array_equal(half, net(x))
    np.testing.assert_allclose(half, wanted, rtol=0.05, atol=0.05)


def test_a_split_layer_is_the_sum_of_its_parts():
    layer = Dense(jax.random.normal(jax.random.key(0), (5, 2)), jnp.ones(2))
    x, (first, rest) = jax.random.normal(jax.random.key(1), (4, 5)), layer.split(3)
    np.testing.assert_allclose(first(x[:, :3]) + rest(x[:, 3:]), layer(x), rtol=1e-5)


@pytest.mark.parametrize("shape", [(40, 40), (64, 7), (7, 64)])
def test_orthonormal_matrices_are(shape):
    drawn = orthonormal(jax.random.key(0), shape)
    small = drawn.T @ drawn if shape[0] >= shape[1] else drawn @ drawn.T
    np.testing.assert_allclose(small, np.eye(min(shape)), atol=2e-5)


def test_orthogonal_weights_are_orthogonal():
    layer, dense = orthogonal_linear(8, 4, jax.random.key(1)), orthogonal_dense(8, 4, jax.random.key(1), gain=2.0)
    assert np.allclose(layer.weight @ layer.weight.T, np.eye(4), atol=1e-5) and layer(jnp.zeros(8)).shape == (4,)
    assert np.allclose(dense.weight.T @ dense.weight, 4 * np.eye(4), atol=1e-5)
    assert not layer.bias.any() and not dense.bias.any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda k: MLP((3,), key=k), r"MLP needs an input and an output size, all positive, got \(3,\)"),
        (lambda k: ConvNet((3, 4, 5), (1,), key=k), r"2 convolutions need as many strides, got \[1\]"),
        (lambda k: Encoder({"a": 3}, 4, key=k), r"Encoder needs a Space or a tree of them, got \{'a': 3\}"),
    ],
)
def test_wrong_sizes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make(jax.random.key(0))
