"""Random network distillation."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from made.bonuses.embedding import ENDS, Embedding, EmbeddingBonus, StateBonus
from made.core import dict_obs, running_stats, trees
from made.core.config import COUNT_OR_NONE, setting
from made.nets.fit import Fit, FitState, with_prefix

FAR = 5.0  # normalized observations are kept within this many deviations, as in the paper


class RNDState(NamedTuple):
    """The fixed network, the one that copies it, and the moments of what was observed."""

    target: Embedding
    predictor: FitState
    seen: tuple[PyTree, ...]  # one Moments for each continuous part of the observation; () for the others


class RND(StateBonus, EmbeddingBonus):
    """The error of a network that learns to copy a fixed random one.

        b(s, a, s') = || f(s') - g(s') ||_2,   g fixed and random, f trained by least squares on what is visited

    Burda et al., "Exploration by Random Network Distillation" (2019). `squared` is the square, as they have it; the
    norm is that of RIDE's and NovelD's releases, and MADE's Section 5 needs, since it stands for 1/sqrt(N).
    `normalize` standardizes continuous observations by running moments and clips them at 5 standard deviations.
    `on="obs"` looks at s in place of s'.

    >>> RND(on="obs").reads
    ('obs',)
    """

    on: str = setting("next_obs", ENDS, static=True)
    deeper: int = setting(2, COUNT_OR_NONE, static=True)  # more dense layers in the copy: it must be able to copy
    squared: bool = eqx.field(static=True, default=False)
    normalize: bool = eqx.field(static=True, default=False)
    fit: Fit = Fit()

    def init(self, key, spec):
        k_target, k_predictor = jax.random.split(key)
        target, predictor = self.embedding_of(spec, k_target), self.embedding_of(spec, k_predictor, self.deeper)
        spaces = target.encoder.spaces
        whitened = [self.normalize and space.n is None for space in spaces]
        seen = tuple(running_stats.empty(s.shape) if on else () for s, on in zip(spaces, whitened, strict=True))
        return RNDState(target, self.fit.init(predictor), seen)

    def reward(self, state, batch, *, value=None):
        # One leading axis, as in `update`, so that the compiler sees there is one pass through the target for both.
        parts = trees.flatten_leading(dict_obs.looked_at(getattr(batch, self.on), self.view), batch.reward.ndim)
        parts = jax.vmap(lambda part: whiten(state.seen, part))(parts)
        gap = jax.vmap(state.target.of_part)(parts) - jax.vmap(state.predictor.params.of_part)(parts)
        squares = jnp.sum(gap**2, -1).reshape(batch.reward.shape)
        return squares if self.squared else jnp.sqrt(squares)

    def update(self, state, batch, key):
        parts = trees.flatten_leading(dict_obs.looked_at(getattr(batch, self.on), self.view), 2)
        leaves = jax.tree.leaves(parts)
        seen = tuple(m and running_stats.merge(m, x.astype(float)) for m, x in zip(state.seen, leaves, strict=True))
        parts = jax.vmap(lambda part: whiten(seen, part))(parts)

        def loss(predictor, items, key):
            part, aim = items
            return jnp.mean((jax.vmap(predictor.of_part)(part) - aim) ** 2), {}

        items = parts, jax.vmap(state.target.of_part)(parts)
        predictor, metrics = self.fit.fit(loss, state.predictor, items, key)
        return RNDState(state.target, predictor, seen), with_prefix(metrics, "rnd")


def whiten(seen: tuple[PyTree, ...], part: PyTree) -> PyTree:
    """Each leaf that has moments, less its mean and over its deviation; the others as they are."""

    def one(m: PyTree, x: Array) -> Array:
        return jnp.clip((x - m.mean) / running_stats.scale(m), -FAR, FAR) if m else x

    leaves, tree = jax.tree.flatten(part)
    return jax.tree.unflatten(tree, [one(m, x) for m, x in zip(seen, leaves, strict=True)])
