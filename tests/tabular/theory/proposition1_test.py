"""Proposition 1: concavity, smoothness, boundedness, drift; where the printed constants fail and what holds.

L_k(d) = J(d) + (tau / k^c) R_lambda(d; rho_k), over visitation densities d and covers rho_k.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.tabular.algorithm1 import Constants, settings_for
from made.tabular.mdp import MDP
from made.tabular.objective import L_made

N, S, A = 400, 4, 3


@pytest.fixture(scope="module", autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def densities(seed):
    """Points of the simplex from its centre to its corners: any of them is a density of some MDP."""
    sharpness = jnp.linspace(0, 30, N)[:, None]
    return jax.nn.softmax(sharpness * jax.random.normal(jax.random.key(seed), (N, S * A))).reshape(N, S, A)


@pytest.fixture(scope="module")
def mdp():
    r = np.random.default_rng(0).uniform(size=(S, A))
    return MDP(np.full((S, A, S), 1 / S), r, np.full(S, 1 / S), 0.9)


@pytest.fixture(scope="module")
def sides():
    """L, its gradient and the diagonal of its Hessian at many (d, rho), in one program."""

    def at(mdp, d, rho, tau_k, lam):
        f = lambda x: L_made(mdp, x, rho, tau_k, lam)  # noqa: E731
        slope = jax.grad(f)
        hessian = jax.jacfwd(slope)(d).reshape(S * A, S * A)
        return f(d), slope(d), hessian

    return jax.jit(jax.vmap(at, in_axes=(None, 0, 0, None, None)))


@pytest.mark.parametrize("lam", [1e-3, 0.1, 2.0])
@pytest.mark.parametrize("k", [1, 5])
def test_corrected_constants_hold(mdp, sides, lam, k):
    """(i)-(iii) with the corrected constants, on 400 pairs of densities."""
    tau, c = 0.8, 2.0
    constants = Constants.corrected(S, A, 0.9, lam, tau, c)
    d, rho = densities(1), densities(2)
    value, slope, hessian = sides(mdp, d, rho, tau / k**c, lam)
    diagonal = jnp.diagonal(hessian, axis1=1, axis2=2)
    assert np.allclose(hessian, jax.vmap(jnp.diag)(diagonal))
    assert (diagonal < 0).all()  # (i) concave
    assert (-diagonal <= constants.beta * (1 + 1e-12)).all()  # (ii) smooth
    assert (value <= constants.B).all() and (jnp.abs(slope) <= constants.gradient).all()  # (iii) bounded
    _, other, _ = sides(mdp, densities(3), rho, tau / k**c, lam)
    distance = jnp.abs(d - densities(3)).max((1, 2))
    assert (jnp.abs(slope - other).max((1, 2)) <= constants.beta * distance * (1 + 1e-9)).all()


def test_smoothness_is_attained_with_the_temperature_and_not_without(mdp, sides):
    """Item 17: at d = rho = 0 the curvature is tau / (4 k^c lam^2), so that beta is tight in tau and k; the printed
    1 / (4 lam^2) is valid but misses the factor tau."""
    empty, lam, tau = jnp.zeros((N, S, A)), 0.05, 0.02
    _, _, hessian = sides(mdp, empty, empty, tau, lam)
    steepest = -jnp.diagonal(hessian, axis1=1, axis2=2).min()
    assert steepest == pytest.approx(float(Constants.corrected(S, A, 0.9, lam, tau).beta), rel=1e-12)
    assert Constants.printed(S, A, 0.9, lam, tau).beta == pytest.approx(float(steepest) / tau)


def test_the_printed_smoothness_costs_millions_of_iterations():
    """Item 17: lam = 0.01, eps = 0.1 give eta = 4e-6; with the right beta, eta does not depend on eps at all."""
    printed, K_printed = settings_for(0.1, 8, 3, 0.9, 0.01, form="printed")
    corrected, K = settings_for(0.1, 8, 3, 0.9, 0.01)
    finer, _ = settings_for(0.01, 8, 3, 0.9, 0.01)
    assert printed.eta == pytest.approx(4e-6)
    assert 2e6 < K_printed < 4e6
    assert corrected.eta == pytest.approx(finer.eta) and corrected.eta > 0.1
    assert K < 60


def test_the_printed_bound_on_values_forgets_the_discount(sides):
    """Item 16: B is claimed for J + ..., but bounds sum d r: with all rewards 1 and gamma = 0.999, J alone is 1000."""
    rich = MDP(np.full((S, A, S), 1 / S), np.ones((S, A)), np.full(S, 1 / S), 0.999)
    value, _, _ = sides(rich, densities(1), densities(2), 0.5, 0.1)
    assert (value > Constants.printed(S, A, 0.999, 0.1, 0.5).B).all()
    assert (value <= Constants.corrected(S, A, 0.999, 0.1, 0.5).B).all()


def test_the_printed_bound_on_gradients_fails_for_small_lambda(mdp, sides):
    """Item 16: the gradient grows as tau / (2 lam), B as 1 / sqrt(lam)."""
    corner = jnp.zeros((N, S, A)).at[:, 0, 0].set(1)
    lam, tau = 1e-5, 0.5
    _, slope, _ = sides(mdp, corner, corner, tau, lam)
    printed, corrected = (form(S, A, 0.9, lam, tau) for form in (Constants.printed, Constants.corrected))
    assert slope.max() > 5 * printed.B and slope.max() > corrected.B
    assert slope.max() <= corrected.gradient


def test_the_printed_drift_is_one_sided(mdp, sides):
    """Item 15: L_k - L_{k+1}, which the proof also needs, exceeds the printed delta_k; 1 / k^c bounds both sides."""
    lam, tau, c = 1.0, 0.5, 2.0
    printed, corrected = (form(S, A, 0.9, lam, tau, c) for form in (Constants.printed, Constants.corrected))
    d = densities(1)
    for k in (1, 2, 5):
        now, _, _ = sides(mdp, d, densities(2), tau / k**c, lam)
        later, _, _ = sides(mdp, d, densities(3), tau / (k + 1) ** c, lam)
        assert (later - now <= printed.delta(k)).all()  # the printed side
        assert (jnp.abs(later - now) <= corrected.delta(k)).all()
        if k == 1:
            assert (now - later > printed.delta(k)).all()  # the other


def test_the_printed_temperature_does_not_add_up_to_eps():
    """Item 14: tau = 0.1 eps makes 2 tau xi = 0.2 xi eps, and xi is in the hundreds; tau = 0.1 eps / xi, 0.2 eps."""
    eps, lam = 0.1, 0.1
    for form, share in (("printed", 26.2), ("corrected", 0.2)):
        solver, K = settings_for(eps, 8, 3, 0.9, lam, form=form)
        constants = getattr(Constants, form)(8, 3, 0.9, lam, solver.tau)
        assert constants.xi == pytest.approx(math.pi**2 / 6 * 24 * math.sqrt(11), rel=1e-6)
        assert 2 * solver.tau * constants.xi == pytest.approx(share * eps, rel=0.01)
        parts = [
            constants.B * math.exp(-solver.eta * K),
            2 * constants.beta * solver.eps_d,
            solver.eps_p,
            4 * solver.eta * constants.beta,
            2 * solver.tau * constants.xi,
        ]
        limits = [0.1, 0.2, 0.1, 0.4, share]
        assert all(float(x) <= limit * eps * 1.01 for x, limit in zip(parts, limits, strict=True))
        assert (sum(parts) <= eps * (1 + 1e-9)) == (form == "corrected")


@pytest.mark.parametrize("c", [0.3, 1.0, 2.0])
def test_drift_vanishes_with_k_for_every_c(c):
    """Item 18: xi exists only for c > 1, but the sum is at most ((2/K)^c + (1-eta)^(K/2)) / eta for any c > 0, so no
    small tau is needed once K is large."""
    constants = Constants.corrected(S, A, 0.9, 0.1, 0.5, c)
    assert jnp.isfinite(constants.xi) == (c > 1)
    drifts = [float(constants.drift(0.1, K)) for K in (10, 100, 1000, 10_000)]
    limits = [float(constants.drift_limit(0.1, K)) for K in (10, 100, 1000, 10_000)]
    assert all(drift <= limit for drift, limit in zip(drifts, limits, strict=True))
    assert drifts[-1] < 0.2 * drifts[0]
    assert drifts[-1] == pytest.approx(float(constants.scale) / 10_000**c / 0.1, rel=0.01)  # O(K^-c / eta)
    if c > 1:
        assert max(drifts) <= 0.5 * constants.xi


def test_drift_sums_what_the_theorem_sums():
    printed, corrected = (form(2, 2, 0.9, 0.1, 0.3, 1.5) for form in (Constants.printed, Constants.corrected))
    by_hand = sum(0.8**i * float(corrected.delta(6 - i)) for i in range(6))
    assert corrected.drift(0.2, 6) == pytest.approx(by_hand, rel=1e-12)
    with_zero = sum(0.8**i * float(printed.delta(6 - i)) for i in range(7))
    assert printed.drift(0.2, 6) == pytest.approx(with_zero, rel=1e-12)
    whole = corrected.B * math.exp(-1.2) + 2 * corrected.beta * 0.01 + 0.02 + 0.8 * corrected.beta + 2 * by_hand
    assert corrected.bound(0.2, 6, 0.01, 0.02) == pytest.approx(float(whole), rel=1e-12)
