"""Algorithm 1 (alg:population_solver) with its two oracles, and the constants of Theorem 1.

Indices follow the algorithm, which is causal: pi_{k+1} is planned from L_k at the mixture of pi_1..pi_k. The proof in
Appendix A plans pi_k from L_k, whose cover already contains d^{pi_k}; re-indexed, it bounds the mixture after K
iterations (K + 1 policies) against the maximum of L_{K+1}.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from made.core.config import AT_LEAST_ZERO, POSITIVE, POSITIVE_SHARE, check_numbers
from made.tabular.mdp import MDP, check_policy, concrete, greedy_policy, uniform_policy
from made.tabular.objective import Density, J, L_made, Number, Objective, Scalar, reward_made
from made.tabular.solve import occupancy, policy_from_occupancy, policy_iteration


class Mixture(NamedTuple):
    """The policy mixture pi_{mix,k} (Section 2) by its weights and densities; the policies need not be kept (Remark 1).

    weights: w^k = ((1-eta)^{k-1}, (1-eta)^{k-2} eta, ..., eta), then zeros up to a fixed capacity; they sum to one.
    density: d^{pi_mix,k} = sum_i w_i^k d^{pi_i}.    cover: rho_cov^k = (1/k) sum_i d^{pi_i}.
    """

    weights: Float[Array, "capacity"]
    density: Density
    cover: Density
    k: Int[Array, ""]

    @classmethod
    def start(cls, d: Density, capacity: int) -> "Mixture":
        """One policy, of visitation density d, with all the weight."""
        return cls(jnp.zeros(capacity, d.dtype).at[0].set(1), d, d, jnp.ones((), int))

    def add(self, d: Density, eta: Number) -> "Mixture":
        """Line 7: w^{k+1} = ((1-eta) w^k, eta), so that d_mix <- (1-eta) d_mix + eta d."""
        if (k := concrete(self.k)) is not None and k >= self.weights.size:
            raise ValueError(f"This mixture has room for {self.weights.size} policies and is full: start a larger one.")
        share = 1 / (self.k + 1).astype(d.dtype)
        weights, density = ((1 - eta) * self.weights).at[self.k].set(eta), (1 - eta) * self.density + eta * d
        return Mixture(weights, density, (1 - share) * self.cover + share * d, self.k + 1)


def density_oracle(d: Density, eps_d: Number, key: Key[Array, ""]) -> Density:
    """A visitation density estimate with max |d_hat - d| exactly eps_d: random signs times eps_d (Appendix A).

    Where d - eps_d would be negative the sign is plus: below zero the smoothness of Proposition 1 does not hold,
    which the paper's oracle leaves open. The estimate need not sum to one.
    """
    sign = jax.random.rademacher(key, d.shape, d.dtype)
    return d + eps_d * jnp.where(d < eps_d, 1, sign)


class Planned(NamedTuple):
    """What the planning oracle returns: a policy, its density, and the exact plan's actions for the next warm start."""

    policy: Float[Array, "S A"]
    d: Density
    actions: Int[Array, "S"]


def planning_oracle(mdp: MDP, eps_p: Number, start: Int[Array, "S"] | None = None) -> Planned:
    """A policy with J(pi) >= max J - eps_p on this MDP (Appendix A), and no better than that where eps_p > 0.

    The exact plan's density is mixed with that of the policy that takes the worst action of Q*, by the largest weight
    that keeps the loss within eps_p; J is linear in d, so the loss is exactly eps_p (less only if even the bad policy
    loses less). The policy is the stationary one of that density.
    """
    best = policy_iteration(mdp, start)
    d = occupancy(mdp, best.policy)

    def worsen() -> Density:
        bad = occupancy(mdp, greedy_policy(-best.q))
        loss = J(mdp, d) - J(mdp, bad)
        weight = jnp.where(loss > eps_p, eps_p / jnp.where(loss > eps_p, loss, 1), 1)
        return (1 - weight) * d + weight * bad

    d = jax.lax.cond(eps_p > 0, worsen, lambda: d)  # an exact planner does not pay for the bad policy
    return Planned(policy_from_occupancy(d), d, best.actions)


class Progress(NamedTuple):
    """The state of Algorithm 1."""

    mixture: Mixture
    actions: Int[Array, "S"]  # of the last exact plan, from which the next one starts


class Report(NamedTuple):
    """What is known at iteration k, of the mixture of pi_1..pi_k."""

    k: Int[Array, "*K"]
    L: Float[Array, "*K"]  # L_k(d_mix,k)
    J: Float[Array, "*K"]  # J(d_mix,k)
    gap: Float[Array, "*K"]  # max_d L_k(d) - L_k(d_mix,k) is at most this


class Algorithm1(eqx.Module):
    """Policy computation for the adaptively regularised objective, Algorithm 1 (alg:population_solver).

    eta: weight of the newest policy. lam: the smoothing of Eq. (7). tau, c: tau_k = tau / k^c. eps_d, eps_p: the errors
    of the density and of the planning oracle. All are leaves: a stack of solvers is a batch for vmap.

    Differs from the paper: the cover is exact (its oracle estimates only the mixture's density); c = 0, a constant
    temperature, is allowed, though Theorem 1 wants c > 0.

    >>> from made.tabular.families import Garnet
    >>> mixture, report = Algorithm1(eta=0.2).solve(Garnet().draw(), 30, jax.random.key(0))
    >>> bool(report.gap[-1] < 0.05 * report.gap[0]), bool(report.J[-1] > report.J[0])
    (True, True)
    """

    eta: float = 0.1
    lam: float = 0.1
    tau: float = 0.1
    c: float = 2.0
    eps_d: float = 0.0
    eps_p: float = 0.0

    def __check_init__(self):
        check_numbers(
            self, {POSITIVE_SHARE: ("eta",), POSITIVE: ("lam",), AT_LEAST_ZERO: ("tau", "c", "eps_d", "eps_p")}
        )

    def tau_k(self, k: Int[Array, ""]) -> Scalar:
        """tau_k = tau / k^c, Theorem 1."""
        return self.tau / k.astype(jnp.zeros(0).dtype) ** self.c

    def objective(self, mdp: MDP, mixture: Mixture) -> Objective:
        """L_k as a function of d, with the cover and temperature of this mixture's k."""
        return lambda d: L_made(mdp, d, mixture.cover, self.tau_k(mixture.k), self.lam)

    def start(self, mdp: MDP, K: int, policy: Float[Array, "S A"] | None = None) -> Progress:
        """Line 2: the mixture of pi_1 alone (uniform unless given), with room for K more policies."""
        policy = uniform_policy(mdp) if policy is None else check_policy(mdp, policy)
        return Progress(Mixture.start(occupancy(mdp, policy), K + 1), jnp.argmax(mdp.r, -1))

    def step(self, mdp: MDP, progress: Progress, key: Key[Array, ""]) -> tuple[Progress, Planned, Report]:
        """Lines 4-7: estimate d_mix,k, form r_k, plan pi_{k+1} on M^k, add it to the mixture."""
        mixture = progress.mixture
        tau_k = self.tau_k(mixture.k)
        d_hat = density_oracle(mixture.density, self.eps_d, key)
        r_k = reward_made(mdp, d_hat, mixture.cover, tau_k, self.lam)
        plan = planning_oracle(mdp.with_reward(r_k), self.eps_p, progress.actions)
        # The middle of the proof of Theorem 1: max L_k - L_k(d_mix) <= max_d <d - d_mix, grad L_k(d_mix)>, the
        # Frank-Wolfe gap, here widened by what the oracles may have lost.
        gradient = reward_made(mdp, mixture.density, mixture.cover, tau_k, self.lam) / (1 - mdp.gamma)
        gap = jnp.sum((plan.d - mixture.density) * gradient) + self.eps_p + 2 * self.eps_d * tau_k / (4 * self.lam**2)
        value = self.objective(mdp, mixture)(mixture.density)
        report = Report(mixture.k, value, J(mdp, mixture.density), gap)
        return Progress(mixture.add(plan.d, self.eta), plan.actions), plan, report

    def solve(
        self, mdp: MDP, K: int, key: Key[Array, ""], policy: Float[Array, "S A"] | None = None
    ) -> tuple[Mixture, Report]:
        """K iterations: the mixture of K + 1 policies, and a report on each k = 1..K before its step."""

        def body(loop: tuple[Progress, Key[Array, ""]], _: None) -> tuple[tuple, Report]:
            key, k_step = jax.random.split(loop[1])
            progress, _plan, report = self.step(mdp, loop[0], k_step)
            return (progress, key), report

        (progress, _), reports = jax.lax.scan(body, (self.start(mdp, K, policy), key), length=K)
        return progress.mixture, reports


class Constants(NamedTuple):
    """The constants of Proposition 1 (prop:regularity) and the bound of Theorem 1 (thm:convergence_MADE).

    `printed` is Appendix A as it stands; `corrected` is what its proof supports:

    beta      printed 1 / (4 lam^2), valid but ignores the temperature; corrected tau / (4 lam^2).
    B         printed S A (1 + sqrt((1+lam)/lam)), for sum d r in place of J, and claimed for the gradient as well;
              corrected span / (1-gamma) + tau S A sqrt((1+lam)/lam), span = max r - min r (1 in the paper).
    gradient  printed B; corrected span / (1-gamma) + tau / (2 lam).
    delta_k   printed with 1 / (k+1)^c, one side only; corrected with 1 / k^c, which bounds |L_{k+1} - L_k|.
    xi        S A sqrt((1+lam)/lam) zeta(c): pi^2/6 at the paper's c = 2, infinite for c <= 1.
    """

    beta: Scalar
    B: Scalar
    gradient: Scalar
    xi: Scalar
    scale: Scalar  # delta_k = scale / (k + late)^c
    c: Scalar
    late: int

    @classmethod
    def printed(cls, S: int, A: int, gamma: Number, lam: Number, tau: Number, c: Number = 2.0) -> "Constants":
        """Proposition 1 as printed. gamma is not used there."""
        del gamma
        ratio = jnp.sqrt((1 + lam) / lam)
        B = S * A * (1 + ratio)
        beta = jnp.asarray(1 / (4 * lam**2))
        return cls(beta, B, B, S * A * ratio * _zeta(c), tau * S * A * ratio, jnp.asarray(c), 1)

    @classmethod
    def corrected(
        cls, S: int, A: int, gamma: Number, lam: Number, tau: Number, c: Number = 2.0, span: Number = 1.0
    ) -> "Constants":
        """Proposition 1 with the constants its proof supports."""
        ratio = jnp.sqrt((1 + lam) / lam)
        values = span / (1 - gamma)
        B, slope = values + tau * S * A * ratio, jnp.asarray(values + tau / (2 * lam))
        beta = jnp.asarray(tau / (4 * lam**2))
        return cls(beta, B, slope, S * A * ratio * _zeta(c), tau * S * A * ratio, jnp.asarray(c), 0)

    def delta(self, k: Array | int) -> Array:
        """delta_k of Proposition 1 (iv)."""
        return self.scale / (jnp.asarray(k, self.scale.dtype) + self.late) ** self.c

    def drift(self, eta: Number, K: int) -> Scalar:
        """sum_i (1-eta)^i delta_{K-i}, over the K changes of objective (printed: K + 1 terms, down to delta_0)."""
        i = jnp.arange(K + self.late)
        return jnp.sum((1 - eta) ** i.astype(self.scale.dtype) * self.delta(K - i))

    def drift_limit(self, eta: Number, K: int) -> Scalar:
        """A closed bound on the drift for any c > 0: scale ((2/K)^c + (1-eta)^(K/2)) / eta.

        The paper bounds the drift only for c = 2, by tau xi. This one goes to zero as K grows, for every tau and c.
        """
        return self.scale * ((2 / K) ** self.c + (1 - eta) ** (K / 2)) / eta

    def bound(self, eta: Number, K: int, eps_d: Number = 0.0, eps_p: Number = 0.0) -> Scalar:
        """Theorem 1: max L_{K+1} - L_{K+1}(d_mix) after K iterations is at most

        B e^{-eta K} + 2 beta eps_d + eps_p + 4 eta beta + 2 sum_i (1-eta)^i delta_{K-i}.
        """
        settled = self.B * jnp.exp(-eta * K)
        return settled + 2 * self.beta * eps_d + eps_p + 4 * eta * self.beta + 2 * self.drift(eta, K)


def settings_for(
    eps: float, S: int, A: int, gamma: float, lam: float, c: float = 2.0, form: str = "corrected"
) -> tuple[Algorithm1, int]:
    """The solver and the iterations K that Theorem 1 asks for to come within eps of the maximum.

    eta <= 0.1 eps / beta, eps_p <= 0.1 eps, eps_d <= 0.1 eps / beta, K >= log(10 B / eps) / eta, each at its limit. The
    printed form adds tau <= 0.1 eps, which leaves 2 tau xi = 0.2 xi eps, many times eps (the drift itself may well be
    small by then, see `drift_limit`, but the printed argument does not say so); the corrected one tau <= 0.1 eps / xi,
    and the bound adds up to eps: 0.1 + 0.2 + 0.1 + 0.4 + 0.2. Its eta, 4 lam^2 xi at most 1, does not depend on eps.
    """
    if not eps > 0 or form not in ("printed", "corrected"):
        raise ValueError(f"eps={eps}, form={form!r}: eps must be above 0 and form 'printed' or 'corrected'.")
    if not c > 1:
        raise ValueError(f"c is {c}, but xi is finite only for c > 1: see drift_limit, and run longer instead.")
    make = getattr(Constants, form)
    tau = 0.1 * eps / (float(make(S, A, gamma, lam, 1.0, c).xi) if form == "corrected" else 1.0)
    constants = make(S, A, gamma, lam, tau, c)
    step = 0.1 * eps / float(constants.beta)
    eta = min(1.0, step)
    K = math.ceil(math.log(max(10 * float(constants.B) / eps, 1.0)) / eta)
    return Algorithm1(eta, lam, tau, c, step, 0.1 * eps), max(K, 1)


def _zeta(c: Number) -> Array:
    """The sum of 1 / n^c over all n, infinite for c <= 1."""
    power = jnp.asarray(c)
    summable = power > 1
    return jnp.where(summable, jax.scipy.special.zeta(jnp.where(summable, power, 2.0), jnp.ones_like(power)), jnp.inf)
