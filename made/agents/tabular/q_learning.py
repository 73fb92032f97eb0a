"""Q-learning with a bonus: the third algorithm of Section 4.1."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from made.agents.tabular.empirical_model import epsilon_greedy
from made.core import Agent, table_sizes, trees
from made.core.config import AT_LEAST_ZERO, FINITE, SHARE, check_numbers


class QState(NamedTuple):
    """Action values and how often each was updated."""

    q: Float[Array, "S A"]
    visits: Float[Array, "S A"]


class QLearning(Agent):
    """Optimistic Q-learning (Appendix B.1, after Jin et al. 2018, Algorithm 1).

        Q <- (1 - alpha_t) Q + alpha_t (r_k + gamma V(s')),  alpha_t = (horizon + 1) / (horizon + t),
        V = min(V_max, max_a Q)

    with t the visits of (s, a) so far. The bonuses of Appendix B.1 take the place of Jin's b_t and V_max = 1 that of H.
    States of the lock carry their step, so no table per step is needed.
    """

    horizon: float = 10.0
    gamma: float = 1.0
    v_max: float = 1.0
    initial: float = 1.0
    epsilon: float = 0.0

    def __check_init__(self):
        check_numbers(self, {SHARE: ("gamma", "epsilon"), AT_LEAST_ZERO: ("horizon", "v_max"), FINITE: ("initial",)})

    def init(self, key, spec):
        s, a = table_sizes(spec, "QLearning")
        return QState(jnp.full((s, a), jnp.asarray(self.initial, float)), jnp.zeros((s, a)))

    def values(self, state: QState) -> Float[Array, " S"]:
        """V_k(s) = min(V_max, max_a Q_k(s, a))."""
        return jnp.minimum(state.q.max(-1), self.v_max)

    def act(self, state, carry, obs, goal, key, *, explore=True):
        return carry, epsilon_greedy(state.q[obs], self.epsilon if explore else 0.0, key), ()

    def update(self, state, batch, reward_fn, key):
        r_k = reward_fn(batch, value=self.values(state))
        ordered = (batch.obs, batch.action, r_k, batch.next_obs, batch.terminated)

        def one(state: QState, x) -> tuple[QState, Array]:
            s, a, r, s_next, terminated = x
            t = state.visits[s, a] + 1
            alpha = (self.horizon + 1) / (self.horizon + t)
            v_next = jnp.where(terminated, 0.0, jnp.minimum(state.q[s_next].max(), self.v_max))
            error = r + self.gamma * v_next - state.q[s, a]
            return QState(state.q.at[s, a].add(alpha * error), state.visits.at[s, a].set(t)), jnp.abs(error)

        # in the order of experience: within a batch, time first, then environment
        state, errors = jax.lax.scan(one, state, trees.flatten_leading(ordered, batch.reward.ndim))
        return state, {"error": errors.mean()}
