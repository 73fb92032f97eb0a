"""The agents of the tabular studies (Section 4.1): value iteration and PPO on the empirical model, and Q-learning."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from made.core import Agent, RewardFn, Transition, state_action_grid, table_sizes, trees
from made.core.config import AT_LEAST_ZERO, COUNT, FINITE, POSITIVE, SHARE, check_numbers

Number = float | Float[Array, ""]  # a setting: a plain number, or traced when runs are vectorized


class EmpiricalModel(NamedTuple):
    """Sums over all experience: visits, successors that went on, and extrinsic reward."""

    pairs: Float[Array, "S A"]
    triples: Float[Array, "S A S"]
    rewards: Float[Array, "S A"]


def empty_model(n_states: int, n_actions: int) -> EmpiricalModel:
    """The model before any experience."""
    table = jnp.zeros((n_states, n_actions))
    return EmpiricalModel(table, jnp.zeros((n_states, n_actions, n_states)), table)


Backup = Callable[[Float[Array, " S"]], Float[Array, "S A"]]


def plan(
    agent: Any, state: Any, batch: Transition, reward_fn: RewardFn, sweep: Callable[[Backup, Array], Array]
) -> tuple[EmpiricalModel, Float[Array, "S A"]]:
    """The model with this batch, and Q after `agent.sweeps` times Q <- sweep(backup, Q).

    Line 5 of Algorithm 1 on the empirical model: P_k = N(s,a,s')/N(s,a) and r_k = mean reward + tau_k bonus. Then
    backup(V) = min(r_k + gamma P_k V, V_max), where a pair never tried keeps its initial value. A successor that ended
    the episode is left out of `triples`, so it is worth nothing.
    """
    s, a, old = batch.obs, batch.action, state.model
    goes_on = 1.0 - batch.terminated.astype(float)
    pairs, triples = old.pairs.at[s, a].add(1.0), old.triples.at[s, a, batch.next_obs].add(goes_on)
    model = EmpiricalModel(pairs, triples, old.rewards.at[s, a].add(batch.reward))
    n = jnp.maximum(model.pairs, 1.0)
    P = model.triples / n[..., None]
    r_k = reward_fn(state_action_grid(*n.shape, reward=model.rewards / n), value=agent.values(state))

    def backup(v: Float[Array, " S"]) -> Float[Array, "S A"]:
        return jnp.where(model.pairs > 0, jnp.minimum(r_k + agent.gamma * P @ v, agent.v_max), agent.initial)

    return model, jax.lax.scan(lambda q, _: (sweep(backup, q), None), state.q, None, agent.sweeps)[0]


def epsilon_greedy(q: Float[Array, " A"], epsilon: Number, key: Key[Array, ""]) -> Array:
    """A best action, drawn evenly among ties; with probability epsilon any action.

    One draw of uniforms serves all three choices: random bits are the costliest part of a tabular step.
    """
    n = q.shape[0]
    u = jax.random.uniform(key, (n + 2,))
    best = jnp.where(q >= q.max() - 1e-7, u[:n], -1.0).argmax()
    anything = (u[n] * n).astype(best.dtype)
    return jnp.where(u[n + 1] < epsilon, anything, best).astype(jnp.int32)


class VIState(NamedTuple):
    """The empirical model and the optimistic action values."""

    model: EmpiricalModel
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
    monotone: float = 1.0  # a number, so that both forms run in one program
    sweeps: int = eqx.field(static=True, default=12)

    def __check_init__(self):
        shares = ("gamma", "epsilon", "monotone")
        check_numbers(self, {SHARE: shares, AT_LEAST_ZERO: ("v_max",), FINITE: ("initial",), COUNT: ("sweeps",)})

    def init(self, key, spec):
        s, a = table_sizes(spec, "ValueIteration")
        return VIState(empty_model(s, a), jnp.full((s, a), jnp.asarray(self.initial, float)))

    def values(self, state: VIState) -> Float[Array, " S"]:
        """V_k(s) = max_a Q_k(s, a)."""
        return state.q.max(-1)

    def act(self, state, carry, obs, goal, key, *, explore=True):
        return carry, epsilon_greedy(state.q[obs], self.epsilon if explore else 0.0, key), ()

    def update(self, state, batch, reward_fn, key):
        def sweep(backup: Backup, q: Array) -> Array:
            new = backup(q.max(-1))
            return jnp.where(self.monotone > 0, jnp.minimum(new, q), new)

        model, q = plan(self, state, batch, reward_fn, sweep)
        return VIState(model, q), {"value": q.max(-1).mean()}


class PPOState(NamedTuple):
    """The empirical model, log pi_k up to a constant a state, and Q_k of pi_k."""

    model: EmpiricalModel
    logits: Float[Array, "S A"]
    q: Float[Array, "S A"]


class ModelPPO(Agent):
    """Proximal policy optimization on the empirical model (Appendix B.1, after Cai et al. 2020).

        Q_k = Q of pi_k in M_k,   pi_{k+1}(a|s) ~ pi_k(a|s) exp(alpha Q_k(s, a))

    `alpha` is a setting of its own: the paper prints sqrt(2 log A / (H K)), which mixes the two conventions of its
    source; with V_max = 1 the minimizer of the regret bound is sqrt(2 log A / K) (see docs/deviations.md).
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
        return PPOState(empty_model(s, a), jnp.zeros((s, a)), jnp.full((s, a), jnp.asarray(self.initial, float)))

    def values(self, state: PPOState) -> Float[Array, " S"]:
        """V_k(s) = sum_a pi_k(a|s) Q_k(s, a)."""
        return (jax.nn.softmax(state.logits) * state.q).sum(-1)

    def act(self, state, carry, obs, goal, key, *, explore=True):
        logits = state.logits[obs]
        drawn = jax.random.categorical(key, logits)
        return carry, (drawn if explore else logits.argmax()).astype(jnp.int32), ()

    def update(self, state, batch, reward_fn, key):
        policy = jax.nn.softmax(state.logits)
        model, q = plan(self, state, batch, reward_fn, lambda backup, q: backup((policy * q).sum(-1)))
        logits = state.logits + self.alpha * q
        logits = logits - logits.max(-1, keepdims=True)  # the same policy, and no overflow in long runs
        return PPOState(model, logits, q), {"value": q.max(-1).mean()}


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
