"""The bonuses of the MiniGrid comparison as points of one formula, so that all of them run as lanes of one program.

Compiling a training program takes as long as a million frames; a grid of nine methods would be nine programs. But these
methods share their parts (RND, counts of the recent window, the first visit of an episode) and differ in which of them
they multiply. Here the exponents are numbers, and numbers are lanes.
"""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from made.bonuses.densities.recent_counts import HashedRecentCounts, Standardized
from made.bonuses.episodic import VisitCounts
from made.bonuses.icm import ICM
from made.bonuses.made import MADE
from made.bonuses.rnd import RND
from made.core import Bonus, Density, EpisodeMemory, NoMemory, trees
from made.core.config import AT_LEAST_ZERO, SHARE, check_numbers

WINDOW = 10_000


class Family(Bonus):
    """Novelty, its gain, the recent density and the gate, each switched on or off by a number.

        b(s, a, s') = max(n(s') - alpha n(s), 0)^novelty * d(s, a)^-power * (1 - gate 1[N_e(s') > 1])

    with n from `cover` (RND) and log d from `recent`, centred and scaled. Its points are the bonuses themselves:

        RND           novelty 1                        BeBold    novelty 1, alpha 1, gate 1
        MADE          novelty 1, power 1/2             NovelD    novelty 1, alpha 1/2, gate 1
        the gate      gate 1                           "gated" any of them with gate 1

    `FAMILY` has them by name. Tests hold each against the class of its own (RND, NovelD, MADE, FirstVisit).
    """

    novelty: float = 1.0
    alpha: float = 0.0
    power: float = 0.0
    gate: float = 0.0
    cover: Bonus = RND()
    recent: Density = Standardized(HashedRecentCounts(WINDOW, capacity=WINDOW))
    memory: EpisodeMemory = VisitCounts()

    def __check_init__(self):
        check_numbers(self, {AT_LEAST_ZERO: ("novelty", "alpha", "power"), SHARE: ("gate",)})
        if not isinstance(self.cover.memory, NoMemory):
            raise ValueError(
                f"Family asks its cover about s and about s', but {type(self.cover).__name__} keeps an episodic "
                "memory, which knows s' alone. Give it a cover without one: RND, HashedCount."
            )

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return "obs", "action", "next_obs", "next_note"

    def init(self, key, spec):
        return self._parts().init(key, spec)

    def reward(self, state, batch, *, value=None):
        at = lambda obs: self.cover.reward(state.cover, batch._replace(obs=obs, next_obs=obs), value=value)  # noqa: E731
        gained = jnp.maximum(at(batch.next_obs) - self.alpha * at(batch.obs), 0.0)
        factor = jnp.exp(-self.power * self.recent.log_density(state.recent, batch))
        kept = jnp.where(batch.next_note.trace == 1, 1.0, 1.0 - self.gate)
        return jnp.where(self.novelty > 0, gained, 1.0) * factor * kept

    def update(self, state, batch, key):
        return self._parts().update(state, batch, key)

    def _parts(self) -> MADE:
        """Every member keeps and learns what MADE does, whichever of it is paid."""
        return MADE(self.cover, self.recent)


FAMILY = {
    "rnd": Family(),
    "gated rnd": Family(gate=1.0),
    "gate": Family(novelty=0.0, gate=1.0),
    "bebold": Family(alpha=1.0, gate=1.0),
    "ungated bebold": Family(alpha=1.0),
    "noveld": Family(alpha=0.5, gate=1.0),
    "made": Family(power=0.5),
    "gated made": Family(power=0.5, gate=1.0),
    "made on bebold": Family(alpha=1.0, power=0.5, gate=1.0),
    "density": Family(novelty=0.0, power=0.5),
    "gated density": Family(novelty=0.0, power=0.5, gate=1.0),
}


class Impact(Bonus):
    """The error of ICM's forward model, or how far a step moves its embedding, over visits, behind a gate or not.

        b(s, a, s') = || phi(s') - [moved phi(s) + (1 - moved) f(phi(s), a)] ||_2
                      * N_e(s')^-visits * (1 - gate 1[N_e(s') > 1])

        ICM    moved 0                          RIDE    moved 1, visits 1/2
        "gated" either of them with gate 1      "ungated" RIDE with visits 0: its impact alone

    `IMPACT` has them by name. Tests hold ICM and RIDE against the classes of their own.
    """

    moved: float = 0.0
    visits: float = 0.0
    gate: float = 0.0
    model: ICM = ICM()
    memory: EpisodeMemory = VisitCounts()
    reads: ClassVar[tuple[str, ...]] = ("obs", "action", "next_obs", "next_note")

    def __check_init__(self):
        check_numbers(self, {SHARE: ("moved", "gate"), AT_LEAST_ZERO: ("visits",)})

    def init(self, key, spec):
        return self.model.init(key, spec)

    def reward(self, state, batch, *, value=None):
        nets = state.params

        def gap(obs, action, after) -> Float[Array, ""]:
            here = nets.embedding(obs)
            aim = self.moved * here + (1.0 - self.moved) * nets.forward(here, action)
            return jnp.linalg.norm(nets.embedding(after) - aim)

        paid = trees.over_leading(gap, batch.reward.ndim)(batch.obs, batch.action, batch.next_obs)
        count: Array = batch.next_note.trace.astype(paid.dtype)
        return paid * count**-self.visits * jnp.where(count == 1, 1.0, 1.0 - self.gate)

    def update(self, state, batch, key):
        return self.model.update(state, batch, key)


IMPACT = {
    "icm": Impact(),
    "gated icm": Impact(gate=1.0),
    "ride": Impact(moved=1.0, visits=0.5),
    "gated ride": Impact(moved=1.0, gate=1.0),
    "ungated ride": Impact(moved=1.0),
}
