"""The families: their structure, their optima, and what a key randomises."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.tabular.families import Chain, DeepSea, Garnet, Lock
from made.tabular.mdp import MDP, uniform_policy
from made.tabular.solve import expected_return, horizon_optimum, policy_iteration, state_kernel

best_over = jax.jit(horizon_optimum, static_argnums=1)
draw = jax.jit(lambda family, key: family.draw(key))
draw_many = jax.jit(jax.vmap(lambda family, key: family.draw(key), in_axes=(None, 0)))


@pytest.fixture(scope="module", autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def lock_optimum(lock):
    """(1-p)^H big, less the penalties of the H - 1 non-final good states reached on the way."""
    alive = (1 - lock.p) ** np.arange(1, lock.H + 1)
    return alive[-1] * lock.big - lock.penalty / lock.H * alive[:-1].sum()


@pytest.mark.parametrize("family", [Lock(), Chain(), Garnet(), DeepSea()], ids=lambda x: type(x).__name__)
def test_every_family_draws_valid_mdps_plain_by_key_and_under_vmap(family):
    plain = draw(family, None)
    MDP(plain.P, plain.r, plain.rho, plain.gamma)  # raises if a row is off
    stack = draw_many(family, jax.random.split(jax.random.key(0), 4))
    MDP(stack.P, stack.r, stack.rho, stack.gamma)
    one = draw(family, jax.random.split(jax.random.key(0), 4)[2])
    assert eqx.tree_equal(jax.tree.map(lambda x: x[2], stack), one, rtol=1e-12, atol=1e-12)
    assert not np.array_equal(stack.P[0], stack.P[1]) or isinstance(family, Chain)  # which has nothing to draw


def test_numbers_are_leaves_and_sizes_are_not():
    assert jax.tree.leaves(Lock()) == [0.1, 0.05, 1.0, 0.1, 0.99]
    deaths = jnp.array([0.0, 0.3])
    lanes = eqx.tree_at(lambda lock: lock.p, Lock(H=3), deaths)
    axes = eqx.tree_at(lambda lock: lock.p, jax.tree.map(lambda _: None, Lock(H=3)), 0, is_leaf=lambda x: x is None)
    stack = jax.jit(jax.vmap(lambda lock: lock.draw(), in_axes=(axes,)))(lanes)
    assert np.allclose(stack.P[:, 0, 0, Lock(H=3).dead(0, 0)], deaths)


def test_lock_structure():
    lock = Lock(H=3, p=0.2)
    right = jnp.array([[1, 0, 1], [0, 0, 1]])
    mdp = jax.tree.map(np.asarray, jax.jit(Lock.build)(lock, 1, right))
    assert mdp.P.shape == (14, 2, 14)
    assert np.flatnonzero(jax.tree.map(jnp.asarray, mdp).absorbing).tolist() == [lock.end]
    right = np.asarray(right)
    for chain in (0, 1):
        assert mdp.P[0, chain, lock.good(chain, 0)] == 0.8
        assert mdp.P[0, chain, lock.dead(chain, 0)] == 0.2
        for h in (0, 1):
            good, a = lock.good(chain, h), right[chain, h]
            assert mdp.P[good, a, lock.good(chain, h + 1)] == 0.8
            assert mdp.P[good, a, lock.dead(chain, h + 1)] == 0.2
            assert mdp.P[good, 1 - a, lock.dead(chain, h + 1)] == 1
            assert (mdp.P[lock.dead(chain, h), :, lock.dead(chain, h + 1)] == 1).all()
            assert np.allclose(mdp.r[good], -0.05 / 3)
        for last in (lock.good(chain, 2), lock.dead(chain, 2)):
            assert (mdp.P[last, :, lock.end] == 1).all()
    assert (mdp.r[lock.good(1, 2)] == 1).all()
    assert (mdp.r[lock.good(0, 2)] == 0.1).all()
    assert (mdp.r != 0).sum() == 2 * 6  # six good states pay; s0, the dead and the end do not


@pytest.mark.parametrize("lock", [Lock(), Lock(H=3, p=0.2), Lock(H=3, p=0.0, penalty=0.0, big=3.0), Lock(H=1)])
def test_lock_optimum_is_the_closed_form(lock):
    mdp = draw(lock, jax.random.key(7))
    value, actions = best_over(mdp, lock.horizon)
    assert value == pytest.approx(lock_optimum(lock), abs=1e-12)
    assert actions.shape == (lock.horizon, lock.n_states)
    if lock.H == 3:
        assert best_over(mdp, 7)[0] == pytest.approx(float(value), abs=1e-12)  # over after H + 1 steps
        assert best_over(mdp, 3)[0] < value - 0.1  # and not before


def test_lock_of_the_paper_is_worth_0_321():
    assert best_over(draw(Lock(), None), 11)[0] == pytest.approx(0.321, abs=5e-4)


def test_lock_key_draws_the_side_and_the_combination():
    lock = Lock(H=3)
    side, right = jax.jit(jax.vmap(lock.layout))(jax.random.split(jax.random.key(0), 400))
    assert abs(side.mean() - 0.5) < 0.1
    assert (abs(right.mean(0) - 0.5) < 0.1).all()  # every good state's action, separately
    mdp = draw(lock, jax.random.split(jax.random.key(0), 400)[5])
    assert eqx.tree_equal(mdp, jax.jit(Lock.build)(lock, side[5], right[5]))
    assert mdp.r[lock.good(side[5], 2), 0] == 1
    side, right = lock.layout()
    assert side == 0 and (right == 1).all()


def horizon_return(mdp, policy, steps):
    """The undiscounted return of a policy, summed over time."""
    at = [mdp.rho]
    for _ in range(steps - 1):
        at.append(at[-1] @ state_kernel(mdp, policy))
    return float(sum(at) @ (policy * mdp.r).sum(-1))


def test_lock_dying_is_locally_better():
    """Section 4.1: a policy that never takes the right action loses less than one that nearly opens a chain."""
    lock = Lock(H=3)
    mdp = draw(lock, None)
    die = jnp.zeros((lock.n_states, 2)).at[:, 0].set(1)
    nearly = (1 - die).at[lock.good(0, 1)].set(jnp.array([1.0, 0])).at[0].set(jnp.array([1.0, 0]))
    assert horizon_return(mdp, nearly, 4) < horizon_return(mdp, die, 4) < 0


def test_chain():
    mdp = draw(Chain(), None)
    gamma = 8 / 9
    assert (mdp.n_states, mdp.n_actions, float(mdp.gamma)) == (10, 4, gamma)
    plan = jax.jit(policy_iteration)(mdp)
    assert plan.v[0] == pytest.approx(gamma**9 / (1 - gamma), rel=1e-12)
    assert plan.v[0] == pytest.approx(3.118, abs=5e-4)
    assert (plan.actions == 0).all()
    assert expected_return(mdp, uniform_policy(mdp)) == pytest.approx(7.5e-5, rel=0.01)
    assert (mdp.P[0, 1:, 0] == 1).all() and (mdp.P[9, :, 9] == 1).all() and (mdp.P[4, 1:, 3] == 1).all()
    assert (mdp.r != 0).sum() == 1 and mdp.r[9, 0] == 1
    assert not mdp.absorbing.any()


def test_garnet_branches_as_told():
    mdp = draw(Garnet(), jax.random.key(3))
    assert ((mdp.P > 0).sum(-1) == 3).all()
    assert ((mdp.r >= 0) & (mdp.r <= 1)).all()
    assert jnp.unique(mdp.r).size == 30


@pytest.mark.parametrize("size", [1, 10])
def test_deep_sea_optimum(size):
    sea = DeepSea(size)
    mdp = draw(sea, jax.random.key(2))
    assert best_over(mdp, size)[0] == pytest.approx(0.99, abs=1e-12)
    assert np.flatnonzero(mdp.absorbing).tolist() == [size * size]
    uniform = uniform_policy(mdp)
    assert horizon_return(mdp, uniform, size) == pytest.approx(0.5**size - 0.005, abs=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lock(p=1.0), "from 0 to below 1 as p, got 1.0"),
        (lambda: Lock(p=-0.1), "as p, got -0.1"),
        (lambda: Lock(p=float("nan")), "as p, got nan"),
        (lambda: Lock(penalty=-0.01), "at least 0 as penalty, got -0.01"),
        (lambda: Lock(H=0), "at least 1 as H, got 0"),
        (lambda: Chain(H=0), "as H, got 0"),
        (lambda: Garnet(S=3, branching=4), "branching=4 but only S=3"),
        (lambda: Garnet(A=0), "as A, got 0"),
        (lambda: DeepSea(0), "as size, got 0"),
        (lambda: Lock(gamma=1.0).draw(), "gamma is 1.0"),
    ],
)
def test_bad_families_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
