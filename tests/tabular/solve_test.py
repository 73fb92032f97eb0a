"""Exact solvers against each other, against their definitions, and against sums over time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.tabular import objective
from made.tabular.families import Chain
from made.tabular.mdp import MDP, uniform_policy
from made.tabular.solve import (
    action_value,
    expected_return,
    horizon_optimum,
    linear_solve,
    occupancy,
    pair_occupancy,
    policy_from_occupancy,
    policy_iteration,
    policy_value,
    state_kernel,
)

N = 20  # random MDPs, all in one call

occupancies = jax.jit(jax.vmap(occupancy))
values = jax.jit(jax.vmap(policy_value))
action_values = jax.jit(jax.vmap(action_value))
plans = jax.jit(jax.vmap(policy_iteration))


@pytest.fixture(scope="module", autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def mdps():
    rng = np.random.default_rng(0)
    P, rho = rng.dirichlet(np.full(9, 0.2), (N, 9, 3)), rng.dirichlet(np.ones(9), N)
    return MDP(P, rng.uniform(size=(N, 9, 3)), rho, np.full(N, 0.9))


@pytest.fixture(scope="module")
def policies():
    return jax.nn.softmax(2 * jax.random.normal(jax.random.key(1), (N, 9, 3)))


def test_occupancy_sums_to_one_and_satisfies_the_flow(mdps, policies):
    d = occupancies(mdps, policies)
    assert np.allclose(d.sum((1, 2)), 1, atol=1e-12)
    assert (d >= 0).all()
    inflow = 0.1 * mdps.rho + 0.9 * jnp.einsum("nsa,nsat->nt", d, mdps.P)
    assert np.allclose(d.sum(-1), inflow, atol=1e-12)


def test_occupancy_is_the_discounted_sum_of_visits(mdps, policies):
    mdp, policy = jax.tree.map(lambda x: np.asarray(x[0]), (mdps, policies))
    at, total = mdp.rho, 0
    for t in range(400):
        total = total + 0.1 * 0.9**t * at[:, None] * policy
        at = at @ np.einsum("sa,sat->st", policy, mdp.P)
    assert np.allclose(occupancy(*jax.tree.map(jnp.asarray, (mdp, policy))), total, atol=1e-12)


def test_return_two_ways(mdps, policies):
    """Eq. (2): E_rho V^pi and <d^pi, r> / (1 - gamma)."""
    by_value = jax.jit(jax.vmap(expected_return))(mdps, policies)
    by_density = jax.vmap(objective.J)(mdps, occupancies(mdps, policies))
    assert np.allclose(by_value, by_density, rtol=1e-12)


def test_policy_value_solves_the_bellman_equation(mdps, policies):
    v = values(mdps, policies)
    q = action_values(mdps, v)
    assert np.allclose((policies * q).sum(-1), v, atol=1e-12)


def test_pair_occupancy_starts_at_the_pair(mdps, policies):
    mdp, policy = jax.tree.map(lambda x: x[1], (mdps, policies))
    s, a = (x.ravel() for x in jnp.meshgrid(jnp.arange(9), jnp.arange(3), indexing="ij"))
    d = jax.jit(jax.vmap(lambda s, a: pair_occupancy(mdp, policy, s, a)))(s, a)  # [27, 9, 3]
    assert np.allclose(d.sum((1, 2)), 1)
    assert (d[jnp.arange(27), s, a] >= 0.1 - 1e-12).all()  # t = 0 is included
    mean = jnp.einsum("p,psa->sa", (mdp.rho[:, None] * policy).ravel(), d)
    assert np.allclose(mean, occupancy(mdp, policy), atol=1e-12)
    q = action_value(mdp, policy_value(mdp, policy))
    assert np.allclose(jnp.sum(d * mdp.r[None], (1, 2)) / 0.1, q.ravel(), atol=1e-12)


def test_policy_from_occupancy_gives_the_policy_of_a_mixture(mdps, policies):
    """Section 2: a stationary policy with the density of a mixture of two."""
    both = occupancies(mdps, policies), occupancies(mdps, jnp.full((N, 9, 3), 1 / 3))
    mix = 0.3 * both[0] + 0.7 * both[1]
    back = occupancies(mdps, policy_from_occupancy(mix))
    assert np.allclose(back, mix, atol=1e-12)
    unvisited = policy_from_occupancy(jnp.array([[0.0, 0.0], [0.25, 0.75]]))
    assert unvisited.tolist() == [[0.5, 0.5], [0.25, 0.75]]


def test_policy_iteration_agrees_with_value_iteration(mdps):
    exact, v = plans(mdps), jnp.zeros((N, 9))
    for _ in range(300):  # the error is below 0.9^300 / (1 - 0.9) = 2e-13
        v = (mdps.r + 0.9 * jnp.einsum("nsat,nt->nsa", mdps.P, v)).max(-1)
    assert np.allclose(exact.v, v, atol=1e-12)
    assert np.allclose(exact.v, exact.q.max(-1), atol=1e-12)
    assert (exact.rounds < 10).all()


def test_no_policy_beats_the_plan(mdps, policies):
    plan = plans(mdps)
    assert (values(mdps, policies) <= plan.v + 1e-12).all()
    for s in range(9):  # were the plan not optimal, changing its action in one state would improve it
        for a in range(3):
            assert (values(mdps, plan.policy.at[:, s].set(jnp.eye(3)[a])) <= plan.v + 1e-12).all()
    assert np.allclose(values(mdps, plan.policy), plan.v, atol=1e-12)


def test_a_warm_start_saves_rounds_and_changes_nothing(mdps):
    cold = plans(mdps)
    warm = plans(mdps, cold.actions)
    assert (warm.rounds == 1).all() and (cold.rounds > 1).any()
    assert np.array_equal(warm.actions, cold.actions)


def test_ties_and_single_precision_do_not_cycle():
    """All actions alike, in float32: policy iteration must stop, whatever the rounding."""
    P = np.full((40, 5, 40), 1 / 40, np.float32)
    r = np.random.default_rng(0).uniform(size=(40, 1)).repeat(5, 1).astype(np.float32)
    plan = jax.jit(policy_iteration)(MDP(P, r, np.full(40, 1 / 40, np.float32), 0.99))
    assert plan.rounds < 5
    rng = np.random.default_rng(9)
    P, r = rng.dirichlet(np.full(40, 0.05), (40, 5)), rng.uniform(size=(40, 5))
    random = MDP(P, r, np.full(40, 1 / 40), 0.99)
    single = jax.tree.map(lambda x: x.astype(jnp.float32), random)
    exact, rounded = (jax.jit(policy_iteration)(m) for m in (random, single))
    assert rounded.rounds < 30
    assert np.allclose(exact.v, rounded.v.astype(jnp.float64), rtol=1e-4)


def test_no_policy_beats_the_optimum_of_a_horizon(mdps, policies):
    mdp, policy = jax.tree.map(lambda x: x[2], (mdps, policies))
    at, total = mdp.rho, 0.0
    for _ in range(7):
        total += at @ (policy * mdp.r).sum(-1)
        at = at @ state_kernel(mdp, policy)
    best, actions = horizon_optimum(mdp, 7)
    assert best >= total
    v = jnp.zeros(9)
    for chosen in actions[::-1]:  # playing the returned actions earns the returned value
        v = mdp.r[jnp.arange(9), chosen] + mdp.P[jnp.arange(9), chosen] @ v
    assert mdp.rho @ v == pytest.approx(float(best), rel=1e-12)


def test_horizon_optimum_depends_on_the_time_left():
    value, actions = horizon_optimum(Chain(H=3).draw(), 6)  # four moves right, then two rewards
    assert value == 2
    assert actions[0, 0] == 0 and actions.shape == (6, 5)


def test_zero_discount_is_myopic(mdps):
    mdp = jax.tree.map(lambda x: x[0], mdps)
    myopic = MDP(mdp.P, mdp.r, mdp.rho, 0.0)
    plan = policy_iteration(myopic)
    assert np.array_equal(plan.actions, mdp.r.argmax(-1))
    assert np.allclose(occupancy(myopic, uniform_policy(mdp)), mdp.rho[:, None] / 3)


@pytest.mark.parametrize("n", [1, 10, 64, 65])
def test_linear_solve_is_lapacks_answer_on_the_matrices_it_is_for(n):
    """Dominated by rows, by columns, and normal equations that are badly scaled; with its derivative."""
    rng = np.random.default_rng(n)
    with jax.enable_x64(True):
        kernel = rng.dirichlet(np.full(n, 0.2), n)
        spread = np.diag(10.0 ** rng.uniform(-3, 3, n)) @ rng.normal(size=(n, n))
        b = rng.normal(size=n)
        for A in (np.eye(n) - 0.99 * kernel, (np.eye(n) - 0.99 * kernel).T, spread @ spread.T + np.eye(n)):
            found = np.asarray(linear_solve(jnp.asarray(A), jnp.asarray(b)))
            assert np.allclose(A @ found, b, atol=1e-7 * np.abs(A).max())
        slope = jax.grad(lambda b: linear_solve(jnp.asarray(A), b).sum())(jnp.asarray(b))
        assert np.allclose(A.T @ np.asarray(slope), 1.0, atol=1e-6)
