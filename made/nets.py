"""Networks whose every leaf is an array, so that any state may ride in scan, vmap, where and a checkpoint.

Equinox's own MLP keeps its activation as a leaf; here activations are static.
"""

import math
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from made.core import Space

Activation = Callable[[Array], Array]


def orthogonal(layer: eqx.Module, scale: float, key: Key[Array, ""]) -> eqx.Module:
    """The same layer with an orthogonal weight of that scale and no bias, as the on-policy baselines start."""
    weight: Array = layer.weight  # type: ignore[attr-defined]
    drawn = jax.nn.initializers.orthogonal(scale)(key, (weight.shape[0], math.prod(weight.shape[1:])))
    layer = eqx.tree_at(lambda m: m.weight, layer, drawn.reshape(weight.shape).astype(weight.dtype))
    bias = getattr(layer, "bias", None)
    return layer if bias is None else eqx.tree_at(lambda m: m.bias, layer, jnp.zeros_like(bias))


class MLP(eqx.Module):
    """Linear layers with an activation between them."""

    layers: tuple[eqx.nn.Linear, ...]
    activation: Activation = eqx.field(static=True)

    def __init__(self, sizes: Sequence[int], *, key: Key[Array, ""], activation: Activation = jax.nn.relu):
        if len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(f"MLP needs an input and an output size, all positive, got {tuple(sizes)}.")
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(eqx.nn.Linear(i, o, key=k) for i, o, k in zip(sizes, sizes[1:], keys, strict=False))
        self.activation = activation

    def __call__(self, x: Float[Array, " i"]) -> Float[Array, " o"]:
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


class ConvNet(eqx.Module):
    """Convolutions with an activation after each, flattened. Channels last in, as images come."""

    layers: tuple[eqx.nn.Conv2d, ...]
    activation: Activation = eqx.field(static=True)

    def __init__(
        self,
        channels: Sequence[int],
        *,
        key: Key[Array, ""],
        kernel: int = 3,
        strides: Sequence[int] | None = None,
        padding: int = 0,
        activation: Activation = jax.nn.relu,
    ):
        strides = strides or [1] * (len(channels) - 1)
        if len(strides) != len(channels) - 1:
            raise ValueError(f"{len(channels) - 1} convolutions need as many strides, got {list(strides)}.")
        keys = jax.random.split(key, len(strides))
        self.layers = tuple(
            eqx.nn.Conv2d(i, o, kernel, stride, padding, key=k)
            for i, o, stride, k in zip(channels, channels[1:], strides, keys, strict=False)
        )
        self.activation = activation

    def __call__(self, image: Float[Array, "h w c"]) -> Float[Array, " o"]:
        x = jnp.moveaxis(image, -1, 0)
        for layer in self.layers:
            x = self.activation(layer(x))
        return x.reshape(-1)


class Recurrent(eqx.Module):
    """A GRU or LSTM cell with one carry of arrays and a start for it."""

    cell: eqx.nn.GRUCell | eqx.nn.LSTMCell
    kind: str = eqx.field(static=True)
    width: int = eqx.field(static=True)

    def __init__(self, kind: str, inputs: int, width: int, *, key: Key[Array, ""]):
        cells = {"gru": eqx.nn.GRUCell, "lstm": eqx.nn.LSTMCell}
        if kind not in cells:
            raise ValueError(f"Recurrent comes as 'gru' or 'lstm', got {kind!r}.")
        self.cell, self.kind, self.width = cells[kind](inputs, width, key=key), kind, width

    def blank(self) -> PyTree:
        """The carry at the start of an episode."""
        zeros = jnp.zeros(self.width)
        return zeros if self.kind == "gru" else (zeros, zeros)

    def __call__(self, carry: PyTree, x: Float[Array, " i"]) -> tuple[PyTree, Float[Array, " o"]]:
        carry = self.cell(x, carry)
        return carry, carry if self.kind == "gru" else carry[0]


class Encoder(eqx.Module):
    """Features of an observation, with the network chosen by its Space.

    discrete values -> one-hot -> MLP; vectors -> MLP; images [h, w, c] (bytes over 255) -> convolutions -> MLP;
    a dictionary or tuple of these -> each encoded, then concatenated.
    """

    parts: tuple["LeafEncoder", ...]

    def __init__(self, spaces: PyTree, width: int, *, key: Key[Array, ""]):
        leaves = jax.tree.leaves(spaces, is_leaf=lambda x: isinstance(x, Space))
        if not leaves or not all(isinstance(leaf, Space) for leaf in leaves):
            raise ValueError(f"Encoder needs a Space or a tree of them, got {spaces!r}.")
        keys = jax.random.split(key, len(leaves))
        self.parts = tuple(LeafEncoder(leaf, width, key=k) for leaf, k in zip(leaves, keys, strict=True))

    def __call__(self, obs: PyTree) -> Float[Array, " features"]:
        return jnp.concatenate([part(x) for part, x in zip(self.parts, jax.tree.leaves(obs), strict=True)])

    @property
    def size(self) -> int:
        """How many features come out."""
        return sum(part.width for part in self.parts)


class LeafEncoder(eqx.Module):
    """Features of one leaf of an observation."""

    convolutions: ConvNet | None
    dense: MLP
    space: Space = eqx.field(static=True)
    width: int = eqx.field(static=True)

    def __init__(self, space: Space, width: int, *, key: Key[Array, ""]):
        k_conv, k_dense = jax.random.split(key)
        image = (
            space.n is None and len(space.shape) == 3 and min(space.shape[:2]) >= 7
        )  # smaller: nothing to slide over
        self.convolutions = ConvNet((space.shape[-1], 32, 32), key=k_conv, strides=(2, 1)) if image else None
        inputs = jax.eval_shape(
            lambda x: as_vector(x, space, self.convolutions), jnp.zeros(space.shape, space.dtype)
        ).shape[0]
        self.dense = MLP((inputs, width, width), key=k_dense)
        self.space, self.width = space, width

    def __call__(self, x: Array) -> Float[Array, " o"]:
        return jax.nn.relu(self.dense(as_vector(x, self.space, self.convolutions)))


def as_vector(x: Array, space: Space, convolutions: ConvNet | None) -> Float[Array, " i"]:
    """What a dense layer can take: discrete values as one-hot, bytes as shares of 255, images through convolutions."""
    if space.n is not None:
        return jax.nn.one_hot(x, space.n).reshape(-1)
    x = x / 255.0 if x.dtype == jnp.uint8 else x.astype(jnp.float32)
    return x.reshape(-1) if convolutions is None else convolutions(x)


def action_vector(action: Array, space: Space) -> Float[Array, " i"]:
    """One action as a vector: one-hot where it is discrete, its numbers where it is continuous."""
    return as_vector(action, space, None)
