"""Network layers whose every leaf is an array, so that states work with scan, vmap, where and checkpoints."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree, Shaped

from made.core import Space

Activation = Callable[[Array], Array]
glorot = jax.nn.initializers.glorot_uniform()
EVEN = 8  # matmuls of a GPU are fast where their sides and channels are multiples of this
CHANNELS_LAST = ("NHWC", "HWIO", "NHWC")  # of images, kernels and outputs: the fast order on GPUs
SMALL = 16  # pixels a side up to which an image is convolved by a matmul


def check_precision(layout: Any) -> None:
    """Raise ValueError unless the field `precision` names a type that products can be computed in."""
    if layout.precision not in ("float32", "bfloat16"):
        raise ValueError(f"Layout takes precision='float32' or 'bfloat16', got {layout.precision!r}.")


def orthonormal(key: Key[Array, ""], shape: tuple[int, int], steps: int = 40) -> Float[Array, "i o"]:
    """A uniformly random matrix with orthonormal columns, or rows if it is wide.

    The orthogonal factor of the polar decomposition of a Gaussian matrix, by Newton's iteration X <- X (3 - X^T X) / 2.
    The initializer of jax calls LAPACK's QR, which can deadlock XLA's threads in vectorized programs on two cores.
    """
    tall = jax.random.normal(key, (max(shape), min(shape)))
    tall /= jnp.sqrt(shape[0]) + jnp.sqrt(shape[1])  # no singular value is much above 1 then
    tall = jax.lax.fori_loop(0, steps, lambda _, x: 1.5 * x - 0.5 * x @ (x.T @ x), tall)
    return tall if shape[0] >= shape[1] else tall.T


class Dense(eqx.Module):
    """x W + b. With a dtype, the product is computed in it and the result is float32."""

    weight: Float[Array, "i o"]
    bias: Float[Array, " o"]

    def __call__(self, x: Float[Array, "*b i"], dtype: Any = None) -> Float[Array, "*b o"]:
        if dtype is None:
            return x @ self.weight + self.bias
        return (x.astype(dtype) @ self.weight.astype(dtype)).astype(jnp.float32) + self.bias

    def split(self, at: int) -> tuple["Dense", "Dense"]:
        """Two layers whose sum is this one of (x[:at], x[at:]), so that each half can run at another time."""
        return Dense(self.weight[:at], jnp.zeros_like(self.bias)), Dense(self.weight[at:], self.bias)


def orthogonal_dense(inputs: int, outputs: int, key: Key[Array, ""], gain: float = 1.0) -> Dense:
    """Orthogonal weights times a gain, no bias."""
    return Dense(gain * orthonormal(key, (inputs, outputs)), jnp.zeros(outputs))


def glorot_dense(inputs: int, outputs: int, key: Key[Array, ""]) -> Dense:
    """Glorot uniform weights, no bias."""
    return Dense(glorot(key, (inputs, outputs)), jnp.zeros(outputs))


class PaddedDense(eqx.Module):
    """A dense layer with its weights cast once and padded with zeros, for use within a loop."""

    weight: Float[Array, "i+ o+"]
    bias: Float[Array, " o"]

    @classmethod
    def of(cls, layer: Dense, dtype: Any) -> "PaddedDense":
        """The same layer."""
        return cls(pad_axis(pad_axis(layer.weight.astype(dtype), dtype, 0), dtype, 1), layer.bias)

    def __call__(self, x: Float[Array, "*b i"], dtype: Any = None) -> Float[Array, "*b o"]:
        """x W + b; the weights have their dtype already."""
        del dtype
        x = pad_axis(x.astype(self.weight.dtype), self.weight.dtype, x.ndim - 1)
        return (x @ self.weight).astype(jnp.float32)[..., : self.bias.size] + self.bias


def padded_dense(tree: PyTree, dtype: Any) -> Any:
    """The tree with every `Dense` as a `PaddedDense`."""
    is_layer = lambda x: isinstance(x, Dense)  # noqa: E731
    return jax.tree.map(lambda x: PaddedDense.of(x, dtype) if is_layer(x) else x, tree, is_leaf=is_layer)


def pad_axis(tree: PyTree, dtype: Any, axis: int) -> Any:
    """Arrays padded with zeros along an axis, up to the next multiple of what makes a matmul of that dtype fast."""
    side = EVEN if jax.default_backend() != "cpu" and jnp.dtype(dtype) == jnp.bfloat16 else 1

    def fill(x: Array) -> Array:
        more = -x.shape[axis] % side
        return jnp.pad(x, [(0, more if i == axis else 0) for i in range(x.ndim)]) if more else x

    return jax.tree.map(fill, tree)


@jax.custom_vjp
def rounded_product(x: Float[Array, "b i"], weight: Float[Array, "i o"]) -> Float[Array, "b o"]:
    """x W in the dtype of x with a float32 result; the backward pass rounds its cotangent to the dtype of x as well.

    Plain differentiation would multiply a float32 cotangent by rounded factors: as slow as float32, and no more exact.
    """
    return jnp.matmul(x, weight.astype(x.dtype), preferred_element_type=jnp.float32)


def _rounded_backward(factors: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, weight = factors
    grad = grad.astype(x.dtype)
    return grad @ weight.astype(x.dtype).T, jnp.matmul(x.T, grad, preferred_element_type=jnp.float32)


rounded_product.defvjp(lambda x, weight: (rounded_product(x, weight), (x, weight)), _rounded_backward)


class Linear(eqx.nn.Linear):
    """Equinox's layer for rows: x W^T + b keeps one item a row in a batch, where W x would transpose it twice."""

    def __init__(self, inputs: int, outputs: int, key: Key[Array, ""]):
        super().__init__(inputs, outputs, key=key)

    def __call__(self, x: Float[Array, "*b i"], dtype: Any = None) -> Float[Array, "*b o"]:  # type: ignore[override]
        del dtype
        return x @ self.weight.T + self.bias  # type: ignore[operator]


def orthogonal_linear(inputs: int, outputs: int, key: Key[Array, ""]) -> Linear:
    """Orthogonal weights, no bias."""
    parts = orthonormal(key, (outputs, inputs)), jnp.zeros(outputs)
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), Linear(inputs, outputs, key), parts)


class MLP(eqx.Module):
    """Dense layers with an activation between them; `layer` makes one from (inputs, outputs, key)."""

    layers: tuple[Any, ...]
    activation: Activation = eqx.field(static=True)

    def __init__(
        self, sizes: Sequence[int], *, key: Key[Array, ""], activation: Activation = jax.nn.relu, layer: Any = Linear
    ):
        if len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(f"MLP needs an input and an output size, all positive, got {tuple(sizes)}.")
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(layer(i, o, k) for (i, o), k in zip(itertools.pairwise(sizes), keys, strict=True))
        self.activation = activation

    def __call__(self, x: Float[Array, "*b i"], dtype: Any = None) -> Float[Array, "*b o"]:
        for layer in self.layers[:-1]:
            x = self.activation(layer(x, dtype))
        return self.layers[-1](x, dtype)


class ConvNet(eqx.Module):
    """Convolutions 3x3 with a ReLU after each, flattened. Channels last in, as images come."""

    layers: tuple[eqx.nn.Conv2d, ...]

    def __init__(self, channels: Sequence[int], strides: Sequence[int], *, key: Key[Array, ""], padding: int = 0):
        if len(strides) != len(channels) - 1:
            raise ValueError(f"{len(channels) - 1} convolutions need as many strides, got {list(strides)}.")
        keys = jax.random.split(key, len(strides))
        self.layers = tuple(
            eqx.nn.Conv2d(i, o, 3, stride, padding, key=k)
            for (i, o), stride, k in zip(itertools.pairwise(channels), strides, keys, strict=True)
        )

    def __call__(self, image: Float[Array, "h w c"]) -> Float[Array, " o"]:
        x = image
        for layer in self.layers:
            x = jax.nn.relu(convolve(layer, x))
        return x.reshape(-1)


def convolve(layer: eqx.nn.Conv2d, x: Float[Array, "h w c"], products: bool = False) -> Float[Array, "i j o"]:
    """The layer applied to one image. Small images, and all with `products`, use a matmul of windows and filters.

    On a CPU XLA's own convolutions are 3 times slower on 7 x 7 pixels, and 10 times within a scan. For large images
    the windows of a 3 x 3 kernel would take nine times the memory of the image.
    """
    if max(x.shape[:2]) > SMALL and not products:
        kernel = layer.weight.transpose(2, 3, 1, 0)
        return convolved(x, kernel, layer.stride, layer.padding) + layer.bias.reshape(-1)  # type: ignore
    padded = jnp.pad(x, (*layer.padding, (0, 0)))  # type: ignore[arg-type]
    seen = windows(padded, layer.kernel_size, layer.stride)
    filters = layer.weight.transpose(3, 2, 1, 0).reshape(-1, layer.out_channels)  # in the windows' order
    return seen @ filters + layer.bias.reshape(-1)  # type: ignore[union-attr]


def convolved(x: Float[Array, "h w c"], kernel: Float[Array, "k l c o"], stride: Sequence[int], padding: Any) -> Array:
    """XLA's own convolution of one image, channels last."""
    return jax.lax.conv_general_dilated(x[None], kernel, stride, padding, dimension_numbers=CHANNELS_LAST)[0]


def windows(x: Float[Array, "h w c"], kernel: Sequence[int], stride: Sequence[int]) -> Float[Array, "i j n"]:
    """The inputs of a kernel at each of its positions: columns of rows of channels."""
    if x.shape[:2] == tuple(kernel):  # one position: the gradient needs no padding
        return jnp.swapaxes(x, 0, 1).reshape(1, 1, -1)
    for axis, (k, by) in enumerate(zip(kernel, stride, strict=True)):
        reach = (x.shape[axis] - k) // by * by + 1
        x = jnp.concatenate([jax.lax.slice_in_dim(x, i, i + reach, by, axis) for i in range(k)], -1)
    return x


def to_cells(image: Shaped[Array, "h w c"], side: int) -> Shaped[Array, "i j n"]:
    """The pixels of each cell of side x side as channels; zeros where a cell hangs over the edge."""
    height, width, depth = image.shape
    x = jnp.pad(image, ((0, -height % side), (0, -width % side), (0, 0)))
    x = x.reshape(x.shape[0] // side, side, x.shape[1] // side, side, depth).swapaxes(1, 2)
    return x.reshape(*x.shape[:2], -1)


def to_pixels(x: Shaped[Array, "i j n"], side: int) -> Shaped[Array, "h w c"]:
    """The inverse: the channels of each cell as side x side pixels."""
    height, width, _ = x.shape
    return x.reshape(height, width, side, side, -1).swapaxes(1, 2).reshape(height * side, width * side, -1)


class Encoder(eqx.Module):
    """Features of an observation: every leaf as a vector, all concatenated, one dense layer.

    discrete values -> one-hot; vectors as they are; images [h, w, c] of at least 7 pixels a side -> convolutions.
    """

    convolutions: tuple[ConvNet | None, ...]
    dense: Linear
    spaces: tuple[Space, ...] = eqx.field(static=True)

    def __init__(self, spaces: PyTree, width: int, *, key: Key[Array, ""]):
        leaves = jax.tree.leaves(spaces, is_leaf=lambda x: isinstance(x, Space))
        if not leaves or not all(isinstance(leaf, Space) for leaf in leaves):
            raise ValueError(f"Encoder needs a Space or a tree of them, got {spaces!r}.")
        k_dense, *keys = jax.random.split(key, len(leaves) + 1)
        is_image = [leaf.n is None and len(leaf.shape) == 3 and min(leaf.shape[:2]) >= 7 for leaf in leaves]
        self.convolutions = tuple(
            ConvNet((leaf.shape[-1], 32, 32), key=k, strides=(2, 1)) if image else None
            for leaf, image, k in zip(leaves, is_image, keys, strict=True)
        )
        self.spaces = tuple(leaves)
        blank = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
        self.dense = Linear(jax.eval_shape(lambda obs: self._vector(obs), blank).size, width, k_dense)

    def _vector(self, obs: PyTree) -> Float[Array, " i"]:
        leaves = zip(jax.tree.leaves(obs), self.spaces, self.convolutions, strict=True)
        return jnp.concatenate([as_vector(x, space, net) for x, space, net in leaves])

    def __call__(self, obs: PyTree) -> Float[Array, " features"]:
        return jax.nn.relu(self.dense(self._vector(obs)))

    @property
    def size(self) -> int:
        """The number of features."""
        return int(self.dense.out_features)


def as_vector(x: Array, space: Space, convolutions: ConvNet | None = None) -> Float[Array, " i"]:
    """A leaf as the input of a dense layer: one-hot, bytes over their largest value, images by convolutions."""
    if space.n is not None:
        return jax.nn.one_hot(x, space.n).reshape(-1)
    x = x / (space.high or 255.0) if x.dtype == jnp.uint8 else x.astype(jnp.float32)
    return x.reshape(-1) if convolutions is None else convolutions(x)
