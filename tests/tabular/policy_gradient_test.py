"""The simplex projection, and the four methods of Section 4.2 on the chain."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made.tabular.families import Chain
from made.tabular.mdp import uniform_policy
from made.tabular.policy_gradient import METHODS, PolicyGradient, project_simplex, tangent
from made.tabular.solve import action_value, expected_return, occupancy, policy_value

project = jax.jit(project_simplex)
update = jax.jit(PolicyGradient.update)
rows = st.lists(st.floats(-20, 20), min_size=4, max_size=4)


@pytest.fixture(scope="module", autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def nearest(theta, floor):
    """The projection by brute force: try every set of entries that may stay above the floor."""
    best = None
    for size in range(1, 5):
        for free in itertools.combinations(range(4), size):
            x = np.full(4, floor)
            shift = (sum(theta[list(free)]) - (1 - (4 - size) * floor)) / size
            x[list(free)] = theta[list(free)] - shift
            if (x >= floor - 1e-12).all() and (best is None or sum((x - theta) ** 2) < sum((best - theta) ** 2)):
                best = x
    return best


@settings(max_examples=150, deadline=None)
@given(rows, st.sampled_from([0.0, 1e-8, 0.1, 0.25]))
def test_projection_is_the_nearest_point(row, floor):
    theta = np.array(row)
    x = np.asarray(project(jnp.array(theta), floor))
    assert abs(x.sum() - 1) < 1e-12
    assert (x >= floor).all()
    # KKT: what was taken off is the same for all entries above the floor, and no less for those on it.
    taken = theta - x
    above = x > floor
    if above.any():
        assert np.ptp(taken[above]) < 1e-10
        assert (taken[~above] <= taken[above].max() + 1e-10).all()
    assert np.allclose(x, nearest(theta, floor), atol=1e-10)


def test_projection_of_many_rows_and_of_a_point_inside():
    theta = jnp.array([[[0.2, 0.3, 0.5], [5.0, 0.0, 0.0]], [[0.0, 0.0, 0.0], [-1.0, -1.0, 1.0]]])
    third = 1 / 3
    wanted = jnp.array([[[0.2, 0.3, 0.5], [1, 0, 0]], [[third, third, third], [0, 0, 1]]])
    assert np.allclose(project(theta, 0.0), wanted, atol=1e-15)
    with pytest.raises(ValueError, match=r"floor is 0.5, but 3 actions leave room for one between 0 and 0.333"):
        project_simplex(theta, 0.5)


@pytest.fixture(scope="module")
def chain():
    return jax.jit(Chain().draw)()


def first_above(returns, share):
    hit = np.asarray(returns) > share * (8 / 9) ** 9 * 9
    return int(np.argmax(hit)) + 1 if hit.any() else None


@pytest.fixture(scope="module")
def curves(chain):
    """All five methods from two starts, as lanes of one program: returns[parameterisation][method][start]."""
    timid = jnp.full((10, 4), 0.3).at[:, 0].set(0.1)  # a1 < 1/4, where gradients vanish
    starts = jnp.stack([uniform_policy(chain), timid])

    def run(parameterisation, eta):
        methods = [PolicyGradient.named(m, eta=eta, parameterisation=parameterisation) for m in METHODS]
        stack = jax.tree.map(lambda *x: jnp.array(x), *methods)
        over_starts = jax.vmap(lambda method, start: method.ascend(chain, start, 300), in_axes=(None, 0))
        policies, returns = jax.jit(jax.vmap(over_starts, in_axes=(0, None)))(stack, starts)
        assert np.allclose(policies.sum(-1), 1, atol=1e-9)
        return dict(zip(METHODS, np.asarray(returns), strict=True))

    return {"simplex": run("simplex", 1.0), "softmax": run("softmax", 10.0)}


def test_methods_on_the_chain_under_softmax(curves):
    """Claims 13 to 15 at one step size: MADE first, and to stay; entropy no help from a uniform start."""
    times = {m: first_above(c[0], 0.95) for m, c in curves["softmax"].items()}
    assert times["pg+made"] == pytest.approx(17, abs=3)
    assert times["pg"] == pytest.approx(173, abs=3)
    assert times["pg+e"] == pytest.approx(212, abs=3)
    assert times["pg+re"] is None and times["pg+made printed"] is None
    assert curves["softmax"]["pg+made"][0, -1] > 0.99 * 3.118
    timid = {m: first_above(c[1], 0.95) for m, c in curves["softmax"].items()}
    assert timid["pg+made"] == pytest.approx(144, abs=3)
    assert timid["pg"] is None and timid["pg+e"] is None


def test_methods_on_the_chain_under_the_simplex(curves):
    """MADE is first there too, but on this step size it does not stay: the claim holds for first hits only."""
    times = {m: first_above(c[0], 0.5) for m, c in curves["simplex"].items()}
    assert times["pg+made"] == pytest.approx(10, abs=2)
    assert times["pg"] == pytest.approx(122, abs=2)
    assert times["pg+e"] == pytest.approx(155, abs=2)
    assert times["pg+made printed"] is None  # the minus sign of Appendix B.2 never learns
    assert curves["simplex"]["pg"][0, -1] > 0.99 * 3.118
    assert curves["simplex"]["pg+made"][0].min() < 0.5 * curves["simplex"]["pg+made"][0].max()
    assert np.isfinite(np.stack(list(curves["simplex"].values()))).all()


def test_a_lane_is_the_method_alone(chain, curves):
    method = PolicyGradient.named("pg+made", eta=10.0, parameterisation="softmax")
    theta = method.init(chain, uniform_policy(chain))
    for k in range(1, 4):
        theta = update(method, chain, theta, k)
    alone = expected_return(chain, method.policy(theta))
    assert alone == pytest.approx(curves["softmax"]["pg+made"][0, 2], rel=1e-9)


def test_vanilla_gradient_is_the_policy_gradient_theorem(chain):
    """grad J at (s, a) is d(s) Q(s, a) / (1 - gamma); its largest tangent entry at the uniform policy is 2.7e-4."""
    policy = uniform_policy(chain)
    method = PolicyGradient.named("pg")
    by_autodiff = jax.jit(jax.grad(method.objective, argnums=1))(chain, policy, 1)
    q = action_value(chain, policy_value(chain, policy))
    d = occupancy(chain, policy).sum(-1, keepdims=True)
    assert np.allclose(tangent(by_autodiff), tangent(d * q * 9), rtol=1e-9, atol=1e-15)
    assert jnp.abs(tangent(by_autodiff)).max() == pytest.approx(2.7e-4, rel=0.02)


def test_objectives_are_those_of_the_appendix(chain):
    policy = jax.nn.softmax(jax.random.normal(jax.random.key(0), (10, 4)))
    d, base = occupancy(chain, policy), expected_return(chain, policy)
    tau = 0.1 / 3  # at k = 9
    wanted = {
        "pg": base,
        "pg+re": base + tau * jnp.log(policy).sum(),
        "pg+e": base - tau * 9 * (d * jnp.log(policy)).sum(),
        "pg+made": base + tau * jnp.sqrt(d).sum(),
        "pg+made printed": base - tau * jnp.sqrt(d).sum(),
    }
    stack = jax.tree.map(lambda *x: jnp.array(x), *[PolicyGradient.named(m) for m in METHODS])
    found = jax.jit(jax.vmap(lambda method: method.objective(chain, policy, 9)))(stack)
    assert np.allclose(found, jnp.array(list(wanted.values())), rtol=1e-12)


def test_an_unused_regulariser_cannot_spoil_the_boundary(chain):
    """At a deterministic policy log pi and 1 / sqrt(d) are infinite; PG must not multiply them by zero."""
    method = PolicyGradient.named("pg", floor=0.0)
    edge = jnp.zeros((10, 4)).at[:, 0].set(1)
    assert np.array_equal(update(method, chain, edge, 1), edge)


def test_the_floor_is_kept(chain):
    method = PolicyGradient.named("pg", eta=1e5, floor=0.01)
    theta = update(method, chain, method.init(chain, uniform_policy(chain)), 1)
    assert theta.min() == pytest.approx(0.01) and theta.max() == pytest.approx(0.97)
    assert np.allclose(theta.sum(-1), 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PolicyGradient.named("pg+mde"), "no method 'pg\\+mde'; there are: pg, pg\\+re"),
        (lambda: PolicyGradient(parameterisation="soft"), "'simplex' or 'softmax'"),
        (lambda: PolicyGradient(eta=-1.0), "as eta, got -1.0"),
        (lambda: PolicyGradient(tau=float("nan")), "as tau, got nan"),
        (lambda: PolicyGradient.named("pg+made", floor=0.0), "gradient is infinite"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
