"""Exact answers on a finite MDP: values, plans and visitation densities, by linear solves.

Every function works on one MDP, under jit, vmap and (where no argmax is taken) grad.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from made.tabular.mdp import MDP


class Plan(NamedTuple):
    """An optimal deterministic policy and its values."""

    actions: Int[Array, "S"]
    v: Float[Array, "S"]
    q: Float[Array, "S A"]
    rounds: Int[Array, ""]  # evaluations it took

    @property
    def policy(self) -> Float[Array, "*b S A"]:
        """The plan as a policy: probability one on its action in every state."""
        return jax.nn.one_hot(self.actions, self.q.shape[-1], dtype=self.q.dtype)


SMALL = 64  # states up to which `linear_solve` eliminates by itself


def linear_solve(A: Float[Array, "S S"], b: Float[Array, "S"]) -> Float[Array, "S"]:
    """x with A x = b, for matrices that need no pivoting: definite ones, and those whose diagonal dominates.

    All systems here are of these kinds: I - gamma P^pi, its transpose, and normal equations. Small ones are solved by
    Gauss-Jordan elimination, which under vmap is a few times faster than a batch of LAPACK calls, and sure to end: on a
    CPU with few cores XLA's threads were seen to wait for each other for ever with batches of such calls in a loop.
    """
    n = A.shape[-1]
    if n > SMALL:
        return jnp.linalg.solve(A, b)
    rows = jnp.arange(n)[:, None]

    def eliminate(M: Array, k: Array) -> tuple[Array, None]:
        pivot = M[k] / M[k, k]
        return jnp.where(rows == k, pivot, M - M[:, k, None] * pivot), None

    M, _ = jax.lax.scan(eliminate, jnp.concatenate([A, b[:, None]], 1), jnp.arange(n))
    return M[:, n]


def state_kernel(mdp: MDP, policy: Float[Array, "S A"]) -> Float[Array, "S S"]:
    """P^pi(s' | s) = sum_a pi(a | s) P(s' | s, a)."""
    return jnp.einsum("sa,sat->st", policy, mdp.P)


def policy_value(mdp: MDP, policy: Float[Array, "S A"]) -> Float[Array, "S"]:
    """V^pi (Section 2), the solution of V = r^pi + gamma P^pi V."""
    return linear_solve(_resolvent(mdp, state_kernel(mdp, policy)), jnp.sum(policy * mdp.r, -1))


def action_value(mdp: MDP, v: Float[Array, "S"]) -> Float[Array, "S A"]:
    """Q(s, a) = r(s, a) + gamma sum_s' P(s' | s, a) v(s')."""
    return mdp.r + mdp.gamma * (mdp.P @ v)


def expected_return(mdp: MDP, policy: Float[Array, "S A"]) -> Float[Array, ""]:
    """J(pi) = E_{s ~ rho} V^pi(s), Eq. (2), eq:RL_objective. `objective.J` is the same as a function of d."""
    return mdp.rho @ policy_value(mdp, policy)


def occupancy(mdp: MDP, policy: Float[Array, "S A"]) -> Float[Array, "S A"]:
    """The visitation density d^pi(s, a) = (1 - gamma) sum_t gamma^t Pr(s_t = s, a_t = a; pi), Section 2.

    Its state marginal solves d(s') = (1 - gamma) rho(s') + gamma sum_s P^pi(s' | s) d(s); the entries sum to one.
    """
    return _occupancy_from(mdp, policy, mdp.rho)


def pair_occupancy(mdp: MDP, policy: Float[Array, "S A"], state: Any, action: Any) -> Float[Array, "S A"]:
    """d^pi_{s',a'} of Appendix C: the visitation density given s_0 = s' and a_0 = a', t = 0 included.

    d_{s',a'} = (1 - gamma) 1[s', a'] + gamma d^pi started from P(. | s', a').
    """
    return (mdp.gamma * _occupancy_from(mdp, policy, mdp.P[state, action])).at[state, action].add(1 - mdp.gamma)


def policy_from_occupancy(d: Float[Array, "*b S A"]) -> Float[Array, "*b S A"]:
    """The stationary policy whose visitation density is d: pi(a | s) = d(s, a) / sum_a d(s, a) (Puterman).

    This is how the mixture of Section 2 becomes one policy. States that d never visits get the uniform policy.
    """
    visits = jnp.sum(d, -1, keepdims=True)
    return jnp.where(visits > 0, d / jnp.where(visits > 0, visits, 1), 1 / d.shape[-1])


def policy_iteration(mdp: MDP, start: Int[Array, "S"] | None = None) -> Plan:
    """An optimal deterministic policy by policy iteration (Howard), each evaluation one linear solve.

    `start` warms it: from the plan of a nearby reward it takes a round or two. An action changes only for a strictly
    better one, and the loop ends when no value improves any more, so rounding cannot make it cycle.
    """

    def evaluate(actions: Array) -> tuple[Array, Array]:
        s = jnp.arange(mdp.n_states)
        v = linear_solve(_resolvent(mdp, mdp.P[s, actions]), mdp.r[s, actions])
        return v, action_value(mdp, v)

    def better(actions: Array, q: Array) -> tuple[Array, Array]:
        gain = jnp.max(q, -1) > jnp.take_along_axis(q, actions[:, None], -1)[:, 0]
        return jnp.where(gain, jnp.argmax(q, -1), actions), jnp.any(gain)

    def improve(loop: tuple[Plan, Array, Array]) -> tuple[Plan, Array, Array]:
        plan, proposal, _ = loop
        v, q = evaluate(proposal)
        improved = jnp.sum(v) > jnp.sum(plan.v)  # exact arithmetic: always, for a policy improvement
        new, old = Plan(proposal, v, q, plan.rounds + 1), plan._replace(rounds=plan.rounds + 1)
        kept = jax.tree.map(lambda a, b: jnp.where(improved, a, b), new, old)
        proposal, changed = better(kept.actions, kept.q)
        return kept, proposal, changed & improved

    actions = jnp.argmax(mdp.r, -1) if start is None else start
    v, q = evaluate(actions)
    proposal, changed = better(actions, q)
    first = Plan(actions, v, q, jnp.ones((), int))
    return jax.lax.while_loop(lambda loop: loop[2], improve, (first, proposal, changed))[0]


def horizon_optimum(mdp: MDP, horizon: int) -> tuple[Float[Array, ""], Int[Array, "horizon S"]]:
    """The best undiscounted return over `horizon` steps, and the action to take at each time in each state."""

    def back(v: Array, _: None) -> tuple[Array, Array]:
        q = mdp.r + mdp.P @ v
        return jnp.max(q, -1), jnp.argmax(q, -1)

    v, actions = jax.lax.scan(back, jnp.zeros_like(mdp.rho), length=horizon)
    return mdp.rho @ v, actions[::-1]


def _resolvent(mdp: MDP, kernel: Float[Array, "S S"]) -> Float[Array, "S S"]:
    """I - gamma P^pi, invertible for every policy since gamma < 1."""
    return jnp.eye(mdp.n_states, dtype=kernel.dtype) - mdp.gamma * kernel


def _occupancy_from(mdp: MDP, policy: Float[Array, "S A"], start: Float[Array, "S"]) -> Float[Array, "S A"]:
    matrix = _resolvent(mdp, state_kernel(mdp, policy)).T
    return linear_solve(matrix, (1 - mdp.gamma) * start)[:, None] * policy
