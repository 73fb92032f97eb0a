"""V-trace: what a policy is worth, learnt from the actions of an older one."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class VTrace(NamedTuple):
    """Where the values should move to, and by how much each action was better than expected."""

    target: Float[Array, "T *b"]  # v_t
    advantage: Float[Array, "T *b"]  # times the clipped ratio: what multiplies grad log pi


def vtrace(
    log_ratio: Float[Array, "T *b"],
    reward: Float[Array, "T *b"],
    discount: Float[Array, "T *b"],
    value: Float[Array, "T *b"],
    bootstrap: Float[Array, "*b"],
    *,
    truncated: Bool[Array, "T *b"] | None = None,
    final_value: Float[Array, "T *b"] | None = None,
    rho: float = 1.0,
    c: float = 1.0,
    rho_gradient: float = 1.0,
    trace: float = 1.0,
) -> VTrace:
    """The targets of Espeholt et al., "IMPALA" (2018), Section 4.1.

        v_t = V_t + delta_t + gamma_t c_t (v_{t+1} - V_{t+1}),   v_T = V_T = bootstrap
        delta_t = rho_t (r_t + gamma_t V_{t+1} - V_t)
        advantage_t = min(rho_gradient, ratio_t) (r_t + gamma_t v_{t+1} - V_t)
        rho_t = min(rho, ratio_t),   c_t = trace min(c, ratio_t),   ratio_t = pi(a_t | s_t) / mu(a_t | s_t)

    `discount` is gamma_t, 0 where an episode ended at t. With `truncated` and `final_value`, a truncated step
    bootstraps from final_value_t, the value of the last observation before the reset: V_{t+1} and v_{t+1} are
    final_value_t there, and c_t is 0. Its gamma_t is then that of any other step; where gamma_t is 0, nothing follows.

    The recursion is linear, x_t = a_t + b_t x_{t+1}, and such steps compose, so it is worked out by an associative
    scan: in log T steps rather than T.
    """
    ratio = jnp.exp(log_ratio)
    if (truncated is None) != (final_value is None):
        raise ValueError("vtrace takes truncated and final_value together: give both, or neither.")

    def shifted(x: Float[Array, "T *b"]) -> Float[Array, "T *b"]:
        ahead = jnp.concatenate([x[1:], bootstrap[None]])
        return ahead if truncated is None or final_value is None else jnp.where(truncated, final_value, ahead)

    following = shifted(value)
    delta = jnp.minimum(rho, ratio) * (reward + discount * following - value)
    keep = discount * trace * jnp.minimum(c, ratio)
    if truncated is not None:
        keep = jnp.where(truncated, 0.0, keep)

    def compose(later, earlier):
        return earlier[0] + earlier[1] * later[0], earlier[1] * later[1]

    beyond, _ = jax.lax.associative_scan(compose, (delta, keep), reverse=True)  # v_t - V_t
    target = value + beyond
    return VTrace(target, jnp.minimum(rho_gradient, ratio) * (reward + discount * shifted(target) - value))
