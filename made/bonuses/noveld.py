"""NovelD and BeBold: the gain of a novelty at first visits."""

import jax.numpy as jnp

from made.bonuses.episodic import VisitCounts
from made.bonuses.rnd import RND
from made.core import Bonus, EpisodeMemory, NoMemory
from made.core.config import AT_LEAST_ZERO, setting


class NovelD(Bonus):
    """Novelty gained at the first visit of an episode.

        b(s, a, s') = max(n(s') - alpha n(s), 0) * 1[N_e(s') = 1]

    Zhang et al., "NovelD: A Simple yet Effective Exploration Criterion" (2021). With alpha = 1 it is BeBold (2020),
    the strongest baseline of MADE's Section 5. n is any bonus of one state, asked once about s' and once about s.
    Differs from the authors' code: N_e counts the true successor at the end of an episode, not the next start.
    """

    novelty: Bonus = RND()
    alpha: float = setting(0.5, AT_LEAST_ZERO)
    memory: EpisodeMemory = VisitCounts()

    def __check_init__(self):
        if not isinstance(self.novelty.memory, NoMemory):
            raise ValueError(
                f"NovelD compares the novelty of s and s', but {type(self.novelty).__name__} keeps an episodic memory, "
                "which knows s' alone. Give it a novelty without one: RND, Count, HashedCount, RE3."
            )

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(("obs", "next_obs", "next_note", *self.novelty.reads)))

    def init(self, key, spec):
        return self.novelty.init(key, spec)

    def reward(self, state, batch, *, value=None):
        # Both ends are set, so that it does not matter at which of them the novelty looks.
        at = lambda obs: self.novelty.reward(state, batch._replace(obs=obs, next_obs=obs), value=value)  # noqa: E731
        gained = jnp.maximum(at(batch.next_obs) - self.alpha * at(batch.obs), 0.0)
        return jnp.where(batch.next_note.trace == 1, gained, 0.0)

    def update(self, state, batch, key):
        return self.novelty.update(state, batch, key)
