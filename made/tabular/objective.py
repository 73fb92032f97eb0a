"""The regularised objective of Sections 1-3 as functions of a visitation density d, written as maths.

L_k(d) = J(d) + tau_k R(d; rho_cov). Its gradient is the reward r_k that Algorithm 1 hands to a planner; here it is
taken by `jax.grad`, with the paper's closed form beside it.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from made.tabular.mdp import MDP, uniform_policy
from made.tabular.solve import linear_solve, occupancy, policy_from_occupancy, policy_iteration

Density = Float[Array, "S A"]
Scalar = Float[Array, ""]
Number = Scalar | float
Objective = Callable[[Density], Scalar]


def policy_cover(densities: Float[Array, "k S A"]) -> Density:
    """rho_cov^k = (1/k) sum_i d^{pi_i}, the density over what all policies so far have explored, Section 3.2."""
    return jnp.mean(densities, 0)


def J(mdp: MDP, d: Density) -> Scalar:
    """J(d) = (1 - gamma)^{-1} sum_{s,a} d(s,a) r(s,a), Eq. (2), eq:RL_objective."""
    return jnp.sum(d * mdp.r) / (1 - mdp.gamma)


def R(d: Density, rho_cov: Density) -> Scalar:
    """R(d) = sum_{s,a} sqrt(d(s,a) / rho_cov(s,a)), Eq. (4), eq:MADE_regularizer. It needs rho_cov > 0."""
    return jnp.sum(jnp.sqrt(d / rho_cov))


def R_lambda(d: Density, rho_cov: Density, lam: Number) -> Scalar:
    """R_lambda(d) = sum_{s,a} sqrt((d + lambda) / (rho_cov + lambda)), Eq. (7), eq:smoothed_regularizer."""
    return jnp.sum(jnp.sqrt((d + lam) / (rho_cov + lam)))


def linear_regulariser(d: Density, bonus: Density) -> Scalar:
    """R(d) = sum_{s,a} d(s,a) b(s,a): the regulariser behind any count bonus b, Section 3.2. Its gradient is b."""
    return jnp.sum(d * bonus)


def shannon_entropy(d: Density) -> Scalar:
    """R(d) = - sum_{s,a} d log d, Section 3.2. Its gradient is -log d - 1."""
    return -jnp.sum(jax.scipy.special.xlogy(d, d))


def L(mdp: MDP, d: Density, tau_k: Number, regulariser: Objective) -> Scalar:
    """L_k(d) = J(d) + tau_k R(d), Eq. (3), def:regularized_objective_population_general, for any regulariser."""
    return J(mdp, d) + tau_k * regulariser(d)


def L_made(mdp: MDP, d: Density, rho_cov: Density, tau_k: Number, lam: Number = 0.0) -> Scalar:
    """L_k(d) = J(d) + tau_k R_lambda(d; rho_cov); Eq. (1), eq:made_objective, at lambda = 0, and Theorem 1's above."""
    return L(mdp, d, tau_k, lambda x: R_lambda(x, rho_cov, lam))


def reward_by_gradient(mdp: MDP, objective: Objective, d: Density) -> Density:
    """r_k = (1 - gamma) grad_d L_k(d), Eq. (5), eq:reward_general, for any objective of d, by autodiff."""
    return (1 - mdp.gamma) * jax.grad(objective)(d)


def reward_made(mdp: MDP, d: Density, rho_cov: Density, tau_k: Number, lam: Number = 0.0) -> Density:
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


def maximise(mdp: MDP, objective: Objective, tolerance: Number = 1e-8, max_iterations: Array | int = 200) -> Optimum:
    """max_d of a concave, differentiable objective over the densities that policies can have.

    An interior-point method: Newton steps on objective + mu sum log d within the flow constraints, each as far as an
    exact line search says, mu following the gap down. The certificate is the Frank-Wolfe gap max_pi <d^pi - d, grad>,
    found by planning, which bounds max L - L(d) by concavity whatever the steps were. The Hessian is taken to be
    diagonal, as it is for every regulariser here; for others the steps still ascend, but are more.
    The gradient must be finite at d = 0: for MADE's regulariser, lambda > 0.

    Not in the paper, which only supposes the maximum of Theorem 1; this computes it.
    """
    gradient = jax.grad(objective)
    start = occupancy(mdp, uniform_policy(mdp))
    seen = start > 0  # what the uniform policy never visits, none does

    def ascend(d: Density, mu: Scalar) -> Density:
        def inner(x: Density) -> Density:  # the gradient with the barrier's
            return jnp.where(seen, gradient(x) + mu / jnp.where(seen, x, 1), 0)

        derivative, curvature = jax.jvp(inner, (d,), (jnp.ones_like(d),))
        weight = jnp.maximum(-curvature, mu / jnp.where(seen, d, 1) ** 2)
        u, normal = _newton(mdp, derivative, jnp.where(seen, 1 / weight, 0))
        reach = 0.99 * jnp.min(jnp.where(u < 0, d / jnp.where(u < 0, -u, 1), 1e6))
        # u lies in the flow constraints, so their normal adds nothing to a slope along it but rounding errors.
        step = _line_search(lambda x: inner(x) - normal, d, u, reach)
        return occupancy(mdp, policy_from_occupancy(d + step * u))

    def advance(loop: tuple[Optimum, Array, Scalar, Array]) -> tuple[Optimum, Array, Scalar, Array]:
        """Judge d; if it is not good enough yet, and there is time, move it. The last round judges without moving."""
        (d, _, _, moves), near, mu, _ = loop
        g = gradient(d)
        best = policy_iteration(mdp.with_reward(g), near)
        gap = jnp.sum(g * (occupancy(mdp, best.policy) - d))
        on = (gap > tolerance) & (moves < max_iterations)
        mu = jnp.minimum(mu, 0.1 * gap / d.size)
        found = Optimum(jnp.where(on, ascend(d, mu), d), objective(d), gap, moves + on.astype(moves.dtype))
        return found, best.actions, mu, on

    far = jnp.full_like(mdp.gamma, jnp.inf)
    first = (Optimum(start, far, far, jnp.zeros((), int)), jnp.argmax(mdp.r, -1), far, jnp.array(True))
    return jax.lax.while_loop(lambda loop: loop[3], advance, first)[0]


def _newton(mdp: MDP, derivative: Density, give: Density) -> tuple[Density, Density]:
    """The u that maximises <slope, u> - sum u^2 / (2 give) among changes of d that keep the flow, and the slope's part
    normal to them.

    The flow is A u = 0 with (A u)(t) = sum_a u(t, a) - gamma sum_{s,a} P(t | s, a) u(s, a).
    """
    flow = jnp.eye(mdp.n_states, dtype=derivative.dtype)[:, None, :] - mdp.gamma * mdp.P
    M = jnp.einsum("sat,sa,sau->tu", flow, give, flow)
    size = jnp.diagonal(M)
    scale = jnp.where(size > 0, size, 1) ** -0.5  # states hardly visited would spoil the solve otherwise
    ridge = jnp.finfo(derivative.dtype).eps * jnp.eye(mdp.n_states, dtype=derivative.dtype)
    side = scale * jnp.einsum("sat,sa->t", flow, give * derivative)
    normal = flow @ (scale * linear_solve(scale[:, None] * M * scale[None, :] + ridge, side))
    return give * (derivative - normal), normal


def _line_search(gradient: Callable[[Density], Density], d: Density, u: Density, reach: Scalar) -> Scalar:
    """argmax over [0, reach] of a concave function along d + step u, by bisection on the sign of its slope."""

    def derivative(step: Scalar) -> Scalar:
        return jnp.sum(u * gradient(d + step * u))

    def halve(_: Array | int, ends: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = ends
        middle = (low + high) / 2
        rising = derivative(middle) > 0
        return jnp.where(rising, middle, low), jnp.where(rising, high, middle)

    low, high = jax.lax.fori_loop(0, 50, halve, (jnp.zeros_like(reach), reach))
    return (low + high) / 2
