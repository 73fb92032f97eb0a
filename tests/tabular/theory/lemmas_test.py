"""Appendix C: Lemmas 1 and 2 against autodiff, in the printed and the corrected form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.tabular.families import Chain
from made.tabular.mdp import MDP
from made.tabular.policy_gradient import (
    density_root,
    entropy_gradient,
    made_gradient,
    policy_entropy,
    tangent,
)
from made.tabular.solve import occupancy, pair_occupancy

N, S, A = 12, 6, 3
LEMMAS = {
    "lemma 1": (policy_entropy, entropy_gradient),
    "lemma 2": (density_root, made_gradient),
}


@jax.jit
def forms(mdp, policy):
    """For each lemma: the exact gradient, the corrected and the printed form."""
    return {
        name: (jax.grad(value, argnums=1)(mdp, policy), lemma(mdp, policy), lemma(mdp, policy, printed=True))
        for name, (value, lemma) in LEMMAS.items()
    }


@pytest.fixture(scope="module", autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def mdps():
    rng = np.random.default_rng(0)
    P, rho = rng.dirichlet(np.full(S, 0.3), (N, S, A)), rng.dirichlet(np.ones(S), N)
    return MDP(P, rng.uniform(size=(N, S, A)), rho, np.full(N, 0.8))


@pytest.fixture(scope="module")
def policies():
    return jax.nn.softmax(jax.random.normal(jax.random.key(1), (N, S, A)))


@pytest.fixture(scope="module")
def sides(mdps, policies):
    """The forms on N random MDPs and policies, [N, S, A] each."""
    each = [forms(*jax.tree.map(lambda x, i=i: x[i], (mdps, policies))) for i in range(N)]
    return jax.tree.map(lambda *x: jnp.stack(x), *each)


@pytest.mark.parametrize("name", LEMMAS)
def test_the_corrected_lemma_is_the_gradient_on_the_tangent(sides, name):
    exact, corrected, _ = map(tangent, sides[name])
    assert jnp.abs(exact - corrected).max() < 1e-9


@pytest.mark.parametrize("name", LEMMAS)
def test_the_printed_lemma_is_not(sides, name):
    """It counts t = 0 twice: wrong by tens of percent of the largest entry, on every MDP."""
    exact, _, printed = map(tangent, sides[name])
    error = jnp.abs(exact - printed).max((1, 2)) / jnp.abs(exact).max((1, 2))
    assert (error > 0.1).all()


def test_lemma_1_to_the_letter_adds_a_scalar_that_the_simplex_does_not_see(mdps, policies, sides):
    exact, corrected, _ = sides["lemma 1"]
    scalar = -jnp.sum(jax.vmap(occupancy)(mdps, policies) * jnp.log(policies), (1, 2))
    literal = corrected + scalar[:, None, None]
    assert jnp.abs(literal - exact).max() > 0.1  # as a gradient it is wrong
    assert jnp.abs(tangent(literal) - tangent(exact)).max() < 1e-9


def test_autodiff_agrees_with_finite_differences(mdps, policies):
    mdp, policy = jax.tree.map(lambda x: x[0], (mdps, policies))
    way = tangent(jax.random.normal(jax.random.key(3), (S, A)))
    exact = forms(mdp, policy)
    for name, (value, _) in LEMMAS.items():
        f = jax.jit(value)
        slope = (f(mdp, policy + 1e-5 * way) - f(mdp, policy - 1e-5 * way)) / 2e-5
        assert slope == pytest.approx(float(jnp.sum(way * exact[name][0])), rel=1e-7)


def test_the_lemmas_use_the_papers_pair_densities(mdps, policies):
    """Written out with d_{s,a} as Appendix C defines it, sum by sum."""
    mdp, policy = jax.tree.map(lambda x: x[3], (mdps, policies))
    s, a = (x.ravel() for x in jnp.meshgrid(jnp.arange(S), jnp.arange(A), indexing="ij"))
    pairs = jax.jit(jax.vmap(lambda s, a: pair_occupancy(mdp, policy, s, a)))(s, a).reshape(S, A, S, A)
    d = occupancy(mdp, policy)
    found = forms(mdp, policy)
    for name, f, scale in (("lemma 1", -jnp.log(policy), 1.0), ("lemma 2", d**-0.5, 0.5)):
        inner = jnp.einsum("satb,tb->sa", pairs, f) / 0.2
        _, corrected, printed = found[name]
        assert np.allclose(corrected, scale * d / policy * inner, rtol=1e-10)
        assert np.allclose(printed, scale * d / policy * (inner + f), rtol=1e-10)


def test_the_corrected_lemmas_hold_for_softmax_too(mdps):
    """There the constant that the lemmas drop is annihilated by the parameterisation, so all entries agree."""
    mdp = jax.tree.map(lambda x: x[1], mdps)
    theta = jax.random.normal(jax.random.key(4), (S, A))
    policy, pull = jax.vjp(lambda t: jax.nn.softmax(t, -1), theta)
    found = forms(mdp, policy)
    for name, (value, _) in LEMMAS.items():
        exact = jax.jit(jax.grad(lambda t, value=value: value(mdp, jax.nn.softmax(t, -1))))(theta)
        assert np.allclose(pull(found[name][1])[0], exact, atol=1e-9)
        assert not np.allclose(pull(found[name][2])[0], exact, atol=1e-3)


def test_the_minus_sign_of_the_appendix_points_away_from_the_goal():
    """Item 1: on the chain, ascending J - tau sum sqrt(d) lowers pi(a1 | s0), ascending the sum raises it."""
    chain = jax.jit(Chain().draw)()
    policy = jnp.full((10, 4), 0.25)
    slope = tangent(jax.jit(made_gradient)(chain, policy))
    assert (slope[:9, 0] > 0).all()
