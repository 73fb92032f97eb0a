"""Disagreement of an ensemble of forward models."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from made.bonuses.embedding import Embedding, EmbeddingBonus
from made.bonuses.icm import Forward
from made.core import trees
from made.core.config import SEVERAL, setting
from made.nets.fit import Fit, FitState, with_prefix


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
