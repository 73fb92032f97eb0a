"""A loop whose parts get their slopes after it, against one that is left to differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.settings import quick
from jax.tree_util import Partial

from made.nets.layers import Dense, PaddedDense
from made.nets.recurrent import scan_deferred_grad

T, B, WIDTH = 5, 3, 4


def layers(dtype=jnp.float32) -> tuple[PaddedDense, PaddedDense]:
    draw = lambda outputs, seed: jax.random.normal(jax.random.key(seed), (WIDTH, outputs)) / 2  # noqa: E731
    both = Dense(draw(WIDTH, 0), jnp.arange(WIDTH) / 10), Dense(draw(2, 1), jnp.ones(2))
    return PaddedDense.of(both[0], dtype), PaddedDense.of(both[1], dtype)


START, FIXED = jax.random.normal(jax.random.key(2), (B, WIDTH)), jnp.asarray(0.7)
PUSHED, FRESH = jax.random.normal(jax.random.key(3), (T, B, WIDTH)), jnp.arange(T * B).reshape(T, B) % 4 == 0
KEYS = jax.random.split(jax.random.key(4), T)


def step(parts, fixed, before, x):
    """A state that is carried, wiped in places and shaken, and what comes out of a second layer."""
    pushed, fresh, key = x
    after = jnp.tanh(parts[0](jnp.where(fresh[..., None], 0, before)) + fixed * pushed)
    return after + 0.1 * jax.random.normal(key, after.shape), parts[1](after**2)


def plain(step, at_a_time, parts, fixed, start, given):
    return jax.lax.scan(lambda before, x: step(parts, fixed, before, x), start, given)


def ends(loop, parts, fixed, start, pushed, at_a_time=1):
    last, outs = loop(step, at_a_time, parts, fixed, start, (pushed, FRESH, KEYS))
    return (last**2).sum() + (outs * jnp.arange(outs.size).reshape(outs.shape)).mean(), (last, outs)


def slopes(loop, dtype, at_a_time=1):
    loss = lambda parts, start, pushed: ends(loop, parts, FIXED, start, pushed, at_a_time)  # noqa: E731
    return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(layers(dtype), START, PUSHED)


@pytest.mark.parametrize(
    ("dtype", "at_a_time", "off"), [("float32", 1, 1e-5), ("float32", 2, 1e-5), ("bfloat16", 1, 0.1)]
)
def test_the_states_and_all_slopes_are_those_of_a_scan(dtype, at_a_time, off):
    here, there = slopes(scan_deferred_grad, dtype, at_a_time), slopes(plain, dtype)
    assert [x.dtype for x in jax.tree.leaves(here)] == [x.dtype for x in jax.tree.leaves(there)]
    for one, other in zip(jax.tree.leaves(here), jax.tree.leaves(there), strict=True):
        np.testing.assert_allclose(one, other, rtol=off, atol=off)
        assert np.abs(other).max() > 0.1, "a slope of nothing tells nothing"


def test_what_is_fixed_gets_no_slope():
    slope = lambda loop: quick(jax.grad(lambda x: ends(loop, layers(), x, START, PUSHED)[0]))(FIXED)  # noqa: E731
    assert slope(scan_deferred_grad) == 0 and abs(slope(plain)) > 0.1


def test_lanes_are_computed_side_by_side():
    both = jax.tree.map(lambda x: jnp.stack([x, -x]), layers())
    slope = lambda loop: quick(jax.vmap(jax.grad(lambda x: ends(loop, x, FIXED, START, PUSHED)[0])))(both)  # noqa: E731
    for one, other in zip(*(jax.tree.leaves(slope(loop)) for loop in (scan_deferred_grad, plain)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_what_a_part_draws_is_drawn_again_on_the_way_back(kind):
    """Keys of a part are its inputs, and those of some kinds give other numbers side by side than one by one."""
    shaken = lambda weight, x, key: jnp.tanh(x @ weight * jax.random.normal(key, x.shape))  # noqa: E731
    keys, weight = (
        jax.random.split(jax.random.key(0, impl=kind), T),
        jax.random.normal(jax.random.key(1), (WIDTH, WIDTH)),
    )

    def end(loop):
        step = lambda parts, fixed, before, key: (parts[0](before, key) + 0.5, before)  # noqa: E731
        return lambda weight: (loop(step, 1, (Partial(shaken, weight),), None, START, keys)[1] ** 2).sum()

    here, there = (quick(jax.grad(end(loop)))(weight) for loop in (scan_deferred_grad, plain))
    assert np.abs(there).max() > 1
    np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("calls", [0, 2])
def test_a_part_that_is_not_called_once_is_refused(calls):
    step = lambda parts, fixed, before, x: (sum((parts[0](before) for _ in range(calls)), before), before)  # noqa: E731
    loss = lambda parts: scan_deferred_grad(step, 1, parts, None, START, PUSHED)[1].sum()  # noqa: E731
    with pytest.raises(ValueError, match=rf"calls each part once, but this one makes \[{calls}\] calls"):
        jax.grad(loss)(layers()[:1])


def products(loop) -> int:
    """Products within the loop back, of a step."""
    program = jax.make_jaxpr(jax.grad(lambda x: ends(loop, x, FIXED, START, PUSHED)[0]))(layers())
    back = [one for one in program.eqns if one.primitive.name == "scan" and one.params["reverse"]]
    return str(back[0].params["jaxpr"]).count("dot_general")


def test_no_slope_of_a_part_is_made_within_the_loop():
    assert (products(scan_deferred_grad), products(plain)) == (2, 4), (
        "back through both layers; with their slopes, two more"
    )
