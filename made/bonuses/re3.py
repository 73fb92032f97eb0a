"""Random encoders for efficient exploration: the distance to the nearest neighbors among past observations."""

import math
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from made.bonuses.embedding import ENDS, Embedding, EmbeddingBonus, RandomEncoder, StateBonus
from made.core import LearnsFrom, Transition, ring_buffer, trees
from made.core.config import check_numbers, setting
from made.nets.likelihood import observation_model

CACHED, LAUNCHED = 64**2, 128**2  # others at a time: as a cache holds on a CPU, as keep a GPU busy; squares: `largest`


class RE3State(NamedTuple):
    """The fixed encoder, and the embeddings of the last observations."""

    encoder: Embedding | RandomEncoder
    ring: ring_buffer.Ring


class RE3(StateBonus, EmbeddingBonus):
    """The distance to the k-th nearest neighbor, in the embedding of a fixed random encoder.

        b(s) = || phi(s) - phi(s)_{k-NN} ||_2,   or with `log`: log(1 + that)

    Seo et al., "State Entropy Maximization with Random Encoders for Efficient Exploration" (2021). The neighbors are
    the last `capacity` observations. A bonus is updated before it is read, so s itself is among them and the k-th other
    is the (k+1)-th smallest distance, as in the authors' code. While fewer are held, the farthest counts.
    `released` embeds by the authors' encoder, four convolutions, a dense layer, layer norm and tanh, from framework
    defaults; `embedding` is 50 there, and the neighbors are the whole replay.
    """

    k: int = eqx.field(static=True, default=3)
    capacity: int = eqx.field(static=True, default=10_000)
    log: bool = eqx.field(static=True, default=False)
    on: str = setting("obs", ENDS, static=True)
    chunk: int = eqx.field(static=True, default=512)  # observations compared at a time, with so many others at
    block: int = eqx.field(static=True, default=0)  # a time: they bound the matrix of distances; 0: as suits the device
    released: bool = eqx.field(static=True, default=False)
    learns_from: ClassVar[LearnsFrom] = "new"

    def __check_init__(self):
        check_numbers(self)
        if not 1 <= self.k < min(self.capacity, self.block or self.capacity) or self.chunk < 1:
            raise ValueError(
                f"RE3 looks for the k-th neighbor of chunk observations among capacity others, block at a time: it "
                f"takes 1 <= k < capacity, k < block (or block=0) and chunk >= 1, got k={self.k}, "
                f"capacity={self.capacity}, block={self.block}, chunk={self.chunk}."
            )

    def init(self, key, spec):
        if self.released:
            encoder = RandomEncoder(observation_model(spec, self.view), self.embedding, key)
        else:
            encoder = self.embedding_of(spec, key)
        return RE3State(encoder, ring_buffer.empty(jnp.zeros(self.embedding), self.capacity))

    def reward(self, state, batch, *, value=None):
        return self.reward_at(state, self.points(state, batch))

    def points(self, state: RE3State, batch: Transition) -> Float[Array, "*b d"]:
        """The embeddings of a batch."""
        return trees.over_leading(state.encoder, batch.reward.ndim)(getattr(batch, self.on))

    def reward_at(self, state: RE3State, points: Float[Array, "*b d"]) -> Float[Array, "*b"]:
        """The reward at those embeddings."""
        shape, points = points.shape[:-1], points.reshape(-1, self.embedding)
        block = self.block or (CACHED if jax.default_backend() == "cpu" else LAUNCHED)
        far = lambda some: distances(state.ring, some, self.k, block)  # noqa: E731
        found = jnp.concatenate([far(points[i : i + self.chunk]) for i in range(0, points.shape[0], self.chunk)])
        return (jnp.log1p(found) if self.log else found).reshape(shape)

    def update(self, state, batch, key):
        points = jax.vmap(state.encoder)(trees.flatten_leading(getattr(batch, self.on), 2))
        ring, _ = ring_buffer.push(state.ring, points)
        return RE3State(state.encoder, ring), {"re3/held": ring_buffer.size(ring).astype(float)}


def distances(
    ring: ring_buffer.Ring, queries: Float[Array, "b d"], k: int, block: int, all_blocks: bool | None = None
) -> Float[Array, " b"]:
    """The (k+1)-th smallest distance of each query to the points of a ring; 0 when it is empty.

    Block after block of points, so that memory grows with b * block and not with b * capacity. A product ranks the
    points, 2 x.p - p.p, which is fast but rounded by as much as p.p is: so x and p are seen from the middle of the
    queries, near which points of one random encoder lie. The distances to those chosen are exact.
    With `all_blocks`, the default on a GPU, empty blocks are searched too. Otherwise the number of blocks depends on
    data, and the host waits for the device at each block: 0.5 of the 1.1 ms that RE3 adds to an update on an H200.
    """
    points: Array = ring.items
    n, block, held = points.shape[0], min(block, points.shape[0]), ring_buffer.size(ring)
    all_blocks = jax.default_backend() != "cpu" if all_blocks is None else all_blocks
    middle = queries.mean(0)
    centred = queries - middle

    def look(i: Array, best: tuple[Array, Array]) -> tuple[Array, Array]:
        """(how the nearest points so far rank for each query, where they are) [b, k + 1] with one more block."""
        begin = i * block
        start = jnp.minimum(begin, n - block)  # the last block reaches back into the one before it
        some = jax.lax.dynamic_slice_in_dim(points, start, block) - middle
        number = start + jnp.arange(block)
        products = jnp.matmul(centred, some.T, precision="highest")  # less would mix up near neighbors
        rank = 2 * products - jnp.sum(some**2, -1)
        rank = jnp.where((number >= begin) & (number < held), rank, -jnp.inf)
        near = jax.vmap(lambda row: largest(row, k + 1))(rank)
        ranks = jnp.concatenate([best[0], jnp.take_along_axis(rank, near, -1)], -1)
        rank, chosen = jax.lax.top_k(ranks, k + 1)
        return rank, jnp.take_along_axis(jnp.concatenate([best[1], start + near], -1), chosen, -1)

    none = jnp.full((queries.shape[0], k + 1), -jnp.inf), jnp.zeros((queries.shape[0], k + 1), jnp.int32)
    rank, at = jax.lax.fori_loop(0, -(-(n if all_blocks else held) // block), look, none)
    exact = jnp.sqrt(jnp.sum((points[at] - queries[:, None]) ** 2, -1))
    return jnp.max(jnp.where(jnp.isfinite(rank), exact, 0.0), -1)


def largest(rank: Float[Array, " n"], k: int) -> Int[Array, " k"]:
    """Where the k largest numbers are.

    They lie in the k blocks whose maxima are largest, since each of those maxima is at least as large as anything in
    another block. So only sqrt(n) maxima and k blocks are sorted: on a CPU, sorting all takes longer than the product.
    """
    n, side = rank.shape[0], math.isqrt(rank.shape[0])
    blocks = jnp.pad(rank, (0, -n % side), constant_values=-jnp.inf).reshape(-1, side)
    _, chosen = jax.lax.top_k(blocks.max(-1), min(k, blocks.shape[0]))
    _, at = jax.lax.top_k(blocks[chosen].reshape(-1), k)
    where = chosen[at // side] * side + at % side
    return where if n % side == 0 else jnp.where(where < n, where, jnp.argmin(rank))  # of the padding: one as far
