"""Small operations on pytrees of arrays."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree


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
