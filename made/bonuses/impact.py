"""ICM and RIDE as points of one formula, so that both, gated and ungated, run as lanes of one program.

They share the networks and differ in what is read off them; the counterpart of `Family` for bonuses without RND.
"""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from made import trees
from made.bonuses.episodic import VisitCounts
from made.bonuses.icm import ICM
from made.core import Bonus, EpisodeMemory
from made.describe import AT_LEAST_ZERO, SHARE, check_numbers


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
