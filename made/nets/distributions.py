"""Distributions of actions and of latent states. They take any leading axes; an event is the last axis."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from made.core import Space

HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)
TRIES = 100  # samples among which `TanhNormal.best` takes the most likely one


class Categorical(eqx.Module):
    """One choice of n for each entry of an action; the entries are independent."""

    logits: Float[Array, "*b n"]
    entries: int = eqx.field(static=True, default=0)  # trailing axes of an action

    def sample(self, key: Key[Array, ""]) -> Array:
        return jax.random.categorical(key, self.logits).astype(jnp.int32)

    def mode(self) -> Array:
        return jnp.argmax(self.logits, -1).astype(jnp.int32)

    def log_prob(self, action: Array) -> Array:
        each = jnp.take_along_axis(jax.nn.log_softmax(self.logits), action[..., None], -1)[..., 0]
        return each.sum(range(each.ndim - self.entries, each.ndim))

    def entropy(self) -> Array:
        log_p = jax.nn.log_softmax(self.logits)
        each = -(jnp.exp(log_p) * log_p).sum(-1)
        return each.sum(range(each.ndim - self.entries, each.ndim))


class OneHot(eqx.Module):
    """One of n actions as a vector, with straight-through gradients."""

    logits: Float[Array, "*b n"]

    def sample(self, key: Key[Array, ""]) -> Float[Array, "*b n"]:
        """A sample with the gradient of its probabilities: one_hot + p - stop_gradient(p)."""
        p = jax.nn.softmax(self.logits)
        return self._vector(jax.random.categorical(key, self.logits)) + p - jax.lax.stop_gradient(p)

    def log_prob(self, action: Float[Array, "*b n"]) -> Float[Array, "*b"]:
        """log p(a) without a gradient by the action."""
        return (jax.nn.log_softmax(self.logits) * jax.lax.stop_gradient(action)).sum(-1)

    def best(self, key: Key[Array, ""]) -> Float[Array, "*b n"]:
        """The most likely action."""
        del key
        return self._vector(jnp.argmax(self.logits, -1))

    def entropy(self, key: Key[Array, ""]) -> Float[Array, "*b"]:
        """- sum_a p(a) log p(a)."""
        del key
        return Categorical(self.logits).entropy()

    def noisy(self, action: Float[Array, "*b n"], amount: Array | float, key: Key[Array, ""]) -> Float[Array, "*b n"]:
        """A uniformly random action with that probability, else the given one."""
        k_whether, k_which = jax.random.split(key)
        other = self._vector(jax.random.randint(k_which, action.shape[:-1], 0, action.shape[-1]))
        return jnp.where(jax.random.uniform(k_whether, (*action.shape[:-1], 1)) < amount, other, action)

    def _vector(self, index: Array) -> Float[Array, "*b n"]:
        return jax.nn.one_hot(index, self.logits.shape[-1])


class Normal(eqx.Module):
    """Independent normal entries."""

    mean: Float[Array, "*b a"]
    std: Float[Array, "*b a"]

    def sample(self, key: Key[Array, ""]) -> Float[Array, "*b a"]:
        return self.at(jax.random.normal(key, self.mean.shape))

    def at(self, noise: Float[Array, "*b a"]) -> Float[Array, "*b a"]:
        """The reparameterized sample mean + std * noise."""
        return self.mean + self.std * noise

    def mode(self) -> Float[Array, "*b a"]:
        return self.mean

    def log_prob(self, x: Float[Array, "*b a"]) -> Float[Array, "*b"]:
        return -(0.5 * ((x - self.mean) / self.std) ** 2 + jnp.log(self.std) + HALF_LOG_2_PI).sum(-1)

    def entropy(self) -> Float[Array, "*b"]:
        return (jnp.log(self.std) + 0.5 + HALF_LOG_2_PI).sum(-1)

    def kl(self, p: "Normal") -> Float[Array, "*b"]:
        """KL(self || p) = sum_i log(std_p / std) + (std^2 + (mean - mean_p)^2) / (2 std_p^2) - 1/2."""
        squares = (self.std**2 + (self.mean - p.mean) ** 2) / (2 * p.std**2)
        return (jnp.log(p.std / self.std) + squares - 0.5).sum(-1)


class TanhNormal(eqx.Module):
    """a = tanh(u), u ~ N(mean, std), each entry independent.

        log p(a) = log N(u) - sum_i log(1 - tanh(u_i)^2),   log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u))

    The last form is exact where tanh(u) rounds to one.
    """

    mean: Float[Array, "*b a"]
    std: Float[Array, "*b a"]
    log_std: Float[Array, "*b a"]

    def sample(self, key: Key[Array, ""]) -> Float[Array, "*b a"]:
        """A reparameterized sample."""
        return jnp.tanh(self._before_tanh(key))

    def sample_and_log_prob(self, key: Key[Array, ""]) -> tuple[Float[Array, "*b a"], Float[Array, "*b"]]:
        """(a, log p(a)) of a reparameterized sample."""
        noise = jax.random.normal(key, self.mean.shape)
        u = self.mean + self.std * noise
        log_prob = self._log_prob(noise, u)
        return jnp.tanh(u), log_prob

    def log_prob(self, action: Float[Array, "*b a"]) -> Float[Array, "*b"]:
        """log p(a) without a gradient by the action, which is clipped to within 1e-6 of the bounds."""
        edge = 1 - 1e-6
        return self._log_prob_before(jnp.arctanh(jnp.clip(jax.lax.stop_gradient(action), -edge, edge)))

    def mode(self) -> Float[Array, "*b a"]:
        """tanh of the mean: the median, which SAC's evaluation uses."""
        return jnp.tanh(self.mean)

    def best(self, key: Key[Array, ""]) -> Float[Array, "*b a"]:
        """The most likely of a hundred samples: the mode has no closed form."""
        tries = self._before_tanh(key, (TRIES,))
        chosen = jnp.argmax(self._log_prob_before(tries), 0)[None, ..., None]
        return jnp.tanh(jnp.take_along_axis(tries, chosen, 0)[0])

    def entropy(self, key: Key[Array, ""]) -> Float[Array, "*b"]:
        """-log p of one sample, an unbiased estimate."""
        return -self._log_prob_before(self._before_tanh(key))

    def noisy(self, action: Float[Array, "*b a"], amount: Array | float, key: Key[Array, ""]) -> Float[Array, "*b a"]:
        """The action plus Gaussian noise of that standard deviation, clipped to [-1, 1]."""
        return jnp.clip(action + amount * jax.random.normal(key, action.shape), -1.0, 1.0)

    def _before_tanh(self, key: Key[Array, ""], more: tuple[int, ...] = ()) -> Array:
        return self.mean + self.std * jax.random.normal(key, (*more, *self.mean.shape))

    def _log_prob_before(self, u: Array) -> Array:
        return self._log_prob((u - self.mean) / self.std, u)

    def _log_prob(self, noise: Array, u: Array) -> Array:
        of_normal = -0.5 * noise**2 - self.log_std - HALF_LOG_2_PI
        return (of_normal - 2 * (math.log(2.0) - u - jax.nn.softplus(-2 * u))).sum(-1)


def action_distribution(space: Space, outputs: Float[Array, "*b o"], log_std: Array) -> Categorical | Normal:
    """The distribution of actions that the outputs of a policy network parameterize.

    Continuous actions are in units where the bounds of the space are -1 and 1 (`to_bounds`).
    """
    if space.n is not None:
        return Categorical(outputs.reshape(*outputs.shape[:-1], *space.shape, space.n), len(space.shape))
    return Normal(outputs, jnp.broadcast_to(jnp.exp(log_std), outputs.shape))


def to_bounds(space: Space, action: Array) -> Array:
    """A sampled action as the environment takes it: continuous ones are clipped and scaled to the bounds."""
    if space.n is not None or space.low is None or space.high is None:
        return action
    middle, half = (space.low + space.high) / 2, (space.high - space.low) / 2
    scaled = middle + half * jnp.clip(action, -1.0, 1.0)
    return scaled.reshape(*action.shape[:-1], *space.shape).astype(space.dtype)
