"""Optimistic PPO with a model: the second algorithm of Section 4.1."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from made.agents.tabular import empirical_model
from made.core import Agent, table_sizes
from made.core.config import AT_LEAST_ZERO, COUNT, FINITE, POSITIVE, SHARE, check_numbers


class PPOState(NamedTuple):
    """The empirical model, log pi_k up to a constant a state, and Q_k of pi_k."""

    model: empirical_model.EmpiricalModel
    logits: Float[Array, "S A"]
    q: Float[Array, "S A"]


class ModelPPO(Agent):
    """Proximal policy optimisation on the empirical model (Appendix B.1, after Cai et al. 2020).

        Q_k = Q of pi_k in M_k,   pi_{k+1}(a|s) ~ pi_k(a|s) exp(alpha Q_k(s, a))

    `alpha` is a setting of its own: the paper prints sqrt(2 log A / (H K)), which mixes the two conventions of its
    source; with V_max = 1 the minimiser of the regret bound is sqrt(2 log A / K) (see docs/deviations.md).
    """

    alpha: float = 0.1
    gamma: float = 1.0
    v_max: float = 1.0
    initial: float = 1.0
    sweeps: int = eqx.field(static=True, default=12)

    def __check_init__(self):
        check_numbers(self, {POSITIVE: ("alpha",), SHARE: ("gamma",), AT_LEAST_ZERO: ("v_max",)})
        check_numbers(self, {FINITE: ("initial",), COUNT: ("sweeps",)})

    def init(self, key, spec):
        s, a = table_sizes(spec, "ModelPPO")
        return PPOState(
            empirical_model.empty_model(s, a), jnp.zeros((s, a)), jnp.full((s, a), jnp.asarray(self.initial, float))
        )

    def values(self, state: PPOState) -> Float[Array, " S"]:
        """V_k(s) = sum_a pi_k(a|s) Q_k(s, a)."""
        return (jax.nn.softmax(state.logits) * state.q).sum(-1)

    def act(self, state, carry, obs, goal, key, *, explore=True):
        logits = state.logits[obs]
        drawn = jax.random.categorical(key, logits)
        return carry, (drawn if explore else logits.argmax()).astype(jnp.int32), ()

    def update(self, state, batch, reward_fn, key):
        seen = empirical_model.observe(state.model, batch)
        problem = empirical_model.planning_problem(seen, reward_fn, self.values(state))
        policy = jax.nn.softmax(state.logits)

        def sweep(q: Array, _) -> tuple[Array, None]:
            return empirical_model.backup(problem, (policy * q).sum(-1), self.gamma, self.v_max, self.initial), None

        q, _ = jax.lax.scan(sweep, state.q, None, self.sweeps)
        logits = state.logits + self.alpha * q
        logits = logits - logits.max(-1, keepdims=True)  # the same policy, and no overflow in long runs
        return PPOState(seen, logits, q), {"value": q.max(-1).mean()}
