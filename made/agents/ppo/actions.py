"""Distributions over actions: categorical where they are discrete, a diagonal Gaussian where they are continuous."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from made.core import Space


class Categorical(eqx.Module):
    """One choice of n for each entry of an action; the entries are independent."""

    logits: Float[Array, "*b n"]
    entries: int = eqx.field(static=True)  # trailing axes of an action

    def sample(self, key: Key[Array, ""]) -> Array:
        return jax.random.categorical(key, self.logits).astype(jnp.int32)

    def mode(self) -> Array:
        return jnp.argmax(self.logits, -1).astype(jnp.int32)

    def log_prob(self, action: Array) -> Array:
        each = jnp.take_along_axis(jax.nn.log_softmax(self.logits), action[..., None], -1)[..., 0]
        return each.sum(range(each.ndim - self.entries, each.ndim))

    def entropy(self) -> Array:
        log_p = jax.nn.log_softmax(self.logits)
        each = -jnp.sum(jnp.exp(log_p) * log_p, -1)
        return each.sum(range(each.ndim - self.entries, each.ndim))


class DiagonalGaussian(eqx.Module):
    """Independent normal entries, in units where the bounds of an action are -1 and 1."""

    mean: Float[Array, "*b a"]
    log_std: Float[Array, " a"]

    def sample(self, key: Key[Array, ""]) -> Array:
        return self.mean + jnp.exp(self.log_std) * jax.random.normal(key, self.mean.shape)

    def mode(self) -> Array:
        return self.mean

    def log_prob(self, action: Array) -> Array:
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return -jnp.sum(0.5 * z**2 + self.log_std + 0.5 * math.log(2 * math.pi), -1)

    def entropy(self) -> Array:
        each = self.log_std + 0.5 * math.log(2 * math.pi * math.e)
        return jnp.broadcast_to(each.sum(), self.mean.shape[:-1])


Distribution = Categorical | DiagonalGaussian


def is_discrete(space: Space) -> bool:
    return space.n is not None


def check_actions(space: Space) -> None:
    """Raise ValueError for continuous actions without bounds."""
    if not is_discrete(space) and (space.low is None or space.high is None):
        raise ValueError(
            f"PPO scales continuous actions to their bounds, but the actions are {space} without finite bounds. "
            "Wrap the environment in gymnasium.wrappers.RescaleAction or ClipAction, or bound its action space."
        )


def distribution(space: Space, outputs: Float[Array, "*b o"], log_std: Array) -> Distribution:
    """The distribution that the outputs of a policy network stand for."""
    lead = outputs.shape[:-1]
    if space.n is not None:
        return Categorical(outputs.reshape(*lead, *space.shape, space.n), len(space.shape))
    return DiagonalGaussian(outputs, log_std)


def to_environment(space: Space, action: Array) -> Array:
    """A sampled action as the environment takes it: continuous ones are clipped and scaled to the bounds."""
    if space.n is not None or space.low is None or space.high is None:
        return action
    middle, half = (space.low + space.high) / 2, (space.high - space.low) / 2
    scaled = middle + half * jnp.clip(action, -1.0, 1.0)
    return scaled.reshape(*action.shape[:-1], *space.shape).astype(space.dtype)
