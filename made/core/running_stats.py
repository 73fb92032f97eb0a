"""Running mean and variance as a pytree (Chan, Golub and LeVeque's merge of two samples)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class Moments(NamedTuple):
    """Sufficient statistics of everything merged so far."""

    count: Float[Array, ""]
    mean: Float[Array, "*shape"]
    squares: Float[Array, "*shape"]  # sum of squared distances from the mean


def empty(shape: tuple[int, ...] = ()) -> Moments:
    """Statistics of nothing."""
    return Moments(jnp.zeros(()), jnp.zeros(shape), jnp.zeros(shape))


def merge(moments: Moments, batch: Float[Array, "..."]) -> Moments:
    """Take in a batch whose trailing axes are the shape of the statistics.

    mean = (n mean_a + m mean_b) / (n + m);  squares = squares_a + squares_b + delta^2 n m / (n + m)
    """
    batch = batch.reshape((-1, *moments.mean.shape))
    m = batch.shape[0]
    batch_mean = batch.mean(0)
    total = moments.count + m
    delta = batch_mean - moments.mean
    mean = moments.mean + delta * (m / total)
    squares = moments.squares + ((batch - batch_mean) ** 2).sum(0) + delta**2 * (moments.count * m / total)
    return Moments(total, mean, squares)


def variance(moments: Moments) -> Float[Array, "*shape"]:
    """Population variance; one before any data, so that dividing by its root changes nothing."""
    return jnp.where(moments.count > 0, moments.squares / jnp.maximum(moments.count, 1), 1.0)


def deviation(moments: Moments, floor: float = 1e-8) -> Float[Array, "*shape"]:
    """Population standard deviation, kept from zero by `floor`."""
    return jnp.sqrt(jnp.maximum(variance(moments), floor**2))


def scale(moments: Moments) -> Float[Array, "*shape"]:
    """Something safe to divide by: the deviation, or one where nothing varies beyond rounding.

    A floor would not do: values that have all been equal so far would be blown up by one over it.
    """
    spread = jnp.sqrt(variance(moments))
    return jnp.where(spread > 1e-5 * jnp.abs(moments.mean), spread, 1.0)
