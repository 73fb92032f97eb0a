"""ICM: the error of a forward model in an embedding of inverse dynamics."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from made import nets
from made.bonuses.embedding import Embedding, EmbeddingBonus, InverseModel, he_scaled
from made.core import Space, trees
from made.core.config import AT_LEAST_ZERO, setting
from made.nets.fit import Fit, FitState, with_prefix


class Forward(eqx.Module):
    """The embedding that an action leads to."""

    net: nets.MLP
    action: Space = eqx.field(static=True)

    def __init__(self, size: int, action: Space, width: int, *, key: Key[Array, ""]):
        inputs = jax.eval_shape(lambda a: nets.as_vector(a, action), jnp.zeros(action.shape, action.dtype)).shape[0]
        self.net, self.action = he_scaled(nets.MLP((size + inputs, width, size), key=key)), action

    def __call__(self, here: Float[Array, " d"], action: Array) -> Float[Array, " d"]:
        return self.net(jnp.concatenate([here, nets.as_vector(action, self.action)]))


class ICMNets(NamedTuple):
    """phi, the forward model and the inverse model."""

    embedding: Embedding
    forward: Forward
    inverse: InverseModel


class ICM(EmbeddingBonus):
    """The error of a forward model in an embedding learned by inverse dynamics.

        b(s, a, s') = || f(phi(s), a) - phi(s') ||_2
        loss = forward_weight * mean 1/2 ||f(phi(s), a) - phi(s')||^2 + inverse_weight * inverse loss

    Pathak et al., "Curiosity-driven Exploration by Self-supervised Prediction" (2017). The inverse loss is the
    cross-entropy of discrete actions and the mean squared error of continuous ones; both losses train phi, as
    there. MADE's Appendix B gives the weights 0.2 and 0.8.
    """

    forward_weight: float = setting(0.2, AT_LEAST_ZERO)
    inverse_weight: float = setting(0.8, AT_LEAST_ZERO)
    fit: Fit = Fit()
    reads: ClassVar[tuple[str, ...]] = ("obs", "action", "next_obs")

    def init(self, key, spec) -> FitState:
        k_embedding, k_forward, k_inverse = jax.random.split(key, 3)
        models = (self.embedding, spec.action, self.width)
        forward, inverse = Forward(*models, key=k_forward), InverseModel(*models, key=k_inverse)
        return self.fit.init(ICMNets(self.embedding_of(spec, k_embedding), forward, inverse))

    def embed(self, state: FitState, obs: PyTree) -> Float[Array, " d"]:
        """phi(o) of one observation, for bonuses built on this one."""
        return state.params.embedding(obs)

    def reward(self, state, batch, *, value=None):
        nets = state.params

        def error(obs, action, after) -> Float[Array, ""]:
            return jnp.linalg.norm(nets.forward(nets.embedding(obs), action) - nets.embedding(after))

        return trees.over_leading(error, batch.reward.ndim)(batch.obs, batch.action, batch.next_obs)

    def update(self, state, batch, key):
        def losses(nets: ICMNets, obs, action, after):
            here, there = nets.embedding(obs), nets.embedding(after)
            missed = 0.5 * jnp.sum((nets.forward(here, action) - there) ** 2)
            return missed, nets.inverse.loss(here, there, action)

        def loss(nets, items, key):
            forward, inverse = (x.mean() for x in jax.vmap(losses, (None, 0, 0, 0))(nets, *items))
            total = self.forward_weight * forward + self.inverse_weight * inverse
            return total, {"forward": forward, "inverse": inverse}

        items = trees.flatten_leading((batch.obs, batch.action, batch.next_obs), 2)
        state, metrics = self.fit.fit(loss, state, items, key)
        return state, with_prefix(metrics, "icm")
