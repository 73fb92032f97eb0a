"""The small pieces of the spine: rings, moments, trees, schedules."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made.core import ring_buffer, running_stats, trees
from made.core.schedules import Constant, Exponential, Power

CAPACITY = 7
push = jax.jit(ring_buffer.push)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=12), st.integers(1, CAPACITY))
def test_a_ring_holds_what_a_deque_holds(sizes, window):
    """Batches of 1, 4 and 9 items (longer than some windows) against collections.deque, and who left."""
    ring, truth, counter = ring_buffer.empty(jnp.zeros((), jnp.int32), CAPACITY), deque(maxlen=window), 0
    for size in sizes:
        batch = np.arange(counter, counter + (1, 4, 9)[size - 1], dtype=np.int32)
        counter += len(batch)
        before = list(truth)
        truth.extend(batch.tolist())
        ring, moved = push(ring, jnp.asarray(batch), window)
        left = np.asarray(moved.left)[np.asarray(moved.left_valid)]
        came = batch[np.asarray(moved.came_valid)]
        assert sorted(left.tolist()) == sorted(set(before) - set(truth))
        assert sorted(came.tolist()) == sorted(set(truth) - set(before))
    held = np.asarray(ring.items)[: int(ring_buffer.size(ring, window))]
    assert sorted(held.tolist()) == sorted(truth)


def test_a_ring_samples_only_what_it_holds():
    ring, _ = ring_buffer.push(ring_buffer.empty(jnp.zeros((), jnp.int32), 10), jnp.array([3, 5, 8], jnp.int32))
    drawn = set(np.asarray(ring_buffer.sample(ring, 200, jax.random.key(0))).tolist())
    assert drawn == {3, 5, 8}
    with pytest.raises(ValueError, match="at least one"):
        ring_buffer.empty(jnp.zeros(()), 0)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_moments_of_batches_are_moments_of_the_whole(shape):
    rng = np.random.default_rng(0)
    parts = [rng.normal(5, 3, (n, *shape)).astype(np.float32) for n in (1, 7, 20)]
    seen = running_stats.empty(shape)
    for part in parts:
        seen = running_stats.merge(seen, jnp.asarray(part))
    whole = np.concatenate(parts)
    assert np.allclose(seen.mean, whole.mean(0), rtol=1e-5)
    assert np.allclose(running_stats.variance(seen), whole.var(0), rtol=1e-4)
    assert np.allclose(running_stats.deviation(seen), whole.std(0), rtol=1e-4)
    assert np.all(running_stats.variance(running_stats.empty(shape)) == 1)


def test_where_picks_whole_rows_of_every_leaf_keys_included():
    yes = {"a": jnp.ones((2, 3)), "k": jax.random.split(jax.random.key(0), 2)}
    no = {"a": jnp.zeros((2, 3)), "k": jax.random.split(jax.random.key(1), 2)}
    out = trees.select(jnp.array([True, False]), yes, no)
    assert np.array_equal(out["a"], [[1, 1, 1], [0, 0, 0]])
    picked = jax.random.key_data(out["k"])
    assert np.array_equal(picked[0], jax.random.key_data(yes["k"])[0])
    assert np.array_equal(picked[1], jax.random.key_data(no["k"])[1])


def test_stacking_python_numbers_leaves_no_weak_types():
    whole = trees.stack([{"x": 0.5, "n": 3}, {"x": 1.5, "n": 4}])
    assert not whole["x"].weak_type and not whole["n"].weak_type
    assert np.array_equal(trees.index(whole, 1)["n"], 4)


def test_leading_axes_are_merged_and_mapped_over():
    x = jnp.arange(24.0).reshape(2, 3, 4)
    assert trees.flatten_leading(x, 2).shape == (6, 4)
    assert np.array_equal(trees.over_leading(jnp.sum, 2)(x), x.sum(-1))


def test_schedules_follow_their_formulas():
    k = jnp.array(4)
    assert float(Constant(0.3)(k)) == pytest.approx(0.3)
    assert float(Power(0.1, 0.5)(k)) == pytest.approx(0.05)
    assert float(Exponential(2.0, 0.5)(k)) == pytest.approx(2 * 0.5**4)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: Constant(-1.0), "Constant takes a number of at least 0 as value, got -1.0: 1.0 is usual"),
        (lambda: Power(1.0, float("nan")), "Power takes a number as c, got nan"),
        (lambda: Exponential(float("inf")), "Exponential takes a number of at least 0 as value, got inf"),
        (lambda: Exponential(1.0, 1.5), "Exponential takes a number from 0 to 1 as rho, got 1.5"),
    ],
)
def test_schedules_refuse_what_no_bonus_can_be_paid_at(made, told):
    with pytest.raises(ValueError, match=told):
        made()
    assert jax.vmap(lambda value: Constant(value)(1))(jnp.array([-1.0])).item() == -1.0, (
        "what is traced was checked before"
    )
