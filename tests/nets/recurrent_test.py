"""The recurrent layers against Equinox's cells, and their own gradient against that of the plain loop."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.settings import quick

from made.nets.recurrent import Recurrent, steps, unrolled

T, N, INPUTS, H = 5, 3, 4, 6


@pytest.fixture(params=["lstm", "gru"])
def layer(request):
    return Recurrent(request.param, INPUTS, H, key=jax.random.key(0))


def given(layer):
    keys = jax.random.split(jax.random.key(1), 3)
    carry = tuple(jax.random.normal(keys[0], (N, H)) for _ in layer.blank())
    fresh = jax.random.bernoulli(keys[2], 0.3, (T, N)).at[2, 1].set(True)
    return carry, jax.random.normal(keys[1], (T, N, INPUTS)), fresh


def test_one_step_is_that_of_equinox(layer):
    kind = {"lstm": eqx.nn.LSTMCell, "gru": eqx.nn.GRUCell}[layer.kind]
    theirs = kind(INPUTS, H, key=jax.random.key(2))
    layer = eqx.tree_at(lambda m: (m.inputs, m.weights), layer, (theirs.weight_ih.T, theirs.weight_hh.T))
    layer = eqx.tree_at(lambda m: m.bias, layer, theirs.bias)
    if layer.kind == "gru":
        theirs = eqx.tree_at(lambda m: m.bias_n, theirs, jnp.zeros(H))
    carry, xs, _ = given(layer)
    one = tuple(part[0] for part in carry)
    wanted = theirs(xs[0, 0], one if layer.kind == "lstm" else one[0])
    for mine, other in zip(layer.step(one, xs[0, 0]), wanted if layer.kind == "lstm" else (wanted,), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-6)


def test_an_unroll_is_its_steps_with_a_blank_carry_where_episodes_begin(layer):
    carry, xs, fresh = given(layer)
    last, outputs = quick(lambda *given: layer.unroll(*given))(carry, xs, fresh)
    step, xs, fresh = quick(lambda *given: layer.step(*given)), np.asarray(xs), np.asarray(fresh)
    for t in range(T):
        carry = tuple(np.where(fresh[t][:, None], np.float32(0), part) for part in carry)
        carry = step(carry, xs[t])
        np.testing.assert_allclose(outputs[t], carry[0], atol=1e-6)
    for mine, wanted in zip(last, carry, strict=True):
        np.testing.assert_allclose(mine, wanted, atol=1e-6)


def test_gradients_are_those_of_the_plain_loop(layer):
    carry, xs, fresh = given(layer)
    projected = xs @ layer.inputs + layer.bias
    aims = jax.random.normal(jax.random.key(9), (2, N, H)), jax.random.normal(jax.random.key(8), (T, N, H))

    def score(out):
        return jnp.sum(out[1] * aims[1]) + sum(jnp.sum(part * aims[0][i]) for i, part in enumerate(out[0]))

    own = lambda *x: score(unrolled(layer.kind, *x, fresh))  # noqa: E731
    plain = lambda *x: score(steps(layer.kind, *x, fresh, jnp.zeros_like(projected)))  # noqa: E731
    where = (0, 1, 2)
    for mine, wanted in zip(
        jax.tree.leaves(quick(jax.grad(own, where))(layer.weights, projected, carry)),
        jax.tree.leaves(quick(jax.grad(plain, where))(layer.weights, projected, carry)),
        strict=True,
    ):
        np.testing.assert_allclose(mine, wanted, atol=1e-5)
        assert jnp.abs(wanted).max() > 1e-3


def test_a_layer_is_arrays_alone_and_remembers(layer):
    assert all(eqx.is_array(leaf) for leaf in jax.tree.leaves(layer))
    first = layer.step(layer.blank(), jnp.ones(INPUTS))
    second = layer.step(first, jnp.ones(INPUTS))
    assert jax.tree.structure(first) == jax.tree.structure(layer.blank()) and not np.allclose(first[0], second[0])


def test_another_kind_is_refused():
    with pytest.raises(ValueError, match="'lstm' or 'gru', got 'rnn'"):
        Recurrent("rnn", INPUTS, H, key=jax.random.key(0))
