"""A density of where steps lead in place of what was done: d(s') for d(s, a)."""

import jax
import jax.numpy as jnp

from made.core import Density, Transition
from made.core.config import SHARE, check_numbers


class SuccessorDensity(Density):
    """Any density asked about s' alone.

        d(s, a, s') = inner(s', 0)

    `arrived` = 0 leaves it a density of (s, a): a number, so that both are lanes of one program.
    The paper's Section 5 has the density of (s, a); counting s' asks how the choice matters (docs/minigrid.md).
    """

    density: Density
    arrived: float = 1.0

    def __check_init__(self):
        check_numbers(self, {SHARE: ("arrived",)})

    def init(self, key, spec):
        return self.density.init(key, spec)

    def log_density(self, state, batch):
        return self.density.log_density(state, self.moved(batch))

    def update(self, state, batch, key):
        return self.density.update(state, self.moved(batch), key)

    def moved(self, batch: Transition) -> Transition:
        """The batch as if each step had stood where it led, and had done nothing."""
        here = lambda was, now: jnp.where(self.arrived > 0, now, was)  # noqa: E731
        obs = jax.tree.map(here, batch.obs, batch.next_obs)
        return batch._replace(obs=obs, action=here(batch.action, jnp.zeros_like(batch.action)))
