"""The networks of Dreamer: dense layers, an encoder and a decoder of observations.

Everything takes any leading axes, channels last. Parameters are float32; products may be computed in bfloat16.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from made.agents.dreamer.observation_model import Leaf, leaves_of, split
from made.core import Space, Spec, dict_obs
from made.core.config import check_types
from made.nets.fast_conv import DOWN, UP, Filters, filters, glorot
from made.nets.fast_scan import Dense


class Layout(eqx.Module):
    """Sizes of the networks; the defaults are those of Dreamer v1.

    `view` is the part of an observation that is modelled. Images of 64 x 64 bytes are convolved and scored by a
    Gaussian of unit variance. What Dreamer v1 does not have goes through dense layers: symbols and discrete values as
    one-hot, scored by a categorical; other numbers by a Gaussian of deviation `spread`.
    """

    stoch: int = eqx.field(static=True, default=30)
    deter: int = eqx.field(static=True, default=200)
    hidden: int = eqx.field(static=True, default=200)  # of the layers within the recurrent model
    units: int = eqx.field(static=True, default=400)  # of the layers of the heads
    depth: int = eqx.field(static=True, default=32)  # channels of the first convolution
    reward: int = eqx.field(static=True, default=2)  # hidden layers of each head
    ends: int = eqx.field(static=True, default=3)
    value: int = eqx.field(static=True, default=3)
    actor: int = eqx.field(static=True, default=4)
    spread: float = eqx.field(static=True, default=0.1)
    view: str = eqx.field(static=True, default="")
    precision: str = eqx.field(static=True, default="float32")  # or "bfloat16": of the products

    def __check_init__(self):
        check_types(self)
        sizes = ("stoch", "deter", "hidden", "units", "depth", "reward", "ends", "value", "actor")
        wrong = [f"{name}={getattr(self, name)}" for name in sizes if getattr(self, name) < 1]
        if wrong:
            raise ValueError(f"Layout takes sizes of at least 1, got {', '.join(wrong)}.")
        if not self.spread > 0:
            raise ValueError(f"Layout scores numbers by a Gaussian of deviation spread > 0, got spread={self.spread}.")
        if self.precision not in ("float32", "bfloat16"):
            raise ValueError(f"Layout takes precision='float32' or 'bfloat16', got {self.precision!r}.")

    @property
    def dtype(self) -> Any:
        """What products are computed in."""
        return jnp.dtype(self.precision)

    @property
    def features(self) -> int:
        """How many numbers describe a latent state."""
        return self.stoch + self.deter


def dense(inputs: int, outputs: int, key: Key[Array, ""]) -> Dense:
    """A layer before it has learnt anything."""
    return Dense(glorot(key, (inputs, outputs)), jnp.zeros(outputs))


class MLP(eqx.Module):
    """Dense layers with an ELU between them."""

    layers: tuple[Dense, ...]

    def __init__(self, inputs: int, width: int, depth: int, outputs: int, *, key: Key[Array, ""]):
        sizes = (inputs, *[width] * depth, outputs)
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(dense(i, o, k) for i, o, k in zip(sizes, sizes[1:], keys, strict=False))

    def __call__(self, x: Float[Array, "*b i"], dtype: Any) -> Float[Array, "*b o"]:
        for layer in self.layers[:-1]:
            x = jax.nn.elu(layer(x, dtype))
        return self.layers[-1](x, dtype)


class Encoder(eqx.Module):
    """Features of an observation: images by four convolutions (4x4, stride 2, relu), all else by two dense layers."""

    convolutions: tuple[tuple[Filters, ...], ...]  # a stack for each image
    others: MLP | None
    leaves: tuple[Leaf, ...] = eqx.field(static=True)
    layout: Layout = eqx.field(static=True)

    def __init__(self, spaces: PyTree, layout: Layout, *, key: Key[Array, ""]):
        k_conv, k_others = jax.random.split(key)
        self.layout, self.leaves = layout, leaves_of(spaces, layout.view)
        images, size = split(self.leaves)
        sizes = tuple((kernel, times * layout.depth) for kernel, times in DOWN)
        keys = jax.random.split(k_conv, max(len(images), 1))
        self.convolutions = tuple(filters(sizes, leaf.shape[-1], k) for leaf, k in zip(images, keys, strict=False))
        self.others = MLP(size, layout.units, 1, layout.units, key=k_others) if size else None

    @property
    def size(self) -> int:
        """How many features come out: 32 * depth of an image, and `units` of all else."""
        return len(self.convolutions) * 32 * self.layout.depth + (self.layout.units if self.others else 0)

    def __call__(self, obs: PyTree) -> Float[Array, "*b size"]:
        parts, vectors, stacks = [], [], iter(self.convolutions)
        for leaf, x in zip(self.leaves, jax.tree.leaves(dict_obs.looked_at(obs, self.layout.view)), strict=True):
            shown = leaf.show(x)
            if leaf.kind == "pixels":
                parts.append(self._convolved(next(stacks), shown))
            else:
                vectors.append(shown)
        if self.others is not None:
            parts.append(jax.nn.elu(self.others(jnp.concatenate(vectors, -1), self.layout.dtype)))
        return jnp.concatenate(parts, -1)

    def _convolved(self, stack: tuple[Filters, ...], images: Float[Array, "*b h w c"]) -> Float[Array, "*b n"]:
        x = images.reshape(-1, *images.shape[-3:]).astype(self.layout.dtype)
        for layer in stack:
            x = jax.nn.relu(layer.down(x) + layer.bias.astype(x.dtype))
        return x.reshape(*images.shape[:-3], -1).astype(jnp.float32)


class Decoder(eqx.Module):
    """What a latent state says of the observation: images by four transposed convolutions, all else by dense layers."""

    starts: tuple[Dense, ...]
    convolutions: tuple[tuple[Filters, ...], ...]
    others: MLP | None
    leaves: tuple[Leaf, ...] = eqx.field(static=True)
    layout: Layout = eqx.field(static=True)

    def __init__(self, spaces: PyTree, layout: Layout, *, key: Key[Array, ""]):
        k_start, k_conv, k_others = jax.random.split(key, 3)
        self.layout, self.leaves = layout, leaves_of(spaces, layout.view)
        images, size = split(self.leaves)
        wide, many = 32 * layout.depth, max(len(images), 1)
        keys = jax.random.split(k_start, many), jax.random.split(k_conv, many)
        self.starts = tuple(dense(layout.features, wide, k) for _, k in zip(images, keys[0], strict=False))
        sizes = lambda leaf: tuple((kernel, times * layout.depth or leaf.shape[-1]) for kernel, times in UP)  # noqa: E731
        self.convolutions = tuple(filters(sizes(leaf), wide, k) for leaf, k in zip(images, keys[1], strict=False))
        self.others = MLP(layout.features, layout.units, 2, size, key=k_others) if size else None

    def __call__(self, features: Float[Array, "*b f"]) -> list[Array]:
        """The answer for each leaf."""
        dtype, stacks = self.layout.dtype, iter(zip(self.starts, self.convolutions, strict=True))
        vectors = [] if self.others is None else self.others(features, dtype)
        answers, at = [], 0
        for leaf in self.leaves:
            if leaf.kind == "pixels":
                answers.append(self._drawn(*next(stacks), features))
            else:
                answers.append(vectors[..., at : at + leaf.size])  # type: ignore[call-overload]
                at += leaf.size
        return answers

    def _drawn(self, start: Dense, stack: tuple[Filters, ...], features: Float[Array, "*b f"]) -> Array:
        dtype = self.layout.dtype
        x = start(features, dtype).reshape(-1, 1, 1, start.bias.size).astype(dtype)
        for layer in stack:
            x = layer.biased(layer.up(x))
            x = x if layer is stack[-1] else jax.nn.relu(x)
        return x.reshape(*features.shape[:-1], *x.shape[1:]).astype(jnp.float32)

    def score(self, features: Float[Array, "*b f"], obs: PyTree) -> Float[Array, "*b"]:
        """log p(observation | latent state), summed over its leaves."""
        seen = jax.tree.leaves(dict_obs.looked_at(obs, self.layout.view))
        each = zip(self.leaves, self(features), seen, strict=True)
        return jnp.stack([leaf.score(answer, x, self.layout.spread) for leaf, answer, x in each]).sum(0)


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
        outputs = action_size(action) if self.discrete else 2 * action_size(action)
        self.net = MLP(layout.features, layout.units, layout.actor, outputs, key=key)

    def __call__(self, features: Float[Array, "*b f"]) -> TanhNormal | OneHot:
        out = self.net(features, self.layout.dtype)
        if self.discrete:
            return OneHot(out)
        mean, raw = jnp.split(out, 2, -1)
        start = math.log(math.expm1(START))  # softplus of it is the deviation at the start
        return TanhNormal(MEAN_SCALE * jnp.tanh(mean / MEAN_SCALE), jax.nn.softplus(raw + start) + LEAST)


def action_size(action: Space) -> int:
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
