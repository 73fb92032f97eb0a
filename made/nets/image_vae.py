"""From an image of any size down to a few features and back, for the VAEs over pixels: ours, then the released one."""

import itertools
import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from made.nets.fast_conv import scatter_blocks
from made.nets.layers import ConvNet, affine, convolve, convolved, to_cells, to_pixels, windows

SMALLEST_IMAGE = 15  # pixels a side: the least that the released random encoder takes; smaller ones are read densely


CELL = 4  # pixels a side: our VAE works on cells of 4 x 4 pixels, with many channels nowhere but there


class ImageEncoder(eqx.Module):
    """An image as features: the pixels of each cell as one vector, a dense layer, a convolution 3x3 with stride 2."""

    layers: tuple[eqx.nn.Linear, ...]

    def __init__(self, depth: int, channels: tuple[int, int], key: Key[Array, ""]):
        k_cell, k_around = jax.random.split(key)
        cell, features = channels
        self.layers = (
            eqx.nn.Linear(CELL**2 * depth, cell, key=k_cell),
            eqx.nn.Linear(9 * cell, features, key=k_around),
        )

    def __call__(self, image: Float[Array, "h w c"]) -> Float[Array, " features"]:
        x = jax.nn.relu(affine(self.layers[0], to_cells(image, CELL)))
        return jax.nn.relu(conv3x3(self.layers[1], x, stride=2)).reshape(-1)


class ImageDecoder(eqx.Module):
    """The way back: a map of an eighth of the image, doubled by one convolution 3x3, another, and the pixels of cells.

    No layer with many channels runs at full size: 11M multiplications for 84 x 84 x 9, a seventh of `ReleaseDecoder`.
    """

    layers: tuple[eqx.nn.Linear, ...]
    shape: tuple[int, int, int] = eqx.field(static=True)
    start: tuple[int, int, int] = eqx.field(static=True)  # height, width, channels of what comes in

    def __init__(self, shape: tuple[int, int, int], channels: tuple[int, int], key: Key[Array, ""]):
        height, width, depth = shape
        keys = jax.random.split(key, 3)
        first, cell = channels
        self.shape, self.start = shape, (-(-height // (2 * CELL)), -(-width // (2 * CELL)), first)
        sizes = ((9 * first, 4 * cell), (9 * cell, cell), (cell, CELL**2 * depth))
        self.layers = tuple(eqx.nn.Linear(i, o, key=k) for (i, o), k in zip(sizes, keys, strict=True))

    @property
    def size(self) -> int:
        """How many features come in."""
        return math.prod(self.start)

    def __call__(self, x: Float[Array, " features"]) -> Float[Array, "h w c"]:
        height, width, _ = self.shape
        double, mix, paint = self.layers
        x = jax.nn.relu(x.reshape(self.start))
        x = jax.nn.relu(to_pixels(conv3x3(double, x), 2))
        x = jax.nn.relu(conv3x3(mix, x))
        return to_pixels(affine(paint, x), CELL)[:height, :width]  # cells that hang over the edge are cut


def conv3x3(layer: eqx.nn.Linear, x: Float[Array, "h w c"], stride: int = 1) -> Float[Array, "i j o"]:
    """A convolution 3x3 with padding 1, channels last: on a CPU as a product of matrices, which is faster there.

    On a GPU the product has nine times the image written and read again.
    """
    if jax.default_backend() != "cpu":
        kernel = layer.weight.T.reshape(3, 3, x.shape[-1], -1).swapaxes(0, 1)  # windows go down their columns
        return convolved(x, kernel, (stride, stride), ((1, 1), (1, 1))) + layer.bias  # type: ignore[operator]
    return affine(layer, windows(jnp.pad(x, ((1, 1), (1, 1), (0, 0))), (3, 3), (stride, stride)))


def release_encoder(channels: Sequence[int], key: Key[Array, ""]) -> ConvNet:
    """Convolutions 3x3 with stride 2 and padding 1, a relu after each: [h, w, c] -> ceil(h/8) x ceil(w/8) for three."""
    return ConvNet(channels, key=key, strides=[2] * (len(channels) - 1), padding=1)


class ReleaseDecoder(eqx.Module):
    """The released way back: three transposed convolutions 3x3 with stride 2, a relu after each, a convolution 2x2.

    A transposed convolution makes 2n - 1 or 2n of n, so three reach every size that three halvings come from. The
    layout of the authors' code, 13 - 26 - 51 - 101 - 100, is the case of 100 pixels.
    """

    layers: tuple[eqx.nn.ConvTranspose2d, ...]
    last: eqx.nn.Conv2d
    start: tuple[int, int, int] = eqx.field(static=True)  # channels, height, width of what comes in

    def __init__(self, shape: tuple[int, int, int], channels: Sequence[int], key: Key[Array, ""]):
        height, width, depth = shape
        keys = jax.random.split(key, 4)
        ways = [_way(n) for n in (height, width)]
        self.start = (channels[0], (height + 7) // 8, (width + 7) // 8)
        self.layers = tuple(
            eqx.nn.ConvTranspose2d(i, o, 3, 2, output_padding=(ways[0][at], ways[1][at]), padding=1, key=keys[at])
            for at, (i, o) in enumerate(itertools.pairwise(channels))
        )
        room = [(0, 1) if n % 8 == 0 else (0, 0) for n in (height, width)]  # a multiple of 8 has no larger way
        self.last = eqx.nn.Conv2d(channels[3], depth, 2, padding=room, key=keys[3])

    @property
    def size(self) -> int:
        """How many features come in."""
        channels, height, width = self.start
        return channels * height * width

    def __call__(self, x: Float[Array, " features"]) -> Float[Array, "h w c"]:
        x = jnp.moveaxis(x.reshape(self.start), 0, -1)
        for layer in self.layers:
            x = jax.nn.relu(upconv3x3(layer, x))
        return convolve(self.last, x)


def upconv3x3(layer: eqx.nn.ConvTranspose2d, x: Float[Array, "h w c"]) -> Float[Array, "i j o"]:
    """A transposed convolution 3x3 with stride 2 and padding 1 of one image, channels last."""
    (height, width, _), more = x.shape, layer.output_padding
    made = scatter_blocks(x[None], layer.weight.transpose(2, 3, 1, 0))[
        0, 1 : 2 * height + more[0], 1 : 2 * width + more[1]
    ]
    return made + layer.bias.reshape(-1)  # type: ignore[union-attr]


def _way(size: int) -> tuple[int, int, int]:
    """Which of the three steps must make 2n rather than 2n - 1, to end one above the size (or at a multiple of 8)."""
    end = size if size % 8 == 0 else size + 1
    over = end - (8 * ((size + 7) // 8) - 7)
    return over // 4, over // 2 % 2, over % 2
