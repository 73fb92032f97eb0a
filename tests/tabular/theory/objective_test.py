"""Section 3: the reward is the gradient, the unconstrained maximiser, and the bonuses that regularisers give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.tabular.mdp import MDP
from made.tabular.objective import (
    J,
    L,
    L_made,
    R,
    R_lambda,
    linear_regulariser,
    maximise,
    policy_cover,
    reward_by_gradient,
    reward_made,
    shannon_entropy,
    unconstrained_maximiser,
)
from made.tabular.solve import occupancy


@pytest.fixture(scope="module", autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def mdp():
    rng = np.random.default_rng(11)
    return MDP(rng.dirichlet(np.full(7, 0.3), (7, 3)), rng.uniform(size=(7, 3)), rng.dirichlet(np.ones(7)), 0.85)


@pytest.fixture(scope="module")
def densities(mdp):
    policies = jax.nn.softmax(2 * jax.random.normal(jax.random.key(0), (6, 7, 3)))
    return jax.jit(jax.vmap(occupancy, in_axes=(None, 0)))(mdp, policies)


@pytest.mark.parametrize("lam", [0.0, 0.01, 1.0])
def test_eq_6_is_the_gradient_of_eq_1(mdp, densities, lam):
    """Claim 1: r_k = (1 - gamma) grad L_k at d_mix. lam = 0 is Eq. (6); lam > 0 that of Eq. (7)."""
    rho, d, tau = policy_cover(densities[:5]), densities[5], 0.37
    by_autodiff = reward_by_gradient(mdp, lambda x: L_made(mdp, x, rho, tau, lam), d)
    assert jnp.abs(by_autodiff - reward_made(mdp, d, rho, tau, lam)).max() < 1e-10
    if lam == 0:
        written_out = mdp.r + 0.15 * tau / 2 / jnp.sqrt(d * rho)
        assert jnp.abs(by_autodiff - written_out).max() < 1e-10


def test_eq_1_is_eq_3_with_eq_4(mdp, densities):
    rho, d = policy_cover(densities[:5]), densities[5]
    assert L_made(mdp, d, rho, 0.2) == pytest.approx(float(L(mdp, d, 0.2, lambda x: R(x, rho))), rel=1e-14)
    assert L_made(mdp, d, rho, 0.2) == pytest.approx(float(J(mdp, d) + 0.2 * jnp.sqrt(d / rho).sum()), rel=1e-14)
    assert R_lambda(d, rho, 0.0) == pytest.approx(float(R(d, rho)), rel=1e-14)


def test_unconstrained_maximiser_is_one_over_the_cover(mdp, densities):
    """Claim 2: d proportional to 1 / rho_cov maximises R over the simplex (Cauchy-Schwarz gives its value)."""
    rho = policy_cover(densities)
    best = unconstrained_maximiser(rho)
    assert best.sum() == pytest.approx(1)
    assert R(best, rho) == pytest.approx(float(jnp.sqrt((1 / rho).sum())), rel=1e-12)
    slope = jax.grad(R)(best, rho)
    assert jnp.ptp(slope) < 1e-8 * slope.max()  # stationary on the simplex
    others = jax.nn.softmax(3 * jax.random.normal(jax.random.key(1), (300, 21))).reshape(300, 7, 3)
    assert (jax.vmap(R, in_axes=(0, None))(others, rho) < R(best, rho)).all()


def test_the_flow_constraints_forbid_that_maximiser(mdp, densities):
    rho = policy_cover(densities)
    best = unconstrained_maximiser(rho)
    inflow = 0.15 * mdp.rho + 0.85 * jnp.einsum("sa,sat->t", best, mdp.P)
    assert jnp.abs(best.sum(-1) - inflow).max() > 0.01
    reachable = jax.jit(lambda mdp: maximise(mdp, lambda d: R_lambda(d, rho, 1e-6), 1e-6))(mdp)
    assert reachable.gap <= 1e-6
    assert reachable.value + reachable.gap < R(best, rho) - 0.01


def test_linear_regulariser_gives_the_count_bonus(mdp, densities):
    """Claim 3: R(d) = <d, b> gives b, for any b; the Hoeffding bonus 1 / sqrt(N) among them."""
    counts = jax.random.randint(jax.random.key(2), (7, 3), 1, 100).astype(float)
    bonus = counts**-0.5
    reward = reward_by_gradient(mdp, lambda d: L(mdp, d, 0.3, lambda x: linear_regulariser(x, bonus)), densities[0])
    assert np.allclose(reward, mdp.r + 0.15 * 0.3 * bonus, atol=1e-12)


def test_shannon_entropy_gives_minus_log_d(mdp, densities):
    """Claim 3: up to an additive constant, which is -1."""
    d = densities[0]
    reward = reward_by_gradient(mdp, lambda x: L(mdp, x, 0.3, shannon_entropy), d)
    assert np.allclose((reward - mdp.r) / (0.15 * 0.3), -jnp.log(d) - 1, atol=1e-10)
    assert shannon_entropy(jnp.array([[0.5, 0.5, 0.0]])) == pytest.approx(float(jnp.log(2.0)))


def test_the_bonus_favours_what_was_visited_long_ago(mdp, densities):
    """Section 3.2: at equal cover, the pair that left the mixture earns more."""
    rho = policy_cover(densities)
    old = 0.1 * densities[0] + 0.9 * densities[1]
    bonus = reward_made(mdp, old, rho, 1.0) - mdp.r
    rarer = densities[1] < densities[0]
    even = reward_made(mdp, 0.5 * densities[0] + 0.5 * densities[1], rho, 1.0) - mdp.r
    assert ((bonus > even) == rarer).all()
