"""Finite Markov decision processes, M = (S, A, P, r, rho, gamma) of Section 2, checked where they are made."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float


class MDP(eqx.Module):
    """A finite discounted MDP as data: P[s, a, s'], r[s, a], the start rho[s] and the discount gamma.

    All four are array leaves, gamma too, so a stack of MDPs of one size is a batch for `jax.vmap`. Construction
    checks the shapes always and the numbers wherever they are known (not under jit or vmap). Leading axes, common
    to the four, are allowed for such stacks.

    Differs from the paper: rho is a distribution over states (Section 2 prints rho: S -> Delta(S)), and rewards
    need only be finite (it assumes [0, 1], but its own lock pays negative ones).

    >>> stay_or_end = MDP([[[1, 0], [0, 1]], [[0, 1], [0, 1]]], [[1, 0], [0, 0]], [1, 0], 0.9)
    >>> stay_or_end.absorbing.tolist()
    [False, True]
    """

    P: Float[Array, "*b S A S"]
    r: Float[Array, "*b S A"]
    rho: Float[Array, "*b S"]
    gamma: Float[Array, "*b"]

    def __init__(self, P: Any, r: Any, rho: Any, gamma: Any):
        P = jnp.asarray(P)
        kind = P.dtype if jnp.issubdtype(P.dtype, jnp.floating) else jnp.zeros(0).dtype
        # One dtype for all four: a float32 discount beside a float64 P would cost every solve its digits.
        self.P, self.r, self.rho, self.gamma = (jnp.asarray(x, kind) for x in (P, r, rho, gamma))

    def __check_init__(self):
        _check_shapes(self.P.shape, self.r.shape, self.rho.shape, self.gamma.shape)
        P, r, rho = (concrete(x) for x in (self.P, self.r, self.rho))
        if P is not None:
            check_distribution(P, "P", "(s, a)", "divide each row by its sum, or fill the rows left empty")
        if rho is not None:
            check_distribution(rho, "rho", "start", "divide rho by its sum")
        if r is not None and not np.isfinite(r).all():
            at = _first(~np.isfinite(r))
            raise ValueError(f"r{list(at)} is {r[at]}; every reward must be finite: look for a division by zero.")
        check_discount(self.gamma)

    @property
    def n_states(self) -> int:
        return self.P.shape[-1]

    @property
    def n_actions(self) -> int:
        return self.P.shape[-2]

    @property
    def absorbing(self) -> Bool[Array, "*b S"]:
        """The states where an episode is over: every action loops with probability one and pays nothing."""
        loops = jnp.diagonal(self.P, axis1=-3, axis2=-1) == 1  # [*b, A, S]
        return jnp.all(loops, -2) & jnp.all(self.r == 0, -1)

    def with_reward(self, r: Float[Array, "*b S A"]) -> "MDP":
        """The same process paid by another reward: M^k = (S, A, P, r_k, gamma) of Algorithm 1, line 6."""
        return eqx.tree_at(lambda mdp: mdp.r, self, r)


def uniform_policy(mdp: MDP) -> Float[Array, "S A"]:
    """Every action equally likely in every state: pi(a | s) = 1 / A."""
    return jnp.full_like(mdp.r, 1 / mdp.n_actions)


def greedy_policy(q: Float[Array, "S A"]) -> Float[Array, "S A"]:
    """The policy that takes argmax_a q(s, a) surely; the first of several equal actions."""
    return jax.nn.one_hot(jnp.argmax(q, -1), q.shape[-1], dtype=q.dtype)


def check_policy(mdp: MDP, policy: Float[Array, "..."]) -> Float[Array, "S A"]:
    """The policy, given back if it is one for this MDP: shape [S, A], each row a distribution over actions."""
    wanted = (mdp.n_states, mdp.n_actions)
    if policy.shape != wanted:
        raise ValueError(
            f"The policy has shape {policy.shape}, but this MDP takes {wanted}: one row of action "
            "probabilities for each state (greedy_policy makes one from action values)."
        )
    if (known := concrete(policy)) is not None:
        check_distribution(known, "policy", "state", "divide each row by its sum, or use project_simplex")
    return policy


def concrete(x: Any) -> np.ndarray | None:
    """The numbers in x, or None where they are not known yet (under jit, vmap and grad)."""
    try:
        return np.asarray(x)
    except jax.errors.TracerArrayConversionError:
        return None


def check_discount(gamma: Any) -> None:
    """Refuse a discount outside [0, 1), where it is known."""
    known = concrete(gamma)
    if known is not None and not ((known >= 0) & (known < 1)).all():
        raise ValueError(
            f"gamma is {known}, but a discount must lie in [0, 1); for an undiscounted task use a gamma just below 1, "
            "or the finite-horizon functions of made.tabular.solve."
        )


def check_distribution(p: np.ndarray, name: str, row: str, fix: str) -> None:
    """Refuse an array whose last axis is not a probability distribution, naming the first offending row."""
    negative = ~(p >= 0)
    if negative.any():
        at = _first(negative)
        raise ValueError(
            f"{name}{list(at)} is {p[at]}, but probabilities are numbers of at least 0: check the sign, or where "
            "the entry was computed."
        )
    total = p.sum(-1, dtype=np.float64)
    off = ~(np.abs(total - 1) <= max(1e-10, 16 * float(np.finfo(p.dtype).eps) * p.shape[-1] ** 0.5))
    if off.any():
        at = _first(off)
        where = f"{name}{list(at)}" if at else name
        raise ValueError(f"{where} sums to {total[at]}, but each {row} row must sum to 1: {fix}.")


def _check_shapes(P: tuple, r: tuple, rho: tuple, gamma: tuple) -> None:
    """Every shape follows from that of P: [*b, S, A, S]."""
    if len(P) < 3 or P[-1] != P[-3] or 0 in P:
        raise ValueError(
            f"P has shape {P}, but it must be [S, A, S] with at least one state and action: P[s, a] is the "
            "distribution of the next state. If yours is [A, S, S], swap its first two axes."
        )
    for name, shape, wanted, advice in (
        ("r", r, P[:-1], "r is paid for (s, a); average a reward r(s, a, s') over P first"),
        ("rho", rho, P[:-2], "rho is one distribution over start states, not one for each state"),
        ("gamma", gamma, P[:-3], "gamma is one number for each MDP"),
    ):
        if shape != wanted:
            raise ValueError(f"{name} has shape {shape}, but P of shape {P} asks for {wanted}: {advice}.")


def _first(mask: np.ndarray | np.bool_) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(mask)[0])
