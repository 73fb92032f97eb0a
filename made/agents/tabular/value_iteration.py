"""Value iteration with a bonus on the empirical model: the first algorithm of Section 4.1."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from made.agents.tabular import empirical_model
from made.core import Agent, table_sizes
from made.core.config import AT_LEAST_ZERO, COUNT, FINITE, SHARE, check_numbers


class VIState(NamedTuple):
    """The empirical model and the optimistic action values."""

    model: empirical_model.EmpiricalModel
    q: Float[Array, "S A"]


class ValueIteration(Agent):
    """Discounted value iteration with a bonus (Appendix B.1, after He, Zhou and Gu 2020).

        Q <- min(r_k + gamma P_k V, V_max),   V = max_a Q

    `sweeps` backups after each batch, warm-started at the last Q; He et al. make one after every step. As there, Q
    never rises, Q <- min(Q, ...), so a bonus that recovers has no effect; `monotone=0` leaves that out.
    `initial` is the value of a pair never tried: V_max is optimism; 0 gives the greedy floor, and with `epsilon` > 0
    the epsilon-greedy one (both with `monotone=0`: from zero nothing could rise).
    """

    gamma: float = 0.99
    v_max: float = 1.0
    initial: float = 1.0
    epsilon: float = 0.0
    monotone: float = 1.0  # a number, so that both forms are lanes of one program
    sweeps: int = eqx.field(static=True, default=12)

    def __check_init__(self):
        shares = ("gamma", "epsilon", "monotone")
        check_numbers(self, {SHARE: shares, AT_LEAST_ZERO: ("v_max",), FINITE: ("initial",), COUNT: ("sweeps",)})

    def init(self, key, spec):
        s, a = table_sizes(spec, "ValueIteration")
        return VIState(empirical_model.empty_model(s, a), jnp.full((s, a), jnp.asarray(self.initial, float)))

    def values(self, state: VIState) -> Float[Array, " S"]:
        """V_k(s) = max_a Q_k(s, a)."""
        return state.q.max(-1)

    def act(self, state, carry, obs, goal, key, *, explore=True):
        return carry, empirical_model.epsilon_greedy(state.q[obs], self.epsilon if explore else 0.0, key), ()

    def update(self, state, batch, reward_fn, key):
        seen = empirical_model.observe(state.model, batch)
        problem = empirical_model.planning_problem(seen, reward_fn, self.values(state))

        def sweep(q: Array, _) -> tuple[Array, None]:
            new = empirical_model.backup(problem, q.max(-1), self.gamma, self.v_max, self.initial)
            return jnp.where(self.monotone > 0, jnp.minimum(new, q), new), None

        q, _ = jax.lax.scan(sweep, state.q, None, self.sweeps)
        return VIState(seen, q), {"value": q.max(-1).mean()}
