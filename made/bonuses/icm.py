"""Bonuses of forward models: ICM's error, RIDE's impact in ICM's embedding, and the disagreement of an ensemble."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from made import nets
from made.bonuses.embedding import Embedding, EmbeddingBonus, InverseModel, he_scaled
from made.bonuses.episodic import VisitCounts
from made.core import Bonus, EpisodeMemory, Space, trees
from made.core.config import AT_LEAST_ZERO, SEVERAL, setting
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


class RIDE(Bonus):
    """The change that a step makes in ICM's embedding, over the root of the visits of this episode.

        b(s, a, s') = || phi(s') - phi(s) ||_2 / sqrt(N_e(s'))

    Raileanu and Rocktaeschel, "RIDE: Rewarding Impact-Driven Exploration" (2020). phi is that of `model` and learns
    as it does; N_e counts the arrival it rewards. On grids phi sees the agent's view and N_e counts full states,
    where the environment shows a hash of them.
    """

    model: ICM = ICM()
    memory: EpisodeMemory = VisitCounts()
    reads: ClassVar[tuple[str, ...]] = ("obs", "next_obs", "next_note")

    def init(self, key, spec):
        return self.model.init(key, spec)

    def reward(self, state, batch, *, value=None):
        def impact(obs, after) -> Float[Array, ""]:
            return jnp.linalg.norm(self.model.embed(state, after) - self.model.embed(state, obs))

        moved = trees.over_leading(impact, batch.reward.ndim)(batch.obs, batch.next_obs)
        visits: Array = batch.next_note.trace
        return moved / jnp.sqrt(visits.astype(moved.dtype))

    def update(self, state, batch, key):
        return self.model.update(state, batch, key)


class DisagreementState(NamedTuple):
    """The fixed embedding, and the forward models, stacked."""

    embedding: Embedding
    models: FitState


class Disagreement(EmbeddingBonus):
    """How much an ensemble of forward models disagrees about what comes next.

        b(s, a) = mean over features of Var_m f_m(phi(s), a),   phi fixed and random, f_m -> phi(s')

    Pathak, Gandhi and Gupta, "Self-Supervised Exploration via Disagreement" (2019). Noise that no model can predict has
    no bonus: all models come to predict its mean. The models differ in their start alone and learn from the same
    batches. It reads s and a only, so planners over all (s, a) can use it.
    """

    models: int = setting(5, SEVERAL, static=True)
    fit: Fit = Fit()
    reads: ClassVar[tuple[str, ...]] = ("obs", "action")

    def init(self, key, spec):
        k_embedding, k_models = jax.random.split(key)
        one = lambda k: Forward(self.embedding, spec.action, self.width, key=k)  # noqa: E731
        models = self.fit.init(jax.vmap(one)(jax.random.split(k_models, self.models)))
        return DisagreementState(self.embedding_of(spec, k_embedding), models)

    def reward(self, state, batch, *, value=None):
        def spread(obs, action) -> Float[Array, ""]:
            return jnp.mean(jnp.var(self._foresee(state.models.params, state.embedding(obs), action), axis=0))

        return trees.over_leading(spread, batch.reward.ndim)(batch.obs, batch.action)

    def update(self, state, batch, key):
        obs, action, after = trees.flatten_leading((batch.obs, batch.action, batch.next_obs), 2)

        def loss(models, items, key):
            here, action, there = items
            said = jax.vmap(self._foresee, (None, 0, 0))(models, here, action)  # [B, models, d]
            # Summed over models: each then learns as fast as it would alone.
            return jnp.mean(jnp.sum((said - there[:, None]) ** 2, axis=1)), {}

        items = jax.vmap(state.embedding)(obs), action, jax.vmap(state.embedding)(after)
        models, metrics = self.fit.fit(loss, state.models, items, key)
        return DisagreementState(state.embedding, models), with_prefix(metrics, "disagreement")

    def _foresee(self, models, here: Float[Array, " d"], action: Array) -> Float[Array, "models d"]:
        return jax.vmap(lambda model: model(here, action))(models)
