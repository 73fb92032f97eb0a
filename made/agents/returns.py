"""Returns and advantages: V-trace, generalized advantage estimation, lambda-returns."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from made.core import Transition

Steps = Float[Array, "T *b"]
Ends = Bool[Array, "T *b"]
Number = float | Array
Last = tuple[Ends, Steps] | None  # which steps were truncated, and the values of their last observations


def check_heads(agent: Any) -> None:
    """Raise ValueError for another number of values than 1 or 2, or one that is too small for the settings."""
    if agent.heads not in (1, 2):
        raise ValueError(f"{type(agent).__name__} takes heads=1 or heads=2, got heads={agent.heads}.")
    if agent.heads == 1 and not agent.episodic_intrinsic:
        raise ValueError("A non-episodic intrinsic return needs a value of its own: set heads=2.")


def episode_starts(batch: Transition) -> Bool[Array, "T N"]:
    """Whether an episode begins at a step of a rollout; the recurrent state of the first step is known."""
    done = batch.terminated | batch.truncated
    return jnp.concatenate([jnp.zeros_like(done[:1]), done[:-1]])


def split_reward(batch: Transition, reward: Float[Array, "T N"], heads: int) -> Float[Array, "T N heads"]:
    """The reward of each value: r + tau b for one head, r and tau b for two."""
    return jnp.stack([reward] if heads == 1 else [batch.reward, reward - batch.reward], -1)


def accumulate(x: Steps, weight: Steps) -> Steps:
    """y_t = x_t + weight_t y_{t+1}, with y_T = 0.

    Such linear steps compose, so an associative scan computes them in log T steps rather than T.
    """

    def compose(later, earlier):
        return earlier[0] + earlier[1] * later[0], earlier[1] * later[1]

    return jax.lax.associative_scan(compose, (x, weight), reverse=True)[0]


class VTrace(NamedTuple):
    """Targets of the values, and advantages of the actions."""

    target: Steps  # v_t
    advantage: Steps  # times the clipped ratio: what multiplies grad log pi


def vtrace(
    log_ratio: Steps, reward: Steps, discount: Steps, value: Steps, bootstrap: Array, last: Last = None, rho: float = 1
) -> VTrace:
    """The targets of Espeholt et al., "IMPALA" (2018), Section 4.1.

        v_t = V_t + delta_t + gamma_t c_t (v_{t+1} - V_{t+1}),   v_T = V_T = bootstrap
        delta_t = rho_t (r_t + gamma_t V_{t+1} - V_t)
        advantage_t = c_t (r_t + gamma_t v_{t+1} - V_t)
        rho_t = min(rho, ratio_t),   c_t = min(1, ratio_t),   ratio_t = pi(a_t | s_t) / mu(a_t | s_t)

    `discount` is gamma_t, 0 where an episode ended at t. With `last`, which steps were truncated and the values of
    their last observations before the reset, a truncated step bootstraps from that value: V_{t+1} and v_{t+1} are it,
    and c_t is 0 in v_t. Its gamma_t is then that of any other step; where gamma_t is 0, nothing follows.
    """

    def shifted(x: Steps) -> Steps:
        ahead = jnp.concatenate([x[1:], bootstrap[None]])
        return ahead if last is None else jnp.where(*last, ahead)

    ratio = jnp.exp(log_ratio)
    clipped = jnp.minimum(1.0, ratio)
    delta = jnp.minimum(rho, ratio) * (reward + discount * shifted(value) - value)
    keep = discount * clipped if last is None else jnp.where(last[0], 0.0, discount * clipped)
    target = value + accumulate(delta, keep)
    return VTrace(target, clipped * (reward + discount * shifted(target) - value))


def gae(
    reward: Steps, value: Steps, next_value: Steps, terminated: Ends, done: Ends, discount: Number, gae_lambda: Number
) -> Steps:
    """The advantages of Schulman et al., "High-Dimensional Continuous Control Using GAE" (2016), Eq. (16).

        A_t = delta_t + discount gae_lambda (1 - done_t) A_{t+1},   A_T = 0
        delta_t = r_t + discount (1 - terminated_t) next_value_t - V_t

    `next_value_t` is the value of the true successor: the last observation of the episode where step t was truncated,
    the next observation of the rollout elsewhere. `done` is terminated or truncated.

    >>> import jax.numpy as jnp
    >>> no = jnp.zeros(2, bool)
    >>> ones = jnp.ones(2)
    >>> print(gae(ones, 0 * ones, 0 * ones, no, no, discount=0.5, gae_lambda=1.0))
    [1.5 1. ]
    """
    return accumulate(reward + discount * ~terminated * next_value - value, discount * gae_lambda * ~done)


def lambda_returns(reward: Steps, discount: Steps, next_value: Steps, lam: Number) -> Steps:
    """R_t = r_t + g_t ((1 - lam) v_{t+1} + lam R_{t+1}), with v_{t+1} for R_{t+1} after the last step (Dreamer)."""

    def step(after, x):
        r_t, g_t, v_tp1 = x
        now = r_t + g_t * ((1 - lam) * v_tp1 + lam * after)
        return now, now

    unroll = 1 if jax.default_backend() == "cpu" else reward.shape[0]  # one kernel on a GPU
    return jax.lax.scan(step, next_value[-1], (reward, discount, next_value), reverse=True, unroll=unroll)[1]
