"""The networks of Dreamer: dense layers, an encoder and a decoder of observations.

Everything takes any leading axes, channels last. Parameters are float32; products may be computed in bfloat16.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from made.core import Space, dict_obs
from made.core.config import COUNT, POSITIVE, check_numbers
from made.nets.distributions import OneHot, TanhNormal
from made.nets.fast_conv import DOWN, UP, Filters, filters
from made.nets.layers import MLP, Dense, check_precision, glorot_dense

SIDE = 64  # pixels a side of an image that the decoder reconstructs
SMALL = 32  # a byte of fewer values is a symbol; an image of at most so many cells a side needs no convolution


class Layout(eqx.Module):
    """Sizes of the networks; the defaults are those of Dreamer v1.

    `view` is the part of an observation that is modeled. `Leaf` says how.
    """

    stoch: int = eqx.field(static=True, default=30)
    deter: int = eqx.field(static=True, default=200)
    hidden: int = eqx.field(static=True, default=200)  # of the layers within the recurrent model
    units: int = eqx.field(static=True, default=400)  # of the layers of the heads
    depth: int = eqx.field(static=True, default=32)  # channels of the first convolution
    reward: int = eqx.field(static=True, default=2)  # hidden layers of each head
    ends: int = eqx.field(static=True, default=3)
    value: int = eqx.field(static=True, default=3)
    actor: int = eqx.field(static=True, default=4)
    spread: float = eqx.field(static=True, default=0.1)
    view: str = eqx.field(static=True, default="")
    precision: str = eqx.field(static=True, default="float32")  # or "bfloat16": of the products

    def __check_init__(self):
        sizes = ("stoch", "deter", "hidden", "units", "depth", "reward", "ends", "value", "actor")
        check_numbers(self, {COUNT: sizes, POSITIVE: ("spread",)})
        check_precision(self)

    @property
    def dtype(self) -> Any:
        """What products are computed in."""
        return jnp.dtype(self.precision)

    @property
    def features(self) -> int:
        """How many numbers describe a latent state."""
        return self.stoch + self.deter


def mlp(inputs: int, width: int, depth: int, outputs: int, *, key: Key[Array, ""]) -> MLP:
    """`depth` hidden layers with an ELU after each."""
    return MLP((inputs, *[width] * depth, outputs), key=key, activation=jax.nn.elu, layer=glorot_dense)


class Leaf(NamedTuple):
    """One leaf of an observation: how it is read and scored.

        kind     leaf                                         input               output
        pixels   images of 64 x 64 bytes                      x / 255 - 1/2       a mean: Gaussian of unit variance
        bytes    small images of bytes                        the same, flat      a mean: Gaussian, std `spread`
        values   discrete entries, bytes of a few values      one-hot             logits: categorical
        numbers  all else                                     as they are         a mean: Gaussian, std `spread`

    The first is Dreamer v1's; the others are for grids and vectors.
    """

    shape: tuple[int, ...]
    kind: str  # "pixels", "bytes", "values" or "numbers"
    n: int = 0  # how many values an entry takes, for "values"

    @property
    def size(self) -> int:
        """The length of its input and output."""
        return math.prod(self.shape) * max(self.n, 1)

    def show(self, x: Array) -> Float[Array, "*b size"]:
        """The input of the network, with any leading axes; pixels keep their shape."""
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
        """The most likely leaf, on the scale of `share`."""
        if self.kind == "values":
            return self.share(answer.reshape(*answer.shape[:-1], *self.shape, self.n).argmax(-1))
        shaped = answer.reshape(*answer.shape[: -3 if self.kind == "pixels" else -1], *self.shape)
        return shaped + 0.5 if self.kind in ("pixels", "bytes") else shaped

    def share(self, x: Array) -> Float[Array, "..."]:
        """Entries divided by the largest brightness or symbol; numbers as they are."""
        if self.kind == "numbers":
            return x.astype(jnp.float32)
        return x / (float(max(self.n - 1, 1)) if self.kind == "values" else 255.0)


def leaf_of(space: Space) -> Leaf:
    """How a leaf is modeled. Raises ValueError for images that the decoder cannot reconstruct."""
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
            f"Dreamer reconstructs images of {SIDE} x {SIDE} pixels, or up to {SMALL} a side, but an observation has "
            f"{space.shape}: render at size={SIDE}."
        )
    return Leaf(space.shape, "pixels")


def leaves_of(spaces: PyTree, view: str) -> tuple[Leaf, ...]:
    """The leaves of the part of an observation that is modeled."""
    found = jax.tree.leaves(dict_obs.looked_at(spaces, view), is_leaf=lambda x: isinstance(x, Space))
    return tuple(leaf_of(space) for space in found)


def split(leaves: tuple[Leaf, ...]) -> tuple[list[Leaf], int]:
    """(the images, the total size of all other leaves)."""
    return [x for x in leaves if x.kind == "pixels"], sum(x.size for x in leaves if x.kind != "pixels")


class Encoder(eqx.Module):
    """Features of an observation: images by four convolutions (4x4, stride 2, relu), all else by two dense layers."""

    convolutions: tuple[tuple[Filters, ...], ...]  # a stack for each image
    others: MLP | None
    leaves: tuple[Leaf, ...] = eqx.field(static=True)
    layout: Layout = eqx.field(static=True)

    def __init__(self, spaces: PyTree, layout: Layout, *, key: Key[Array, ""]):
        k_conv, k_others = jax.random.split(key)
        self.layout, self.leaves = layout, leaves_of(spaces, layout.view)
        images, size = split(self.leaves)
        sizes = tuple((kernel, times * layout.depth) for kernel, times in DOWN)
        keys = jax.random.split(k_conv, max(len(images), 1))
        self.convolutions = tuple(filters(sizes, leaf.shape[-1], k) for leaf, k in zip(images, keys, strict=False))
        self.others = mlp(size, layout.units, 1, layout.units, key=k_others) if size else None

    @property
    def size(self) -> int:
        """The number of features: 32 * depth for each image, and `units` for all else."""
        return len(self.convolutions) * 32 * self.layout.depth + (self.layout.units if self.others else 0)

    def __call__(self, obs: PyTree) -> Float[Array, "*b size"]:
        parts, vectors, stacks = [], [], iter(self.convolutions)
        for leaf, x in zip(self.leaves, jax.tree.leaves(dict_obs.looked_at(obs, self.layout.view)), strict=True):
            shown = leaf.show(x)
            if leaf.kind == "pixels":
                parts.append(self._convolved(next(stacks), shown))
            else:
                vectors.append(shown)
        if self.others is not None:
            parts.append(jax.nn.elu(self.others(jnp.concatenate(vectors, -1), self.layout.dtype)))
        return jnp.concatenate(parts, -1)

    def _convolved(self, stack: tuple[Filters, ...], images: Float[Array, "*b h w c"]) -> Float[Array, "*b n"]:
        x = images.reshape(-1, *images.shape[-3:]).astype(self.layout.dtype)
        for layer in stack:
            x = jax.nn.relu(layer.down(x) + layer.bias.astype(x.dtype))
        return x.reshape(*images.shape[:-3], -1).astype(jnp.float32)


class Decoder(eqx.Module):
    """Observations from latent states: images by four transposed convolutions, all else by dense layers."""

    starts: tuple[Dense, ...]
    convolutions: tuple[tuple[Filters, ...], ...]
    others: MLP | None
    leaves: tuple[Leaf, ...] = eqx.field(static=True)
    layout: Layout = eqx.field(static=True)

    def __init__(self, spaces: PyTree, layout: Layout, *, key: Key[Array, ""]):
        k_start, k_conv, k_others = jax.random.split(key, 3)
        self.layout, self.leaves = layout, leaves_of(spaces, layout.view)
        images, size = split(self.leaves)
        wide, many = 32 * layout.depth, max(len(images), 1)
        keys = jax.random.split(k_start, many), jax.random.split(k_conv, many)
        self.starts = tuple(glorot_dense(layout.features, wide, k) for _, k in zip(images, keys[0], strict=False))
        sizes = lambda leaf: tuple((kernel, times * layout.depth or leaf.shape[-1]) for kernel, times in UP)  # noqa: E731
        self.convolutions = tuple(filters(sizes(leaf), wide, k) for leaf, k in zip(images, keys[1], strict=False))
        self.others = mlp(layout.features, layout.units, 2, size, key=k_others) if size else None

    def __call__(self, features: Float[Array, "*b f"]) -> list[Array]:
        """The output for each leaf."""
        dtype, stacks = self.layout.dtype, iter(zip(self.starts, self.convolutions, strict=True))
        vectors = [] if self.others is None else self.others(features, dtype)
        answers, at = [], 0
        for leaf in self.leaves:
            if leaf.kind == "pixels":
                answers.append(self._drawn(*next(stacks), features))
            else:
                answers.append(vectors[..., at : at + leaf.size])  # type: ignore[call-overload]
                at += leaf.size
        return answers

    def _drawn(self, start: Dense, stack: tuple[Filters, ...], features: Float[Array, "*b f"]) -> Array:
        dtype = self.layout.dtype
        x = start(features, dtype).reshape(-1, 1, 1, start.bias.size).astype(dtype)
        for layer in stack:
            x = layer.biased(layer.up(x))
            x = x if layer is stack[-1] else jax.nn.relu(x)
        return x.reshape(*features.shape[:-1], *x.shape[1:]).astype(jnp.float32)

    def score(self, features: Float[Array, "*b f"], obs: PyTree) -> Float[Array, "*b"]:
        """log p(observation | latent state), summed over its leaves."""
        seen = jax.tree.leaves(dict_obs.looked_at(obs, self.layout.view))
        each = zip(self.leaves, self(features), seen, strict=True)
        return jnp.stack([leaf.score(answer, x, self.layout.spread) for leaf, answer, x in each]).sum(0)


MEAN_SCALE, START, LEAST = 5.0, 5.0, 1e-4  # largest mean, initial and least standard deviation, before the tanh


class Actor(eqx.Module):
    """pi(a | latent state)."""

    net: MLP
    discrete: bool = eqx.field(static=True)
    layout: Layout = eqx.field(static=True)

    def __init__(self, layout: Layout, action: Space, *, key: Key[Array, ""]):
        self.layout, self.discrete = layout, action.n is not None
        outputs = action_size(action) if self.discrete else 2 * action_size(action)
        self.net = mlp(layout.features, layout.units, layout.actor, outputs, key=key)

    def __call__(self, features: Float[Array, "*b f"]) -> TanhNormal | OneHot:
        out = self.net(features, self.layout.dtype)
        if self.discrete:
            return OneHot(out)
        mean, raw = jnp.split(out, 2, -1)
        start = math.log(math.expm1(START))  # softplus of it is the deviation at the start
        std = jax.nn.softplus(raw + start) + LEAST
        return TanhNormal(MEAN_SCALE * jnp.tanh(mean / MEAN_SCALE), std, jnp.log(std))


def action_size(action: Space) -> int:
    """The length of an action as a vector."""
    return action.n or math.prod(action.shape)


def as_vectors(action: Array, space: Space) -> Float[Array, "*b a"]:
    """Actions as vectors: one-hot if discrete."""
    return action.astype(jnp.float32) if space.n is None else jax.nn.one_hot(action, space.n)
