"""Convolutions down to a few features and back up to an image of any size, for the VAEs over pixels."""

import itertools
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from made.nets import ConvNet

SMALLEST_IMAGE = 15  # pixels a side: the least that the released random encoder takes; smaller ones are read densely


def down(channels: Sequence[int], key: Key[Array, ""]) -> ConvNet:
    """Convolutions 3x3 with stride 2 and padding 1, a relu after each: [h, w, c] -> ceil(h/8) x ceil(w/8) for three."""
    return ConvNet(channels, key=key, strides=[2] * (len(channels) - 1), padding=1)


class Up(eqx.Module):
    """The way back: three transposed convolutions 3x3 with stride 2, a relu after each, and a convolution 2x2.

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
        x = x.reshape(self.start)
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return jnp.moveaxis(self.last(x), 0, -1)


def _way(size: int) -> tuple[int, int, int]:
    """Which of the three steps must make 2n rather than 2n - 1, to end one above the size (or at a multiple of 8)."""
    end = size if size % 8 == 0 else size + 1
    over = end - (8 * ((size + 7) // 8) - 7)
    return over // 4, over // 2 % 2, over % 2
