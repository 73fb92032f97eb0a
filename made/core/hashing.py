"""64 bits that tell observations apart: for counts of visits where a table over states is out of reach."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, UInt32

Digest = UInt32[Array, "2"]


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
