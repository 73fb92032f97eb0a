"""Convolutions in forms that are fast on a GPU: RAD's on blocks of four pixels, and transposed ones of stride 2.

A matmul is fast when both sides are long, and 32 channels are few. So a layer computes blocks of 2 x 2 pixels: its
kernel is the plain one, copied for each of the four pixels with zeros around it. That is 16 multiplications for 9, in
half the time: the gradients of a layer take 50 and 47 us instead of 131 and 91 (bfloat16, H200).
"""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Shaped, UInt8

from made.nets.layers import CHANNELS_LAST, EVEN, glorot, orthonormal, to_cells, to_pixels

KERNEL = 3
STRIDES = (2, 1, 1, 1)

Weights = Sequence[Float[Array, "k k i o"]]
Biases = Sequence[Float[Array, " o"]]


class Convolutions(eqx.Module):
    """Convolutions 3x3 with strides 2, 1, 1, 1 and a relu after each, flattened, of bytes divided by 255.

    The 255 divides the first weights, not the pixels: bytes are exact in bfloat16, fractions are not. On a GPU the
    output is in blocks of four pixels, which `reads_blocks` accounts for.
    """

    weights: tuple[Float[Array, "k k i o"], ...]
    biases: tuple[Float[Array, " o"], ...]

    def __init__(self, inputs: int, channels: int, *, key: Key[Array, ""]):
        shapes = [(KERNEL, KERNEL, channels if i else inputs, channels) for i in range(len(STRIDES))]
        keys = jax.random.split(key, len(STRIDES))
        gain = math.sqrt(2.0)  # of a relu
        self.weights = tuple(
            gain * orthonormal(k, (math.prod(shape[:3]), shape[3])).reshape(shape)
            for shape, k in zip(shapes, keys, strict=True)
        )
        self.biases = tuple(jnp.zeros(channels) for _ in STRIDES)

    def __call__(self, images: UInt8[Array, "b h w c"], dtype: Any) -> Float[Array, "b n"]:
        convolved = in_blocks if blockwise() else plain
        x = convolved(images, (self.weights[0] / 255, *self.weights[1:]), self.biases, dtype)
        return x.reshape(x.shape[0], -1)


def blockwise() -> bool:
    """Whether features are in blocks of four pixels, which is fast on a GPU."""
    return jax.default_backend() != "cpu"


def plain(images: Shaped[Array, "b h w c"], weights: Weights, biases: Biases, dtype: Any) -> Float[Array, "b i j o"]:
    """Convolutions 3x3 with strides 2, 1, 1, 1 and no padding, a relu after each."""
    x = images.astype(dtype)
    for weight, bias, stride in zip(weights, biases, STRIDES, strict=True):
        x = relu(_convolved(x, weight, dtype, stride) + bias.astype(dtype))
    return x


def folded(images: Shaped[Array, "b h w c"], weights: Weights, biases: Biases, dtype: Any) -> Float[Array, "b i j o"]:
    """The same as `plain` up to rounding, from blocks."""
    height, width = (side_after(n) for n in images.shape[1:3])
    return jax.vmap(lambda x: to_pixels(x, 2))(in_blocks(images, weights, biases, dtype))[:, :height, :width]


def side_after(n: int) -> int:
    """Pixels a side after all layers, from n."""
    return (n - KERNEL) // 2 + 1 - (KERNEL - 1) * (len(STRIDES) - 1)


def in_blocks(
    images: Shaped[Array, "b h w c"], weights: Weights, biases: Biases, dtype: Any
) -> Float[Array, "b i j n"]:
    """The same with the pixels of each block as channels; values beyond the edge are meaningless."""
    sides = [(n - KERNEL) // 2 + 1 for n in images.shape[1:3]]  # after the first layer, in pixels
    room = [4 * (-(-n // 2) + 1) for n in sides]  # a block after it covers 4 x 4 pixels before it, and reads one more
    more = [(0, n - m) for n, m in zip(room, images.shape[1:3], strict=True)]
    x = jax.vmap(lambda image: to_cells(image, 4))(jnp.pad(images, ((0, 0), *more, (0, 0)))).astype(dtype)
    for weight, bias, stride in zip(weights, biases, STRIDES, strict=True):
        x = relu(_convolved(x, for_blocks(weight, stride), dtype) + jnp.tile(bias, 4).astype(dtype))
    return x


def reads_blocks(weight: Float[Array, "n o"], height: int, width: int) -> Float[Array, "m o"]:
    """The weights of a dense layer on pixels, reordered for `in_blocks`: cheaper than reordering every image."""
    whole = weight.reshape(height, width, -1, weight.shape[-1])
    even = jnp.pad(whole, ((0, height % 2), (0, width % 2), (0, 0), (0, 0)))
    return even.reshape(even.shape[0] // 2, 2, -1, 2, *even.shape[2:]).swapaxes(1, 2).reshape(-1, weight.shape[-1])


def for_blocks(weight: Float[Array, "k k i o"], stride: int) -> Float[Array, "2 2 m n"]:
    """The kernel from blocks of 2 * stride pixels a side to blocks of 2; pixel (u, v) reads from stride * (u, v)."""
    side, (*_, i, o) = 2 * stride, weight.shape
    room = 2 * side - KERNEL
    around = lambda u: (stride * u, room - stride * u)  # noqa: E731
    four = [jnp.pad(weight, (around(u), around(v), (0, 0), (0, 0))) for u in (0, 1) for v in (0, 1)]
    wide = jnp.stack(four, 3).reshape(2, side, 2, side, i, 4 * o)
    return wide.swapaxes(1, 2).reshape(2, 2, side**2 * i, 4 * o)


@jax.custom_vjp
def relu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """max(x, 0) whose gradient needs the output alone, so that XLA fuses it into the convolution.

    The barrier keeps it so: XLA would replace max(x, 0) > 0 by x > 0, and then store x.
    """
    return jnp.maximum(x, 0)


def _kept(x: Float[Array, "..."]) -> tuple[Array, Array]:
    out = jax.lax.optimization_barrier(relu(x))
    return out, out


relu.defvjp(_kept, lambda out, grad: (jnp.where(out > 0, grad, 0),))


def _convolved(x: Array, weight: Array, dtype: Any, stride: int = 1) -> Array:
    return jax.lax.conv_general_dilated(
        x, weight.astype(dtype), (stride, stride), "VALID", dimension_numbers=CHANNELS_LAST
    )


def scatter_blocks(x: Float[Array, "b h w i"], weight: Float[Array, "k k i o"]) -> Float[Array, "b p q o"]:
    """A transposed convolution of stride 2 without padding, as a plain one that computes four pixels at each place.

        out[2q + p] = sum_j f[p + 2j] x[q - j],    f the flipped kernel,    x = 0 beyond the edges

    along each axis. The textbook form, with zeros between the pixels, mostly multiplies zeros. A single pixel needs
    only a matmul.
    """
    (k, _, i, o), (_, height, width, _) = weight.shape, x.shape
    turned = weight[::-1, ::-1]
    if height == width == 1:
        return (x.reshape(-1, i) @ turned.transpose(2, 0, 1, 3).reshape(i, -1)).reshape(-1, k, k, o)
    taps = -(-k // 2)
    even = jnp.pad(turned, ((0, k % 2), (0, k % 2), (0, 0), (0, 0))).reshape(taps, 2, taps, 2, i, o)
    kernel = even[::-1, :, ::-1].transpose(0, 2, 4, 1, 3, 5).reshape(taps, taps, i, 4 * o)
    # Padding to a multiple of 8 channels here avoids extra padding kernels of cuDNN on every call.
    kernel = jnp.pad(kernel, ((0, 0), (0, 0), (0, 0), (0, -4 * o % EVEN)))
    made = dilate(x, kernel)[..., : 4 * o]
    return jax.vmap(lambda image: to_pixels(image, 2))(made)[:, : 2 * height - 2 + k, : 2 * width - 2 + k]


def upconv3x3(layer: eqx.nn.ConvTranspose2d, x: Float[Array, "h w c"]) -> Float[Array, "i j o"]:
    """A transposed convolution 3x3 with stride 2 and padding 1 of one image, channels last."""
    (height, width, _), more = x.shape, layer.output_padding
    full = scatter_blocks(x[None], layer.weight.transpose(2, 3, 1, 0))[0]
    return full[1 : 2 * height + more[0], 1 : 2 * width + more[1]] + layer.bias.reshape(-1)  # type: ignore[union-attr]


@jax.custom_jvp
def dilate(x: Float[Array, "b h w i"], kernel: Float[Array, "t t i o"]) -> Float[Array, "b p q o"]:
    """A convolution of stride 1 with t - 1 zeros around x, with a kernel gradient that pads x explicitly.

    XLA compiles the kernel gradient of a padded convolution as a convolution whose kernel is the whole image, which is
    10 to 30 times slower (Dreamer's layers on a CPU). The gradient by x keeps the implicit padding: explicit zeros take
    twice as long on an H200. A JVP rule, because under a vmap over images it stays one convolution; a `custom_vjp`
    would compute a kernel gradient for each image and add them up.
    """
    room = ((kernel.shape[0] - 1, kernel.shape[0] - 1),) * 2
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), room, dimension_numbers=CHANNELS_LAST)


def _dilate_jvp(given: tuple[Array, Array], moved: tuple[Any, Any]) -> tuple[Array, Array]:
    (x, kernel), (by_x, by_kernel), zero = given, moved, jax.custom_derivatives.SymbolicZero
    room, parts = (kernel.shape[0] - 1,) * 2, []
    if not isinstance(by_x, zero):
        parts.append(dilate(by_x, kernel))
    if not isinstance(by_kernel, zero):
        # The barrier keeps XLA from turning the zeros into padding again.
        wide = jax.lax.optimization_barrier(jnp.pad(x, ((0, 0), room, room, (0, 0))))
        parts.append(_convolved(wide, by_kernel, by_kernel.dtype))
    return dilate(x, kernel), sum(parts[1:], parts[0])


dilate.defjvp(_dilate_jvp, symbolic_zeros=True)

DOWN = ((4, 1), (4, 2), (4, 4), (4, 8))  # (kernel, channels in units of `depth`) of the convolutions
UP = ((5, 4), (5, 2), (6, 1), (6, 0))  # of the transposed ones, 1 -> 5 -> 13 -> 30 -> 64; the last: those of the image
FEW = 8  # channels: matmuls over fewer leave most of a GPU idle


class Filters(eqx.Module):
    """One convolution of stride 2 without padding, or its transpose."""

    weight: Float[Array, "k k i o"]
    bias: Float[Array, " o"]

    def down(self, x: Float[Array, "b h w i"]) -> Float[Array, "b p q o"]:
        weight = self.weight.astype(x.dtype)
        if jax.default_backend() != "cpu" and x.shape[-1] < FEW:
            return from_cells(x, weight)
        return jax.lax.conv_general_dilated(x, weight, (2, 2), "VALID", dimension_numbers=CHANNELS_LAST)

    def up(self, x: Float[Array, "b h w i"]) -> Float[Array, "b p q o"]:
        return scatter_blocks(x, self.weight.astype(x.dtype))

    def biased(self, x: Float[Array, "b p q o"]) -> Float[Array, "b p q o"]:
        """x with the bias added to it."""
        return with_bias(x, self.bias) if self.bias.size < FEW else x + self.bias.astype(x.dtype)


def filters(sizes: tuple[tuple[int, int], ...], first: int, key: Key[Array, ""]) -> tuple[Filters, ...]:
    """Convolutions of those (kernel, channels), from `first` channels on."""
    made, keys = [], jax.random.split(key, len(sizes))
    for (kernel, channels), k in zip(sizes, keys, strict=True):
        made.append(Filters(glorot(k, (kernel, kernel, first, channels)), jnp.zeros(channels)))
        first = channels
    return tuple(made)


@jax.custom_vjp
def with_bias(x: Float[Array, "b h w o"], bias: Float[Array, " o"]) -> Float[Array, "b h w o"]:
    """x + bias for few channels: the gradient of the bias is summed over rows of w * o floats, then within the row.

    Sums down o columns leave a GPU idle: 0.94 ms for 2,550 images of 64 x 64 x 3 on an H200.
    """
    return x + bias.astype(x.dtype)


def _bias_gradient(bias: Float[Array, " o"], grad: Float[Array, "b h w o"]) -> tuple[Array, Array]:
    width, o = grad.shape[2:]
    row = grad.reshape(-1, width * o).sum(0, dtype=bias.dtype)  # in float32
    row = jax.lax.optimization_barrier(row)  # or XLA merges the two sums
    return grad, row.reshape(width, o).sum(0)


with_bias.defvjp(lambda x, bias: (with_bias(x, bias), bias), _bias_gradient)


def from_cells(x: Float[Array, "b h w i"], weight: Float[Array, "k k i o"]) -> Float[Array, "b p q o"]:
    """A convolution of stride 2, k even, as one of stride 1 on cells of 2 x 2 pixels with four times the channels."""
    k, _, i, o = weight.shape
    cells = jax.vmap(lambda image: to_cells(image, 2))(x)
    kernel = weight.reshape(k // 2, 2, k // 2, 2, i, o).swapaxes(1, 2).reshape(k // 2, k // 2, 4 * i, o)
    none, more = (0, 0), (0, -4 * i % EVEN)  # channels of zeros, for fast matmuls
    cells, kernel = jnp.pad(cells, (none, none, none, more)), jnp.pad(kernel, (none, none, more, none))
    made = jax.lax.conv_general_dilated(cells, kernel, (1, 1), "VALID", dimension_numbers=CHANNELS_LAST)
    height, width = ((n - k) // 2 + 1 for n in x.shape[1:3])
    return made[:, :height, :width]  # a row that hangs over an odd edge makes one too many
