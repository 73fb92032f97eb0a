"""How Dreamer acts: a tanh-normal for vectors within [-1, 1], one-hot vectors for discrete actions, and noise on top.

Draws carry a gradient: that of tanh(mean + std * noise), and for one-hot vectors that of the probabilities, straight
through. It is by way of the action that the gradient of an imagined return reaches the actor.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from made.agents.dreamer_nets import MLP, Layout
from made.core import Space, Spec

MEAN_SCALE, START, LEAST = 5.0, 5.0, 1e-4  # largest mean, deviation at the start, least deviation, before the tanh
TRIES = 100  # draws among which the likeliest is taken where no noise is wanted


class TanhNormal(eqx.Module):
    """a = tanh(u), u ~ N(mean, std), each number apart."""

    mean: Float[Array, "*b a"]
    std: Float[Array, "*b a"]

    def sample(self, key: Key[Array, ""]) -> Float[Array, "*b a"]:
        """A draw through which the gradient flows."""
        return jnp.tanh(self._before(key, ()))

    def log_prob(self, u: Float[Array, "*b a"]) -> Float[Array, "*b"]:
        """log p(tanh(u)) = sum_i log N(u_i) - log(1 - tanh(u_i)^2), the latter as 2 (log 2 - u - softplus(-2 u))."""
        of_normal = -0.5 * ((u - self.mean) / self.std) ** 2 - jnp.log(self.std) - 0.5 * math.log(2 * math.pi)
        return (of_normal - 2 * (math.log(2.0) - u - jax.nn.softplus(-2 * u))).sum(-1)

    def score(self, action: Float[Array, "*b a"]) -> Float[Array, "*b"]:
        """log p(a), for an action that is taken as given."""
        edge = 1 - 1e-6
        return self.log_prob(jnp.arctanh(jnp.clip(jax.lax.stop_gradient(action), -edge, edge)))

    def best(self, key: Key[Array, ""]) -> Float[Array, "*b a"]:
        """The likeliest of a hundred draws, for the mode has no formula."""
        tries = self._before(key, (TRIES,))
        chosen = jnp.argmax(self.log_prob(tries), 0)[None, ..., None]
        return jnp.tanh(jnp.take_along_axis(tries, chosen, 0)[0])

    def entropy(self, key: Key[Array, ""]) -> Float[Array, "*b"]:
        """-log p of one draw, on average the entropy."""
        return -self.log_prob(self._before(key, ()))

    def noisy(self, action: Float[Array, "*b a"], amount: Array | float, key: Key[Array, ""]) -> Float[Array, "*b a"]:
        """The action with Gaussian noise of that deviation, kept within [-1, 1]."""
        return jnp.clip(action + amount * jax.random.normal(key, action.shape), -1.0, 1.0)

    def _before(self, key: Key[Array, ""], more: tuple[int, ...]) -> Array:
        return self.mean + self.std * jax.random.normal(key, (*more, *self.mean.shape))


class OneHot(eqx.Module):
    """One of n actions, as a vector."""

    logits: Float[Array, "*b n"]

    def sample(self, key: Key[Array, ""]) -> Float[Array, "*b n"]:
        """A draw with the gradient of its probabilities: one_hot + p - stop_gradient(p)."""
        chosen = jax.nn.one_hot(jax.random.categorical(key, self.logits), self.logits.shape[-1])
        share = jax.nn.softmax(self.logits)
        return chosen + share - jax.lax.stop_gradient(share)

    def score(self, action: Float[Array, "*b n"]) -> Float[Array, "*b"]:
        """log p(a), for an action that is taken as given."""
        return (jax.nn.log_softmax(self.logits) * jax.lax.stop_gradient(action)).sum(-1)

    def best(self, key: Key[Array, ""]) -> Float[Array, "*b n"]:
        """The likeliest."""
        del key
        return jax.nn.one_hot(jnp.argmax(self.logits, -1), self.logits.shape[-1])

    def entropy(self, key: Key[Array, ""]) -> Float[Array, "*b"]:
        """- sum_a p(a) log p(a)."""
        del key
        log_p = jax.nn.log_softmax(self.logits)
        return -(jnp.exp(log_p) * log_p).sum(-1)

    def noisy(self, action: Float[Array, "*b n"], amount: Array | float, key: Key[Array, ""]) -> Float[Array, "*b n"]:
        """An action at random with that probability, else the one given."""
        k_whether, k_which = jax.random.split(key)
        other = jax.nn.one_hot(jax.random.randint(k_which, action.shape[:-1], 0, action.shape[-1]), action.shape[-1])
        return jnp.where(jax.random.uniform(k_whether, (*action.shape[:-1], 1)) < amount, other, action)


class Actor(eqx.Module):
    """pi(a | latent state)."""

    net: MLP
    discrete: bool = eqx.field(static=True)
    layout: Layout = eqx.field(static=True)

    def __init__(self, layout: Layout, action: Space, *, key: Key[Array, ""]):
        self.layout, self.discrete = layout, action.n is not None
        outputs = numbers(action) if self.discrete else 2 * numbers(action)
        self.net = MLP(layout.features, layout.units, layout.actor, outputs, key=key)

    def __call__(self, features: Float[Array, "*b f"]) -> TanhNormal | OneHot:
        out = self.net(features, self.layout.dtype)
        if self.discrete:
            return OneHot(out)
        mean, raw = jnp.split(out, 2, -1)
        start = math.log(math.expm1(START))  # softplus of it is the deviation at the start
        return TanhNormal(MEAN_SCALE * jnp.tanh(mean / MEAN_SCALE), jax.nn.softplus(raw + start) + LEAST)


def numbers(action: Space) -> int:
    """How many numbers an action is for the model."""
    return action.n or math.prod(action.shape)


def as_vectors(action: Array, space: Space) -> Float[Array, "*b a"]:
    """Actions as the model takes them: one-hot where they are discrete."""
    return action.astype(jnp.float32) if space.n is None else jax.nn.one_hot(action, space.n)


def check_actions(spec: Spec) -> None:
    """Refuse actions that are neither one of n nor vectors within [-1, 1]."""
    action = spec.action
    one_of_n = action.n is not None and action.shape == ()
    vector = action.n is None and len(action.shape) == 1 and (action.low, action.high) == (-1.0, 1.0)
    if not one_of_n and not vector:
        raise ValueError(
            f"Dreamer chooses one of n discrete actions, or vectors within [-1, 1], but the actions are {action}. "
            "Rescale them to [-1, 1], or flatten several discrete ones into one."
        )
