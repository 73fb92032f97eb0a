"""Small operations on pytrees of arrays, and 64-bit hashes of them, which tell observations apart."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree, UInt32

Digest = UInt32[Array, "2"]


def select(condition: Bool[Array, "*n"], yes: PyTree, no: PyTree) -> PyTree:
    """`jnp.where` over whole trees; the condition's axes are the leading axes of every leaf."""

    def pick(a: Array, b: Array) -> Array:
        return jnp.where(condition.reshape(condition.shape + (1,) * (a.ndim - condition.ndim)), a, b)

    return jax.tree.map(pick, yes, no)


def flatten_leading(tree: PyTree, axes: int) -> PyTree:
    """Merge the first `axes` axes of every leaf into one: [T, N, ...] -> [T*N, ...]."""
    return jax.tree.map(lambda x: x.reshape((-1, *x.shape[axes:])), tree)


def over_leading(fn: Callable, axes: int) -> Callable:
    """Lift a function of one item to however many leading axes there are."""
    for _ in range(axes):
        fn = jax.vmap(fn)
    return fn


def is_key(x: Any) -> bool:
    """Whether an array, or the shape of one, is of random keys."""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def key_data(x: Any) -> Any:
    """The data of random keys; other arrays unchanged."""
    return jax.random.key_data(x) if is_key(x) else x


def wrap_key_data(data: Any, like: Any) -> Any:
    """The inverse of `key_data` for an array such as `like`; its shape alone means keys of the default kind."""
    if not is_key(like):
        return data
    impl = jax.random.key_impl(like) if isinstance(like, jax.Array) else None
    return jax.random.wrap_key_data(jnp.asarray(data), impl=impl)


def stack(trees: Sequence[PyTree]) -> PyTree:
    """One tree whose leaves have a new leading axis, from trees of the same structure."""

    def join(*leaves) -> Array:
        whole = jnp.stack([jnp.asarray(leaf) for leaf in leaves])
        # Python numbers leave a weak type, which recompiles.
        return whole if is_key(whole) else whole.astype(whole.dtype)

    return jax.tree.map(join, *trees)


def index(tree: PyTree, i: int | Array) -> PyTree:
    """The i-th slice of every leaf along its first axis."""
    return jax.tree.map(lambda x: x[i], tree)


def mix(x: UInt32[Array, "*b"]) -> UInt32[Array, "*b"]:
    """Murmur's finaliser: every bit of the input changes about half of the bits of the output."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def words(x: Array) -> UInt32[Array, " w"]:
    """The bits of one array, each entry as a word or two. Zero and minus zero are the same observation."""
    x = jnp.asarray(x).reshape(-1)
    if x.dtype.itemsize == 8:  # only where JAX was told to carry 64 bits
        x = x + 0.0 if jnp.issubdtype(x.dtype, jnp.floating) else x
        return jax.lax.bitcast_convert_type(x, jnp.uint32).reshape(-1)
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jax.lax.bitcast_convert_type(x.astype(jnp.float32) + 0.0, jnp.uint32)
    return x.astype(jnp.uint32)


def digest(tree: PyTree) -> Digest:
    """The hash of one observation: a sum, over its words, of each mixed with its own place and stream.

    Two words from two streams: 64 bits, so that among a million observations a collision has probability 3e-8.
    """
    flat = jnp.concatenate([words(leaf) for leaf in jax.tree.leaves(tree)])
    places = np.arange(1, flat.size + 1, dtype=np.uint32)
    streams = np.array([[0x9E3779B9], [0x7F4A7C15]], np.uint32)
    salt = (places * np.uint32(0x9E3779B1)) ^ streams
    # Mixed twice: in one round, equal changes at two places could cancel in the sum.
    return mix(mix(mix(flat ^ salt) + salt).sum(-1, dtype=jnp.uint32))
