"""The empirical model that the model-based tabular agents plan on."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from made.core import RewardFn, Transition, state_action_grid

Number = float | Float[Array, ""]  # a setting: a plain number, or traced when runs are stacked into lanes


class EmpiricalModel(NamedTuple):
    """Sums over all experience: visits, successors that went on, and extrinsic reward."""

    pairs: Float[Array, "S A"]
    triples: Float[Array, "S A S"]
    rewards: Float[Array, "S A"]


def empty_model(n_states: int, n_actions: int) -> EmpiricalModel:
    """The model before any experience."""
    table = jnp.zeros((n_states, n_actions))
    return EmpiricalModel(table, jnp.zeros((n_states, n_actions, n_states)), table)


def observe(model: EmpiricalModel, batch: Transition) -> EmpiricalModel:
    """Add a batch. A successor that ended the episode is left out of `triples`, so it is worth nothing."""
    goes_on = 1.0 - batch.terminated.astype(float)
    return EmpiricalModel(
        model.pairs.at[batch.obs, batch.action].add(1.0),
        model.triples.at[batch.obs, batch.action, batch.next_obs].add(goes_on),
        model.rewards.at[batch.obs, batch.action].add(batch.reward),
    )


class Planning(NamedTuple):
    """M^k: the estimated transitions, the reward r_k on every pair, and which pairs were ever tried."""

    P: Float[Array, "S A S"]
    r_k: Float[Array, "S A"]
    tried: Bool[Array, "S A"]


def planning_problem(model: EmpiricalModel, reward_fn: RewardFn, value: Float[Array, " S"]) -> Planning:
    """Line 5 of Algorithm 1 on the empirical model: P_k = N(s,a,s')/N(s,a) and r_k = mean reward + tau_k bonus."""
    n = jnp.maximum(model.pairs, 1.0)
    grid = state_action_grid(*model.pairs.shape, reward=model.rewards / n)
    return Planning(model.triples / n[..., None], reward_fn(grid, value=value), model.pairs > 0)


def backup(
    problem: Planning, v: Float[Array, " S"], gamma: Number, v_max: Number, initial: Number
) -> Float[Array, "S A"]:
    """One sweep, Q = min(r_k + gamma P_k V, V_max); a pair never tried keeps its initial value."""
    q = jnp.minimum(problem.r_k + gamma * problem.P @ v, v_max)
    return jnp.where(problem.tried, q, initial)


def epsilon_greedy(q: Float[Array, " A"], epsilon: Number, key: Key[Array, ""]) -> Array:
    """A best action, drawn evenly among ties; with probability epsilon any action.

    One draw of uniforms serves all three choices: random bits are the costliest part of a tabular step.
    """
    n = q.shape[0]
    u = jax.random.uniform(key, (n + 2,))
    best = jnp.where(q >= q.max() - 1e-7, u[:n], -1.0).argmax()
    anything = (u[n] * n).astype(best.dtype)
    return jnp.where(u[n + 1] < epsilon, anything, best).astype(jnp.int32)
