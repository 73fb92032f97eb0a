"""RIDE: the change that a step makes in the embedding of ICM."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from made.bonuses.episodic import VisitCounts
from made.bonuses.icm import ICM
from made.core import Bonus, EpisodeMemory, trees


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
