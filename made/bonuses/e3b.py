"""E3B: an elliptical bonus within each episode."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from made.bonuses.embedding import InverseDynamicsEmbedding
from made.core import Bonus, EpisodeMemory, EpisodeNote
from made.core.config import POSITIVE, setting


class Ellipse(EpisodeMemory):
    """C^{-1} of an episode, kept up to date by Sherman and Morrison's formula. Its note's trace is phi^T C^{-1} phi.

    u = C^{-1} phi,   b = phi^T u,   C^{-1} <- C^{-1} - u u^T / (1 + b)
    """

    features: InverseDynamicsEmbedding
    ridge: float

    def blank(self, spec) -> Float[Array, "d d"]:
        return jnp.eye(self.features.size) / self.ridge

    def remember(self, state, memory, obs, key):
        phi = self.features.embed(state, obs)
        u = memory @ phi
        novelty = phi @ u
        return memory - jnp.outer(u, u) / (1.0 + novelty), EpisodeNote(trace=novelty)


class E3B(Bonus):
    """How far the successor lies outside the ellipse of what this episode has seen.

        b(s, a, s') = phi(s')^T C^{-1} phi(s'),   C = ridge I + sum over earlier observations o of the episode phi phi^T

    Henaff et al., "Exploration via Elliptical Episodic Bonuses" (2022); with one-hot phi it is 1 over
    ridge plus the earlier visits of s'. phi comes from inverse dynamics. The bonus is computed when the observation
    is made, with the phi of that moment, as by the actors of the authors' code.
    """

    features: InverseDynamicsEmbedding = InverseDynamicsEmbedding()
    ridge: float = setting(0.1, POSITIVE)  # without it C has no inverse at the start
    reads: ClassVar[tuple[str, ...]] = ("next_note",)

    @property
    def memory(self) -> EpisodeMemory:  # type: ignore[override]
        return Ellipse(self.features, self.ridge)

    def init(self, key, spec):
        return self.features.init(key, spec)

    def reward(self, state, batch, *, value=None):
        return batch.next_note.trace

    def update(self, state, batch, key):
        return self.features.update(state, batch, key)
