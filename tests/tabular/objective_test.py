"""The maximiser over visitation densities and its certificate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.tabular.mdp import MDP, uniform_policy
from made.tabular.objective import L_made, maximise, policy_cover
from made.tabular.solve import occupancy, policy_iteration


@pytest.fixture(scope="module", autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def mdp():
    rng = np.random.default_rng(5)
    return MDP(rng.dirichlet(np.full(8, 0.2), (8, 3)), rng.uniform(size=(8, 3)), rng.dirichlet(np.ones(8)), 0.9)


@pytest.fixture(scope="module")
def best():
    def solve(mdp, tau, lam, max_iterations):
        rho = occupancy(mdp, uniform_policy(mdp))
        return maximise(mdp, lambda d: L_made(mdp, d, rho, tau, lam), 1e-8, max_iterations)

    return jax.jit(solve)


@pytest.mark.parametrize(("tau", "lam"), [(0.1, 0.1), (1.0, 0.01), (0.1, 1e-4)])
def test_the_certificate_holds_against_every_density_tried(mdp, best, tau, lam):
    found = best(mdp, tau, lam, 200)
    assert -1e-12 <= found.gap <= 1e-8
    inflow = 0.1 * mdp.rho + 0.9 * jnp.einsum("sa,sat->t", found.d, mdp.P)
    assert np.allclose(found.d.sum(-1), inflow, atol=1e-12) and (found.d >= 0).all()
    policies = jax.nn.softmax(4 * jax.random.normal(jax.random.key(0), (500, 8, 3)))
    tried = jax.vmap(occupancy, in_axes=(None, 0))(mdp, policies)
    near = 0.99 * found.d[None] + 0.01 * tried  # feasible too: the densities form a convex set
    rho = occupancy(mdp, uniform_policy(mdp))
    for d in (tried, near):
        assert (jax.vmap(lambda d: L_made(mdp, d, rho, tau, lam))(d) <= found.value + found.gap + 1e-12).all()


def test_stopped_early_the_gap_still_bounds_the_error(mdp, best):
    full = best(mdp, 1.0, 0.01, 200)
    for stop in (0, 1, 3):
        early = best(mdp, 1.0, 0.01, stop)
        assert early.iterations == stop
        assert early.gap > 1e-4
        assert early.value <= full.value <= early.value + early.gap


def test_without_a_regulariser_it_is_planning(mdp, best):
    found = best(mdp, 0.0, 0.1, 200)
    assert found.value == pytest.approx(float(mdp.rho @ policy_iteration(mdp).v), abs=1e-7)
    assert ((found.d > 1e-6).sum(-1) <= 1).all()  # a linear objective ends at a deterministic policy


def test_a_bandit_can_be_solved_by_hand():
    """One state: the densities are the whole simplex, so d + lam is proportional to 1 / (rho + lam)."""
    mdp = MDP(jnp.ones((1, 3, 1)), jnp.zeros((1, 3)), jnp.ones(1), 0.5)
    rho, lam = jnp.array([[0.5, 0.3, 0.2]]), 0.2
    found = maximise(mdp, lambda d: L_made(mdp, d, rho, 0.7, lam))
    share = 1 / (rho + lam)
    assert np.allclose(found.d, (1 + 3 * lam) * share / share.sum() - lam, atol=1e-4)
    assert found.gap <= 1e-8


def test_policy_cover_is_the_mean():
    assert policy_cover(jnp.array([[[1.0, 0.0]], [[0.5, 0.5]]])).tolist() == [[0.75, 0.25]]
