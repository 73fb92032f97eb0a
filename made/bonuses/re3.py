"""Random encoders for efficient exploration: the distance to the nearest neighbours among what was seen."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from made import rings, trees
from made.bonuses.embedding import Embedding, check_on
from made.core import Bonus, EpisodeMemory, NoMemory


class RE3State(NamedTuple):
    """The fixed encoder, and the embeddings of the last observations."""

    encoder: Embedding
    ring: rings.Ring


class RE3(Bonus):
    """The distance to the k-th nearest neighbour, in the embedding of a fixed random encoder.

        b(s) = || phi(s) - phi(s)_{k-NN} ||_2,   or with `log`: log(1 + that)

    Seo et al., "State Entropy Maximization with Random Encoders for Efficient Exploration" (2021). The neighbours are
    the last `capacity` observations. A bonus is updated before it pays, so s itself is among them and the k-th other
    is the (k+1)-th smallest distance, as in the authors' code. While fewer are held, the farthest counts.
    """

    embedding: int = eqx.field(static=True, default=128)
    width: int = eqx.field(static=True, default=256)
    k: int = eqx.field(static=True, default=3)
    capacity: int = eqx.field(static=True, default=10_000)
    log: bool = eqx.field(static=True, default=False)
    on: str = eqx.field(static=True, default="obs")
    view: str = eqx.field(static=True, default="")
    hidden: int = eqx.field(static=True, default=1)  # dense layers between the encoder and the embedding
    chunk: int = eqx.field(static=True, default=256)  # observations compared at a time: bounds the distance matrix
    memory: EpisodeMemory = NoMemory()

    def __check_init__(self):
        check_on("RE3", self.on)
        if not 1 <= self.k < self.capacity or self.chunk < 1:
            raise ValueError(
                f"RE3 looks for the k-th neighbour among capacity observations, chunk at a time: it takes "
                f"1 <= k < capacity and chunk >= 1, got k={self.k}, capacity={self.capacity}, chunk={self.chunk}."
            )

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.on,)

    def init(self, key, spec):
        encoder = Embedding(spec.obs, self.embedding, self.width, hidden=self.hidden, view=self.view, key=key)
        return RE3State(encoder, rings.empty(jnp.zeros(self.embedding), self.capacity))

    def reward(self, state, batch, *, value=None):
        points = trees.over_leading(state.encoder, batch.reward.ndim)(getattr(batch, self.on))
        points = points.reshape(-1, self.embedding)
        norms = jnp.sum(state.ring.items**2, -1)  # once for all observations
        far = lambda x: distance_to(state.ring, norms, x, self.k)  # noqa: E731
        few = points.shape[0] <= self.chunk
        found = jax.vmap(far)(points) if few else jax.lax.map(far, points, batch_size=self.chunk)
        return (jnp.log1p(found) if self.log else found).reshape(batch.reward.shape)

    def update(self, state, batch, key):
        points = jax.vmap(state.encoder)(trees.flatten_leading(getattr(batch, self.on), 2))
        ring, _ = rings.push(state.ring, points)
        return RE3State(state.encoder, ring), {"re3/held": rings.size(ring).astype(float)}


def distance_to(ring: rings.Ring, norms: Float[Array, " n"], x: Float[Array, " d"], k: int) -> Float[Array, ""]:
    """The (k+1)-th smallest distance of x to the points of a ring, whose squared norms are given; 0 when it is empty.

    A product ranks the points, which is fast but inexact near zero; the distances to those chosen are exact.
    """
    items: Array = ring.items
    held = jnp.arange(items.shape[0]) < rings.size(ring)
    near = largest(jnp.where(held, 2 * items @ x - norms, -jnp.inf), k + 1)
    exact = jnp.sqrt(jnp.sum((items[near] - x) ** 2, -1))
    return jnp.max(jnp.where(held[near], exact, 0.0))


def largest(rank: Float[Array, " n"], k: int) -> Int[Array, " k"]:
    """Where the k largest numbers are.

    They lie in the k blocks whose maxima are largest, since each of those maxima is at least as large as anything in
    another block. So only sqrt(n) maxima and k blocks are sorted: on a CPU, sorting all takes longer than the product.
    """
    side = math.isqrt(rank.shape[0])
    blocks = jnp.pad(rank, (0, -rank.shape[0] % side), constant_values=-jnp.inf).reshape(-1, side)
    _, chosen = jax.lax.top_k(blocks.max(-1), min(k, blocks.shape[0]))
    _, at = jax.lax.top_k(blocks[chosen].reshape(-1), k)
    return jnp.minimum(chosen[at // side] * side + at % side, rank.shape[0] - 1)  # of the padding: any that is not held
