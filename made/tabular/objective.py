"""The regularised objective of Sections 1-3 as functions of a visitation density d, written as maths.

L_k(d) = J(d) + tau_k R(d; rho_cov). Its gradient is the reward r_k that Algorithm 1 hands to a planner; here it is
taken by `jax.grad`, with the paper's closed form beside it.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from made.tabular.mdp import MDP, uniform_policy
from made.tabular.solve import occupancy, policy_from_occupancy, policy_iteration

Density = Float[Array, "S A"]
Scalar = Float[Array, ""]


def policy_cover(densities: Float[Array, "k S A"]) -> Density:
    """rho_cov^k = (1/k) sum_i d^{pi_i}, the density over what all policies so far have explored, Section 3.2."""
    return jnp.mean(densities, 0)


def J(mdp: MDP, d: Density) -> Scalar:
    """J(d) = (1 - gamma)^{-1} sum_{s,a} d(s,a) r(s,a), Eq. (2), eq:RL_objective."""
    return jnp.sum(d * mdp.r) / (1 - mdp.gamma)


def R(d: Density, rho_cov: Density) -> Scalar:
    """R(d) = sum_{s,a} sqrt(d(s,a) / rho_cov(s,a)), Eq. (4), eq:MADE_regularizer. It needs rho_cov > 0."""
    return jnp.sum(jnp.sqrt(d / rho_cov))


def R_lambda(d: Density, rho_cov: Density, lam: Scalar | float) -> Scalar:
    """R_lambda(d) = sum_{s,a} sqrt((d + lambda) / (rho_cov + lambda)), Eq. (7), eq:smoothed_regularizer."""
    return jnp.sum(jnp.sqrt((d + lam) / (rho_cov + lam)))


def linear_regulariser(d: Density, bonus: Density) -> Scalar:
    """R(d) = sum_{s,a} d(s,a) b(s,a): the regulariser behind any count bonus b, Section 3.2. Its gradient is b."""
    return jnp.sum(d * bonus)


def shannon_entropy(d: Density) -> Scalar:
    """R(d) = - sum_{s,a} d log d, Section 3.2. Its gradient is -log d - 1."""
    return -jnp.sum(jax.scipy.special.xlogy(d, d))


def L(mdp: MDP, d: Density, tau_k: Scalar | float, regulariser: Callable[[Density], Scalar]) -> Scalar:
    """L_k(d) = J(d) + tau_k R(d), Eq. (3), def:regularized_objective_population_general, for any regulariser."""
    return J(mdp, d) + tau_k * regulariser(d)


def L_made(mdp: MDP, d: Density, rho_cov: Density, tau_k: Scalar | float, lam: Scalar | float = 0.0) -> Scalar:
    """L_k(d) = J(d) + tau_k R_lambda(d; rho_cov); Eq. (1), eq:made_objective, at lambda = 0, and Theorem 1's above."""
    return L(mdp, d, tau_k, lambda x: R_lambda(x, rho_cov, lam))


def reward_by_gradient(mdp: MDP, objective: Callable[[Density], Scalar], d: Density) -> Density:
    """r_k = (1 - gamma) grad_d L_k(d), Eq. (5), eq:reward_general, for any objective of d, by autodiff."""
    return (1 - mdp.gamma) * jax.grad(objective)(d)


def reward_made(mdp: MDP, d: Density, rho_cov: Density, tau_k: Scalar | float, lam: Scalar | float = 0.0) -> Density:
    """MADE's reward in closed form, Eq. (6), eq:bonus_design, with the smoothing of Eq. (7).

    r_k = r + (1 - gamma) (tau_k / 2) / sqrt((d + lambda) (rho_cov + lambda)); Eq. (6) is lambda = 0.
    """
    return mdp.r + (1 - mdp.gamma) * (tau_k / 2) / jnp.sqrt((d + lam) * (rho_cov + lam))


def unconstrained_maximiser(rho_cov: Density) -> Density:
    """The maximiser of R on the whole simplex, d proportional to 1 / rho_cov, Section 3.2.

    The flow constraints of the MDP usually forbid it; `maximise` stays within them.
    """
    return (1 / rho_cov) / jnp.sum(1 / rho_cov)


class Optimum(NamedTuple):
    """A maximiser over the visitation densities of an MDP, with its certificate."""

    d: Density
    value: Scalar
    gap: Scalar  # the maximum is at most value + gap
    iterations: Int[Array, ""]


def maximise(
    mdp: MDP,
    objective: Callable[[Density], Scalar],
    tolerance: Scalar | float = 1e-8,
    max_iterations: Array | int = 2000,
) -> Optimum:
    """max_d of a concave, differentiable objective over the densities that policies can have.

    Pairwise Frank-Wolfe: mass moves from the worst to the best deterministic policy under the current gradient, the
    worst being sought only among the actions that d takes, as far as an exact line search says and d >= 0 allows.
    The certificate is the Frank-Wolfe gap max_pi <d^pi - d, grad>, which bounds max L - L(d) by concavity.
    The gradient must be finite at d = 0: for MADE's regulariser, lambda > 0.

    Not in the paper, which only supposes the maximum of Theorem 1; this computes it.
    """
    gradient = jax.grad(objective)
    speck = jnp.finfo(mdp.P.dtype).eps  # a visit rarer than this is none

    def move(d: Density, u: Density) -> Density:
        reach = jnp.min(jnp.where(u < 0, d / jnp.where(u < 0, -u, 1), jnp.inf))
        d = d + _line_search(gradient, d, u, reach) * u
        # Back on the flow constraints, which rounding leaves.
        return occupancy(mdp, policy_from_occupancy(jnp.where(d > speck, d, 0)))

    def advance(loop: tuple[Optimum, Array, Array, Array]) -> tuple[Optimum, Array, Array, Array]:
        """Judge d; if it is not good enough yet, and there is time, move it. The last round judges without moving."""
        (d, _, _, moves), best, worst, _ = loop
        g = gradient(d)
        used = (d > 0) | (jnp.sum(d, -1, keepdims=True) <= 0)
        worst = jnp.where(_taken(used, worst), worst, jnp.argmax(used, -1))
        top, bottom = policy_iteration(mdp.with_reward(g), best), policy_iteration(mdp.with_reward(-g), worst, used)
        up, down = (occupancy(mdp, plan.policy) for plan in (top, bottom))
        gap = jnp.sum(g * (up - d))
        on = (gap > tolerance) & (moves < max_iterations)
        found = Optimum(jnp.where(on, move(d, up - down), d), objective(d), gap, moves + on.astype(moves.dtype))
        return found, top.actions, bottom.actions, on

    d = occupancy(mdp, uniform_policy(mdp))
    first = Optimum(d, objective(d), jnp.full_like(mdp.gamma, jnp.inf), jnp.zeros((), int))
    choice = jnp.argmax(mdp.r, -1)
    return jax.lax.while_loop(lambda loop: loop[3], advance, (first, choice, choice, jnp.array(True)))[0]


def _taken(mask: Bool[Array, "S A"], actions: Int[Array, "S"]) -> Bool[Array, "S"]:
    return jnp.take_along_axis(mask, actions[:, None], -1)[:, 0]


def _line_search(gradient: Callable[[Density], Density], d: Density, u: Density, reach: Scalar) -> Scalar:
    """argmax over [0, reach] of a concave function along d + step u, by bisection on the sign of its slope."""

    def slope(step: Scalar) -> Scalar:
        return jnp.sum(u * gradient(jnp.maximum(d + step * u, 0)))

    def halve(_: Array | int, ends: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = ends
        middle = (low + high) / 2
        rising = slope(middle) > 0
        return jnp.where(rising, middle, low), jnp.where(rising, high, middle)

    low, high = jax.lax.fori_loop(0, 50, halve, (jnp.zeros_like(reach), reach))
    return jnp.where(slope(reach) >= 0, reach, (low + high) / 2)
