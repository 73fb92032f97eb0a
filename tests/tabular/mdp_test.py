"""What an MDP accepts, refuses and survives."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.tabular.mdp import MDP, check_policy, greedy_policy, uniform_policy


@pytest.fixture(scope="module", autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def parts():
    """A two-state, three-action MDP whose second state ends the episode."""
    P = np.zeros((2, 3, 2))
    P[0] = [[0.5, 0.5], [1, 0], [0, 1]]
    P[1, :, 1] = 1
    return {"P": P, "r": np.array([[1.0, 0, -1], [0, 0, 0]]), "rho": np.array([1.0, 0]), "gamma": 0.9}


def changed(name, at, value):
    given = parts()
    given[name] = given[name].copy()
    given[name][at] = value
    return given


def test_sizes_dtypes_and_absorbing_states():
    mdp = MDP(**parts())
    assert (mdp.n_states, mdp.n_actions) == (2, 3)
    assert {x.dtype for x in (mdp.P, mdp.r, mdp.rho, mdp.gamma)} == {jnp.dtype("float64")}
    assert mdp.absorbing.tolist() == [False, True]
    assert MDP(**changed("r", (1, 2), 0.1)).absorbing.tolist() == [False, False]
    leaking = changed("P", (1, 0), [0.25, 0.75])
    assert MDP(**leaking).absorbing.tolist() == [False, False]


def test_integer_probabilities_become_floats():
    mdp = MDP(np.ones((1, 2, 1), int), np.zeros((1, 2), int), np.ones(1, int), 0)
    assert mdp.P.dtype == mdp.r.dtype == mdp.gamma.dtype == jnp.dtype("float64")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (changed("P", (0, 1), [0.5, 0.4]), r"P\[0, 1\] sums to 0.9.*row must sum to 1.*divide each row"),
        (changed("P", (0, 2), [0, 0]), r"P\[0, 2\] sums to 0.0.*rows left empty"),
        (changed("P", (1, 0), [-0.5, 1.5]), r"P\[1, 0, 0\] is -0.5.*at least 0"),
        (changed("P", (0, 0, 1), np.nan), r"P\[0, 0, 1\] is nan.*at least 0"),
        (changed("rho", 1, 0.5), r"rho sums to 1.5.*divide rho by its sum"),
        (changed("rho", slice(None), [1.5, -0.5]), r"rho\[1\] is -0.5"),
        (changed("r", (1, 2), np.inf), r"r\[1, 2\] is inf.*finite"),
        (changed("r", (0, 1), np.nan), r"r\[0, 1\] is nan.*finite"),
        (parts() | {"gamma": 1.0}, r"gamma is 1.0.*\[0, 1\)"),
        (parts() | {"gamma": -0.1}, r"gamma is -0.1"),
        (parts() | {"gamma": np.nan}, r"gamma is nan"),
        (parts() | {"gamma": [0.9]}, r"gamma has shape \(1,\).*one number"),
        (parts() | {"P": np.ones((2, 2))}, r"P has shape \(2, 2\).*\[S, A, S\]"),
        (parts() | {"P": parts()["P"].swapaxes(0, 1)}, r"P has shape \(3, 2, 2\).*swap its first two axes"),
        (parts() | {"P": np.ones((0, 3, 0))}, r"at least one state"),
        (parts() | {"r": np.zeros((2, 3, 2))}, r"r has shape \(2, 3, 2\).*asks for \(2, 3\).*average a reward"),
        (parts() | {"rho": np.eye(2)}, r"rho has shape \(2, 2\).*not one for each state"),
    ],
)
def test_bad_input_is_refused_by_name(given, message):
    with pytest.raises(ValueError, match=message):
        MDP(**given)


def test_rounding_of_the_dtype_is_accepted():
    rows = np.random.default_rng(0).dirichlet(np.ones(500), (500, 2)).astype(np.float32)
    mdp = MDP(rows, np.zeros((500, 2), np.float32), rows[0, 0], 0.5)
    assert mdp.P.dtype == jnp.dtype("float32")


def test_construction_under_jit_and_vmap():
    given = parts()
    built = jax.jit(MDP)(**given)
    assert built.absorbing.tolist() == [False, True]
    gammas = jnp.array([0.1, 0.5])
    stack = jax.vmap(lambda gamma: MDP(given["P"], given["r"], given["rho"], gamma))(gammas)
    assert stack.P.shape == (2, 2, 3, 2)
    assert (stack.n_states, stack.n_actions) == (2, 3)
    assert np.array_equal(stack.gamma, gammas)
    with pytest.raises(ValueError, match="r has shape"):  # shapes are known even there
        jax.jit(MDP)(**(given | {"r": np.zeros(2)}))


def test_a_stack_is_checked_and_vmapped():
    mdp = MDP(**parts())
    stack = jax.tree.map(lambda *x: jnp.stack(x), mdp, mdp)
    assert jax.vmap(lambda m: m.absorbing)(stack).tolist() == [[False, True]] * 2
    assert MDP(stack.P, stack.r, stack.rho, stack.gamma).absorbing.shape == (2, 2)
    with pytest.raises(ValueError, match=r"P\[1, 0, 0\] sums to"):
        MDP(stack.P.at[1, 0, 0, 0].set(0), stack.r, stack.rho, stack.gamma)


def test_validation_leaves_tree_operations_alone():
    mdp = MDP(**parts())
    names = jax.tree.map(lambda _: object(), mdp)  # unflattening must not validate
    assert isinstance(names, MDP)
    assert jax.tree.structure(mdp) == jax.tree.structure(names)
    halves = jax.tree.map(lambda x: x / 2, mdp)
    assert float(halves.P[1, 0, 1]) == 0.5
    paid = mdp.with_reward(mdp.r + 1)
    assert np.array_equal(paid.r, mdp.r + 1)
    assert eqx.tree_equal(paid.with_reward(mdp.r), mdp)


def test_policies():
    mdp = MDP(**parts())
    uniform = check_policy(mdp, uniform_policy(mdp))
    assert np.allclose(uniform, 1 / 3)
    greedy = check_policy(mdp, greedy_policy(jnp.array([[0.0, 2, 1], [5, 5, 4]])))
    assert greedy.tolist() == [[0, 1, 0], [1, 0, 0]]
    jax.jit(lambda p: check_policy(mdp, p))(uniform * 2)  # values unknown under jit: only the shape is checked


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda u: u.T, r"shape \(3, 2\), but this MDP takes \(2, 3\)"),
        (lambda u: u.at[1, 0].set(0), r"policy\[1\] sums to 0.66.*divide each row"),
        (lambda u: u.at[0].set(jnp.array([1.5, 0, -0.5])), r"policy\[0, 2\] is -0.5"),
        (lambda u: u.at[0, 0].set(jnp.nan), r"policy\[0, 0\] is nan"),
    ],
)
def test_bad_policies_are_refused(make, message):
    mdp = MDP(**parts())
    with pytest.raises(ValueError, match=message):
        check_policy(mdp, make(uniform_policy(mdp)))
