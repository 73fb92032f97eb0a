"""Generalized advantage estimation."""

import jax
from jaxtyping import Array, Bool, Float


def gae(
    reward: Float[Array, "T *b"],
    value: Float[Array, "T *b"],
    next_value: Float[Array, "T *b"],
    terminated: Bool[Array, "T *b"],
    done: Bool[Array, "T *b"],
    *,
    discount: float | Array,
    gae_lambda: float | Array,
) -> Float[Array, "T *b"]:
    """The advantages of Schulman et al., "High-Dimensional Continuous Control Using GAE" (2016), Eq. (16).

        A_t = delta_t + discount gae_lambda (1 - done_t) A_{t+1},   A_T = 0
        delta_t = r_t + discount (1 - terminated_t) next_value_t - V_t

    `next_value_t` is the value of the true successor: the last observation of the episode where step t was truncated,
    the next observation of the rollout elsewhere. `done` is terminated or truncated. The recursion is an associative
    scan of log T steps.

    >>> import jax.numpy as jnp
    >>> no = jnp.zeros(2, bool)
    >>> ones = jnp.ones(2)
    >>> print(gae(ones, 0 * ones, 0 * ones, no, no, discount=0.5, gae_lambda=1.0))
    [1.5 1. ]
    """
    delta = reward + discount * ~terminated * next_value - value
    trace = discount * gae_lambda * ~done

    def compose(later, earlier):
        return earlier[0] + earlier[1] * later[0], earlier[1] * later[1]

    return jax.lax.associative_scan(compose, (delta, trace), reverse=True)[0]
