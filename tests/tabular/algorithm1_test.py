"""Algorithm 1's parts: the mixture, the two oracles, the loop."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.tabular.algorithm1 import Algorithm1, Mixture, density_oracle, planning_oracle, settings_for
from made.tabular.mdp import MDP, uniform_policy
from made.tabular.objective import J, reward_made
from made.tabular.solve import occupancy, policy_iteration

solve = jax.jit(Algorithm1.solve, static_argnums=2)
step = jax.jit(Algorithm1.step)
plan = jax.jit(planning_oracle)
best_return = jax.jit(lambda mdp, r: mdp.rho @ policy_iteration(mdp.with_reward(r)).v)


@pytest.fixture(scope="module", autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def mdp():
    rng = np.random.default_rng(2)
    return MDP(rng.dirichlet(np.full(6, 0.3), (6, 3)), rng.uniform(size=(6, 3)), rng.dirichlet(np.ones(6)), 0.9)


@pytest.fixture(scope="module")
def walk(mdp):
    """Eight iterations by hand: the solver, every mixture, every density, every plan."""
    solver = Algorithm1(eta=0.2, lam=0.01, tau=20.0, c=0.5)  # so strong a bonus decides the plans
    progress = solver.start(mdp, 8)
    mixtures, densities, plans = [progress.mixture], [progress.mixture.density], []
    for key in jax.random.split(jax.random.key(0), 8):
        progress, planned, _ = step(solver, mdp, progress, key)
        mixtures.append(progress.mixture)
        densities.append(planned.d)
        plans.append(planned)
    return solver, mixtures, jnp.stack(densities), plans


def test_weights_are_the_papers_and_sum_to_one(walk):
    """Claim of Section 3.2: w^k = ((1-eta)^{k-1}, (1-eta)^{k-2} eta, ..., eta)."""
    _, mixtures, _, _ = walk
    for k, mixture in enumerate(mixtures, start=1):
        printed = [0.8 ** (k - 1)] + [0.8 ** (k - i) * 0.2 for i in range(2, k + 1)]
        assert np.allclose(mixture.weights, printed + [0] * (9 - k), atol=1e-15)
        assert mixture.weights.sum() == pytest.approx(1, abs=1e-15)
        assert mixture.k == k


def test_density_and_cover_are_the_weighted_sums(walk):
    """d_mix,k = sum_i w_i d_i and rho_cov^k = (1/k) sum_i d_i, though both are kept by recursion."""
    _, mixtures, densities, _ = walk
    for k, mixture in enumerate(mixtures, start=1):
        assert np.allclose(mixture.density, jnp.einsum("k,ksa->sa", mixture.weights[:k], densities[:k]), atol=1e-14)
        assert np.allclose(mixture.cover, densities[:k].mean(0), atol=1e-14)


def test_policies_are_planned_from_the_past_alone(walk, mdp):
    """pi_{k+1} is optimal for r_k at (d_mix,k, rho_cov^k). With its own density in the cover, as the indices of the
    paper's proof have it, the reward would be another, and so would the plan."""
    _, mixtures, _, plans = walk
    losses = []
    for k, planned in enumerate(plans, start=1):
        now, later = mixtures[k - 1], mixtures[k]
        r_k = reward_made(mdp, now.density, now.cover, 20 / k**0.5, 0.01)
        best = best_return(mdp, r_k)
        assert J(mdp.with_reward(r_k), planned.d) == pytest.approx(float(best), rel=1e-12)
        acausal = reward_made(mdp, now.density, later.cover, 20 / k**0.5, 0.01)
        losses.append(best - J(mdp.with_reward(r_k), plan(mdp.with_reward(acausal), 0.0).d))
    assert max(losses) > 0.1


def test_solve_is_the_scan_of_step(walk, mdp):
    solver, mixtures, _, _ = walk
    mixture, report = solve(solver, mdp, 8, jax.random.key(0))
    assert eqx.tree_equal(mixture, mixtures[-1], rtol=1e-12, atol=1e-14)
    assert report.k.tolist() == list(range(1, 9))
    assert np.allclose(report.J, jnp.stack([J(mdp, m.density) for m in mixtures[:-1]]))
    assert np.allclose(report.L, jnp.stack([solver.objective(mdp, m)(m.density) for m in mixtures[:-1]]))


def test_density_oracle_errs_by_exactly_eps():
    d = jnp.array([[0.0, 0.3], [0.005, 0.695]])
    keys = jax.random.split(jax.random.key(0), 50)
    off = jax.vmap(lambda key: density_oracle(d, 0.01, key))(keys) - d[None]
    assert np.allclose(jnp.abs(off), 0.01)
    assert (off[:, :, 0] > 0).all()  # never below zero
    assert 0.2 < (off[:, :, 1] > 0).mean() < 0.8  # elsewhere the sign is drawn
    assert np.array_equal(density_oracle(d, 0.0, jax.random.key(1)), d)


@pytest.mark.parametrize("eps_p", [0.0, 0.01, 1.0])
def test_planning_oracle_loses_exactly_eps(mdp, eps_p):
    best = best_return(mdp, mdp.r)
    planned = plan(mdp, eps_p)
    assert best - J(mdp, planned.d) == pytest.approx(eps_p, abs=1e-12)
    assert np.allclose(occupancy(mdp, planned.policy), planned.d, atol=1e-12)


def test_planning_oracle_never_loses_more_than_there_is(mdp):
    planned = plan(mdp, 1e6)
    worst = -best_return(mdp, -mdp.r)
    assert worst - 1e-12 <= J(mdp, planned.d) < best_return(mdp, mdp.r) - 1
    flat = mdp.with_reward(jnp.ones_like(mdp.r))  # nothing to lose
    assert J(flat, plan(flat, 0.5).d) == pytest.approx(10)


def test_lanes_of_settings_and_seeds(mdp):
    """A stack of solvers is one program; each lane is what it is alone."""
    solvers = [Algorithm1(0.1, 0.1, 0.5, 1.0), Algorithm1(0.3, 0.02, 0.1, 2.0, 0.01, 0.2)]
    stack = jax.tree.map(lambda *x: jnp.array(x), *solvers)
    keys = lambda: jax.random.split(jax.random.key(3), 2)  # noqa: E731
    lanes, _ = jax.jit(jax.vmap(lambda s, key: s.solve(mdp, 8, key)))(stack, keys())
    for i, solver in enumerate(solvers):
        alone, _ = solve(solver, mdp, 8, keys()[i])
        assert eqx.tree_equal(jax.tree.map(lambda x, i=i: x[i], lanes), alone, rtol=1e-9, atol=1e-12)


def test_a_start_policy_may_be_given(mdp):
    first = uniform_policy(mdp).at[:].set(jnp.array([1.0, 0, 0]))
    progress = Algorithm1().start(mdp, 3, first)
    assert np.allclose(progress.mixture.density, occupancy(mdp, first))
    with pytest.raises(ValueError, match="sums to 2"):
        Algorithm1().start(mdp, 3, first * 2)


def test_a_full_mixture_refuses_another_policy(mdp):
    d = occupancy(mdp, uniform_policy(mdp))
    full = Mixture.start(d, 2).add(d, 0.5)
    with pytest.raises(ValueError, match="room for 2 policies and is full"):
        full.add(d, 0.5)


@pytest.mark.parametrize(
    ("field", "value"),
    [("eta", 0.0), ("eta", 1.5), ("lam", 0.0), ("tau", -0.1), ("c", -1.0), ("eps_d", -1e-9), ("eps_p", float("nan"))],
)
def test_bad_settings_are_refused(field, value):
    with pytest.raises(ValueError, match=f"as {field}, got {value}"):
        Algorithm1(**{field: value})


@pytest.mark.parametrize(
    ("given", "message"), [({"eps": 0.0}, "eps=0.0"), ({"form": "other"}, "other"), ({"c": 1.0}, "c > 1")]
)
def test_bad_targets_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        settings_for(**({"eps": 0.1, "S": 2, "A": 2, "gamma": 0.9, "lam": 0.1} | given))
