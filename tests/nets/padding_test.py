"""Layers and rows that are filled up for a GPU: the same numbers and slopes, and no product with an odd side."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.settings import quick

from made.agents.dreamer.network import Layout, mlp
from made.agents.dreamer.world_model import RSSM, Latent
from made.nets.layers import EVEN, MLP, Dense, PaddedDense, pad_axis, padded_dense

LAYOUT = Layout(stoch=3, deter=6, hidden=5, units=7, precision="bfloat16")
T, B, ACTIONS, EMBEDDING, HORIZON = 4, 5, 2, 7, 3


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


def real(*shape: int, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def test_a_layer_is_the_same_with_its_sides_filled_up(gpu):
    layer, x = Dense(real(5, 3), real(3, seed=1)), real(2, 4, 5, seed=2)
    wide = PaddedDense.of(layer, jnp.bfloat16)
    assert wide.weight.shape == (EVEN, EVEN) and wide.bias.shape == (3,)
    assert np.array_equal(wide(x), layer(x, jnp.bfloat16))
    loss = lambda call: lambda layer, x: (call(layer, x) * real(2, 4, 3, seed=3)).sum()  # noqa: E731
    plain = quick(jax.grad(loss(lambda layer, x: layer(x, jnp.bfloat16)), (0, 1)))(layer, x)
    filled = quick(jax.grad(loss(lambda layer, x: PaddedDense.of(layer, jnp.bfloat16)(x)), (0, 1)))(layer, x)
    for one, other in zip(jax.tree.leaves(filled), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.02, atol=0.02)


def test_nothing_is_filled_up_on_a_cpu_or_in_full_precision(gpu, monkeypatch):
    x = {"a": jnp.ones((5, 3))}
    assert pad_axis(x, jnp.bfloat16, 0)["a"].shape == (8, 3) and pad_axis(x, jnp.bfloat16, 1)["a"].shape == (5, 8)
    assert pad_axis(x, jnp.float32, 0)["a"].shape == (5, 3)
    assert float(pad_axis(x, jnp.bfloat16, 0)["a"].sum()) == 15, "with zeros"
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert pad_axis(x, jnp.bfloat16, 0)["a"].shape == (5, 3)
    net = padded_dense(mlp(5, 4, 1, 3, key=jax.random.key(0)), jnp.bfloat16)
    assert [layer.weight.shape for layer in net.layers] == [(5, 4), (4, 3)]
    assert net.layers[0].weight.dtype == jnp.bfloat16


class Acting(eqx.Module):
    """A policy with layers, which draws the same whatever rows are added."""

    net: MLP

    def __call__(self, features, key):
        action = jnp.tanh(self.net(features, jnp.bfloat16) + jax.random.normal(key, (ACTIONS,)))
        return action, action.sum(-1)


def whole(model: RSSM, policy: Acting):
    """Something of all that is watched and imagined, and all of it."""
    fresh = jnp.zeros((T, B), bool).at[0].set(True).at[2, 1].set(True)
    starts = Latent(real(T, B, 6), real(T, B, 3, seed=1))
    given = real(T, B, ACTIONS, seed=2), real(T, B, EMBEDDING, seed=3), real(T, B, 3, seed=4)
    posteriors = model.observe(starts, fresh, *given)
    dreamt = model.imagine(Latent(real(B, 6), real(B, 3)), policy, HORIZON, jax.random.key(5))
    return sum((x**2).sum() for x in jax.tree.leaves((posteriors, dreamt))), (posteriors, dreamt)


def both() -> tuple[RSSM, Acting]:
    model = RSSM(EMBEDDING, ACTIONS, LAYOUT, key=jax.random.key(0))
    return model, Acting(mlp(9, 7, 1, ACTIONS, key=jax.random.key(1)))


def test_the_model_watches_and_imagines_the_same(monkeypatch):
    found = []
    for backend in ("cpu", "gpu"):
        monkeypatch.setattr(jax, "default_backend", lambda name=backend: name)
        found.append(quick(lambda *x: jax.grad(whole, (0, 1), has_aux=True)(*x))(*both()))
    plain, filled = found
    assert filled[1][0].latent.deter.shape == (T, B, 6) and filled[1][1][1].shape == (HORIZON, B)
    for one, other in zip(jax.tree.leaves(filled), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.05, atol=0.02 * np.abs(other).max())
    assert all(np.abs(x).max() > 0.1 for x in jax.tree.leaves(plain[0][1])), "a slope of nothing tells nothing"


def sides(jaxpr) -> set[int]:
    """Of all products in bfloat16 within loops."""
    found = set()
    for one in jaxpr.eqns:
        inner = [x for x in jax.tree.leaves(list(one.params.values())) if hasattr(x, "jaxpr")]
        if one.primitive.name == "dot_general" and one.invars[0].aval.dtype == jnp.bfloat16:
            found |= {n for x in (*one.invars, *one.outvars) for n in x.aval.shape}
        for x in inner:
            found |= sides(x.jaxpr)
    return found


def test_no_product_of_a_loop_has_an_odd_side(gpu):
    program = jax.make_jaxpr(lambda *x: jax.grad(lambda *x: whole(*x)[0], (0, 1))(*x))(*both())
    loops = [one.params["jaxpr"].jaxpr for one in program.eqns if one.primitive.name == "scan"]
    assert len(loops) == 4, "there and back, watched and imagined"
    found = set().union(*(sides(loop) for loop in loops))
    assert found and not {n for n in found if n % EVEN}
