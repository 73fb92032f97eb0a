"""The observation model of the densities: pairs (observation, action) as network inputs, a likelihood for each leaf.

The network reads each leaf as a vector and outputs a vector of the same length:

    kind     leaf                                        input                output
    values   discrete entries and symbolic grids         one-hot              logits: a categorical likelihood
    bytes    pixels                                      divided by 255       a mean: Gaussian, one learned scale a leaf
    numbers  vectors of reals                            standardized         a mean: Gaussian, a learned scale an entry

Log-likelihoods are summed over entries, never averaged: an average amounts to a Gaussian of variance Dim / 2, whose
optimum ignores the latent.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from made.core import ImageSpace, Space, Spec, dict_obs, running_stats

SYMBOLS = (11, 6, 4)  # MiniGrid's objects, colors and states; a view of the full grid adds the agent's four directions
LARGEST_GRID = 32  # bytes [w, h, channels] up to this size are a symbolic grid, unless an `ImageSpace`; else pixels
LEAST_SCALE = 0.02  # of a Gaussian, so that an exact reconstruction has a finite density
LARGEST = 1e6  # numbers are clipped here, standardized ones at `FAR`
FAR = 10.0


class Leaf(NamedTuple):
    """One leaf of (observation, action): how it is stored, read and scored."""

    shape: tuple[int, ...]
    kind: str  # "values", "bytes" or "numbers"
    sizes: tuple[int, ...] = ()  # how many values each channel of an entry takes, for "values"

    @property
    def dtype(self) -> Any:
        """The smallest type that stores it."""
        if self.kind == "numbers":
            return jnp.float32
        return jnp.uint8 if self.kind == "bytes" or max(self.sizes) <= 256 else jnp.int32

    @property
    def size(self) -> int:
        """The length of its vector."""
        cells = math.prod(self.shape)
        return cells // len(self.sizes) * sum(self.sizes) if self.kind == "values" else cells

    @property
    def scales(self) -> int:
        """The number of learned scales."""
        return {"values": 0, "bytes": 1, "numbers": self.size}[self.kind]

    def show(self, x: Array, seen: PyTree) -> Float[Array, " size"]:
        """One item as a network input; `seen` are the running moments of "numbers"."""
        if self.kind == "bytes":
            return x.reshape(-1) / 255.0
        if self.kind == "numbers":
            z = (jnp.clip(x, -LARGEST, LARGEST).reshape(-1) - seen.mean) / running_stats.deviation(seen, 1e-3)
            return jnp.clip(z, -FAR, FAR)
        channels = x.reshape(-1, len(self.sizes)).astype(jnp.int32)
        ones = [jax.nn.one_hot(jnp.clip(channels[:, i], 0, n - 1), n) for i, n in enumerate(self.sizes)]
        return jnp.concatenate(ones, -1).reshape(-1)

    def score(self, answer: Float[Array, " size"], shown: Float[Array, " size"], log_scale: Array) -> Float[Array, ""]:
        """log p(x | answer), summed over entries.

        values: sum_i log softmax(answer_i)[x_i];  else: sum_i log N(x_i; answer_i, (0.02 + exp(log_scale))^2)
        """
        if self.kind == "values":
            ends = np.cumsum(self.sizes)[:-1].tolist()  # of the channels
            channels = (jnp.split(x.reshape(-1, sum(self.sizes)), ends, axis=-1) for x in (answer, shown))
            pairs = zip(*channels, strict=True)
            return sum(((a * x).sum() - jax.nn.logsumexp(a, -1).sum() for a, x in pairs), start=jnp.zeros(()))
        scale = jnp.broadcast_to(LEAST_SCALE + jnp.exp(log_scale), shown.shape)
        return jax.scipy.stats.norm.logpdf(shown, answer, scale).sum()


class ObservationModel(NamedTuple):
    """All leaves of (observation, action) in order, the action last. Plain data, so it may be a static field."""

    leaves: tuple[Leaf, ...]
    view: str = ""

    @property
    def size(self) -> int:
        """The length of the vector of a pair."""
        return sum(leaf.size for leaf in self.leaves)

    def keep(self, obs: PyTree, action: Array) -> tuple[Array, ...]:
        """The pair as it is stored, with any leading axes."""
        parts = [*jax.tree.leaves(dict_obs.looked_at(obs, self.view)), action]
        return tuple(jnp.asarray(x).astype(leaf.dtype) for x, leaf in zip(parts, self.leaves, strict=True))

    def blank(self) -> tuple[Array, ...]:
        """One stored pair of zeros, for a ring buffer."""
        return tuple(jnp.zeros(leaf.shape, leaf.dtype) for leaf in self.leaves)

    def unseen(self) -> tuple[PyTree, ...]:
        """The moments of each leaf before any data; () for leaves that need none."""
        return tuple(running_stats.empty((leaf.size,)) if leaf.kind == "numbers" else () for leaf in self.leaves)

    def look(self, seen: tuple[PyTree, ...], kept: tuple[Array, ...]) -> tuple[PyTree, ...]:
        """The moments after a batch of stored pairs [M, ...]."""
        fresh = (jnp.clip(x, -LARGEST, LARGEST).reshape(x.shape[0], -1) for x in kept)
        return tuple(running_stats.merge(old, x) if old else () for old, x in zip(seen, fresh, strict=True))

    def show(self, kept: tuple[Array, ...], seen: tuple[PyTree, ...]) -> Float[Array, " size"]:
        """One stored pair as a network input."""
        return jnp.concatenate([leaf.show(x, s) for leaf, x, s in zip(self.leaves, kept, seen, strict=True)])

    def parts(self, x: Float[Array, " size"], sizes: tuple[int, ...] | None = None) -> list[Array]:
        """A vector split into the parts of the leaves."""
        ends = np.cumsum(sizes or [leaf.size for leaf in self.leaves])[:-1]
        return jnp.split(x, ends.tolist())

    def log_likelihood(self, answer: Float[Array, " size"], shown: Float[Array, " size"], log_scale: Array) -> Array:
        """log p(observation, action | answer): the sum over leaves."""
        scales = jnp.split(log_scale, np.cumsum([leaf.scales for leaf in self.leaves])[:-1].tolist())
        each = zip(self.leaves, self.parts(answer), self.parts(shown), scales, strict=True)
        return sum((leaf.score(a, x, s) for leaf, a, x, s in each), start=jnp.zeros(()))


def observation_model(spec: Spec, view: str = "", symbols: tuple[int, ...] = SYMBOLS) -> ObservationModel:
    """The leaves that a density over (observation, action) models; `symbols=()` takes every byte image as pixels."""
    spaces = jax.tree.leaves(dict_obs.looked_at(spec.obs, view), is_leaf=lambda x: isinstance(x, Space))
    return ObservationModel(tuple(leaf_of(space, symbols) for space in (*spaces, spec.action)), view)


def leaf_of(space: Space, symbols: tuple[int, ...] = SYMBOLS) -> Leaf:
    """How a density models this space."""
    shape = space.shape
    if space.n is not None:
        return Leaf(shape, "values", (space.n,))
    if jnp.dtype(space.dtype) == jnp.uint8:
        small = len(shape) == 3 and max(shape) <= LARGEST_GRID and shape[-1] == len(symbols)
        symbolic = small and not isinstance(space, ImageSpace)
        return Leaf(shape, "values", tuple(symbols)) if symbolic else Leaf(shape, "bytes")
    if jnp.issubdtype(space.dtype, jnp.floating):
        return Leaf(shape, "numbers")
    raise ValueError(
        f"A density models discrete values (n given), bytes and reals; this space is {space}. Say how many values it "
        "takes, n=..., or choose another part of the observation, view='...'."
    )
