"""What Dreamer's model sees of an observation: each leaf as numbers for a network, and a likelihood of its answer.

    kind     of what                                      shown as            the answer is
    pixels   images of 64 x 64 bytes                      x / 255 - 1/2       a mean: Gaussian of unit variance
    bytes    small images of bytes                        the same, flat      a mean: Gaussian, deviation `spread`
    values   discrete entries, bytes of a few values      one-hot             logits: categorical
    numbers  all else                                     as they are         a mean: Gaussian, deviation `spread`

The first is Dreamer v1's; the others are for grids and vectors.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from made.core import Space, dict_obs

SIDE = 64  # pixels a side of an image that is drawn
SMALL = (
    32  # values up to which a byte is a symbol and not a brightness; cells up to which an image needs no convolution
)


class Leaf(NamedTuple):
    """One leaf of an observation: how it is shown to a network and scored."""

    shape: tuple[int, ...]
    kind: str  # "pixels", "bytes", "values" or "numbers"
    n: int = 0  # how many values an entry takes, for "values"

    @property
    def size(self) -> int:
        """Numbers that it is shown as, and answered by."""
        return math.prod(self.shape) * max(self.n, 1)

    def show(self, x: Array) -> Float[Array, "*b size"]:
        """Any leading axes; pixels keep their shape."""
        if self.kind == "values":
            one_hot = jax.nn.one_hot(x, self.n)
            return one_hot.reshape(*one_hot.shape[: one_hot.ndim - len(self.shape) - 1], -1)
        shown = x / 255.0 - 0.5 if self.kind in ("pixels", "bytes") else x.astype(jnp.float32)
        return shown if self.kind == "pixels" else shown.reshape(*x.shape[: x.ndim - len(self.shape)], -1)

    def score(self, answer: Float[Array, "..."], x: Array, spread: float) -> Float[Array, "*b"]:
        """log p(x | answer), summed over entries.

            values:  sum_i log softmax(answer_i)[x_i]        else:  sum_i log N(shown_i; answer_i, spread^2)

        `spread` is 1 for pixels.
        """
        shown = self.show(x)
        if self.kind == "values":
            apart = lambda y: y.reshape(*y.shape[:-1], -1, self.n)  # noqa: E731
            return (jax.nn.log_softmax(apart(answer)) * apart(shown)).sum((-2, -1))
        spread = 1.0 if self.kind == "pixels" else spread
        log_density = -0.5 * ((shown - answer) / spread) ** 2 - math.log(spread * math.sqrt(2 * math.pi))
        return log_density.sum(tuple(range(-3, 0)) if self.kind == "pixels" else -1)

    def best(self, answer: Float[Array, "..."]) -> Float[Array, "..."]:
        """What the answer says is there, as `share` has it."""
        if self.kind == "values":
            return self.share(answer.reshape(*answer.shape[:-1], *self.shape, self.n).argmax(-1))
        shaped = answer.reshape(*answer.shape[: -3 if self.kind == "pixels" else -1], *self.shape)
        return shaped + 0.5 if self.kind in ("pixels", "bytes") else shaped

    def share(self, x: Array) -> Float[Array, "..."]:
        """Entries as shares of the largest brightness or symbol; numbers as they are."""
        if self.kind == "numbers":
            return x.astype(jnp.float32)
        return x / (float(max(self.n - 1, 1)) if self.kind == "values" else 255.0)


def leaf_of(space: Space) -> Leaf:
    """How a leaf is modelled; a clear refusal of images that the decoder cannot draw."""
    if space.n is not None:
        return Leaf(space.shape, "values", space.n)
    if jnp.dtype(space.dtype) != jnp.uint8:
        return Leaf(space.shape, "numbers")
    if space.high is not None and space.high < SMALL:
        return Leaf(space.shape, "values", int(space.high) + 1)
    if len(space.shape) != 3 or max(space.shape[:2]) <= SMALL:
        return Leaf(space.shape, "bytes")
    if space.shape[:2] != (SIDE, SIDE):
        raise ValueError(
            f"Dreamer draws images of {SIDE} x {SIDE} pixels, or up to {SMALL} a side, but an observation has "
            f"{space.shape}: render at size={SIDE}."
        )
    return Leaf(space.shape, "pixels")


def leaves_of(spaces: PyTree, view: str) -> tuple[Leaf, ...]:
    """The leaves of the part of an observation that is modelled."""
    found = jax.tree.leaves(dict_obs.looked_at(spaces, view), is_leaf=lambda x: isinstance(x, Space))
    return tuple(leaf_of(space) for space in found)


def split(leaves: tuple[Leaf, ...]) -> tuple[list[Leaf], int]:
    """(the images, how many numbers all else is shown as)."""
    return [x for x in leaves if x.kind == "pixels"], sum(x.size for x in leaves if x.kind != "pixels")
