"""A fixed-capacity first-in-first-out buffer as a pytree: recent windows, replay, nearest-neighbor memory."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, PyTree


class Ring(NamedTuple):
    """`items` leaves lead with [capacity]; `written` counts every item ever pushed."""

    items: PyTree
    written: Int[Array, ""]


class Pushed(NamedTuple):
    """What one push did, so that running statistics of the window can be kept up to date."""

    left: PyTree  # [M, ...] items that made room
    left_valid: Bool[Array, " M"]  # False where the slot was still empty
    came_valid: Bool[Array, " M"]  # False where a batch longer than the window dropped its own head


def empty(item: PyTree, capacity: int) -> Ring:
    """A ring for items shaped like `item`."""
    if capacity < 1:
        raise ValueError(f"A ring needs room for at least one item, got capacity={capacity}.")
    blank = jax.tree.map(lambda x: jnp.zeros((capacity, *jnp.shape(x)), jnp.asarray(x).dtype), item)
    return Ring(blank, jnp.zeros((), jnp.int32))


def capacity(ring: Ring) -> int:
    """How many items it has room for."""
    return jax.tree.leaves(ring.items)[0].shape[0]


def push(ring: Ring, batch: PyTree, window: Int[Array, ""] | int | None = None) -> tuple[Ring, Pushed]:
    """Store a batch [M, ...] in order, oldest out first.

    `window` (at most the capacity) may be traced, so that rings of different effective lengths run as lanes of one
    compiled program. All M writes happen at once: within one window their slots never collide.
    """
    window = jnp.asarray(capacity(ring) if window is None else window, jnp.int32)
    n = jax.tree.leaves(batch)[0].shape[0]
    order = ring.written + jnp.arange(n, dtype=jnp.int32)
    slot = order % window
    came_valid = jnp.arange(n) >= n - window  # a batch longer than the window overwrites its own head
    left = jax.tree.map(lambda x: x[slot], ring.items)
    left_valid = came_valid & (slot < jnp.minimum(ring.written, window))
    out_of_range = jnp.where(came_valid, slot, capacity(ring))  # dropped by mode="drop"
    items = jax.tree.map(lambda x, y: x.at[out_of_range].set(y, mode="drop"), ring.items, batch)
    return Ring(items, ring.written + n), Pushed(left, left_valid, came_valid)


def size(ring: Ring, window: Int[Array, ""] | int | None = None) -> Int[Array, ""]:
    """How many items it holds now."""
    return jnp.minimum(ring.written, capacity(ring) if window is None else window)


def sample(ring: Ring, n: int, key: Key[Array, ""], window: Int[Array, ""] | int | None = None) -> PyTree:
    """n items drawn uniformly with replacement. The ring must not be empty."""
    at = jax.random.randint(key, (n,), 0, jnp.maximum(size(ring, window), 1))
    return jax.tree.map(lambda x: x[at], ring.items)
