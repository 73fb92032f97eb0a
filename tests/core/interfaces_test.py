"""What deep bonuses share: hashes, views, episodic counts, and the descent of their networks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.bonuses.episodic import VisitCounts
from made.core import Space, Spec, dict_obs, trees
from made.nets.fit import Fit


def test_digests_differ_wherever_one_entry_differs():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 11, (4000, 7, 7, 3)).astype(np.uint8)
    nearby = np.repeat(images[:1], 147, 0).reshape(147, 147)
    nearby[np.arange(147), np.arange(147)] += 1
    swapped = np.stack([np.roll(images[1], i) for i in range(147)])
    everything = np.concatenate([images, nearby.reshape(-1, 7, 7, 3), swapped])
    found = np.asarray(jax.vmap(trees.digest)(everything))
    assert len({tuple(x) for x in found.tolist()}) == len(np.unique(everything.reshape(len(everything), -1), axis=0))
    for word in found.T:  # each word by itself spreads over its range
        counts = np.bincount(word >> 28, minlength=16)
        assert counts.min() > 0.7 * counts.mean()


def test_digest_reads_floats_by_value_and_trees_by_leaf():
    assert np.array_equal(trees.digest(jnp.array([0.0])), trees.digest(jnp.array([-0.0])))
    one, other = {"a": jnp.array([1, 2]), "b": jnp.array([3])}, {"a": jnp.array([1]), "b": jnp.array([3, 2])}
    assert not np.array_equal(trees.digest(one), trees.digest(other))


def test_views_name_parts_and_refuse_what_is_not_there():
    obs = {"image": jnp.ones((7, 7, 3)), "hash": jnp.array([5, 6], jnp.uint32)}
    assert dict_obs.part(obs, "image").shape == (7, 7, 3) and dict_obs.part(obs, "") is obs
    assert list(dict_obs.looked_at(obs, "")) == ["image"]
    assert np.array_equal(dict_obs.key_of(obs, ""), trees.digest(obs["hash"]))
    assert np.array_equal(dict_obs.key_of(obs, "image"), trees.digest(obs["image"]))
    with pytest.raises(ValueError, match=r"'full'.*'image', 'hash'"):
        dict_obs.part(obs, "full")
    with pytest.raises(ValueError, match="no named parts"):
        dict_obs.part(jnp.zeros(3), "image")


@pytest.mark.parametrize(("horizon", "capacity", "room"), [(9, 0, 10), (None, 0, 1000), (9, 4, 4)])
def test_visit_counts_are_those_of_a_dictionary(horizon, capacity, room):
    memory = VisitCounts(capacity=capacity)
    spec = Spec(Space((), jnp.int32, 5), Space((), jnp.int32, 2), horizon=horizon)
    held, truth = memory.blank(spec), {}
    assert held.keys.shape == (room, 2)
    remember = jax.jit(memory.remember)
    for obs in np.random.default_rng(1).integers(0, 5, min(room, 10)):
        held, note = remember((), held, jnp.asarray(obs, jnp.int32), jax.random.key(0))
        truth[obs] = truth.get(obs, 0) + 1
        assert int(note.trace) == truth[obs]


def test_visit_counts_refuse_a_part_that_is_not_there():
    spec = Spec(Space((3,), jnp.float32), Space((), jnp.int32, 2))
    with pytest.raises(ValueError, match="no part 'hash'"):
        VisitCounts(view="hash").blank(spec)


@pytest.mark.parametrize("fit", [Fit(0.05, steps=60), Fit(0.05, steps=60, batch=16)])
def test_fit_finds_the_least_squares_line(fit):
    x = jax.random.normal(jax.random.key(0), (64, 3))
    truth = jnp.array([1.0, -2.0, 0.5])

    def loss(w, items, key):
        x, y = items
        return jnp.mean((x @ w - y) ** 2), {"size": jnp.asarray(len(y))}

    learned, items = fit.init(jnp.zeros(3)), (x, x @ truth)
    for i in range(10):
        learned, metrics = jax.jit(fit.fit, static_argnums=0)(loss, learned, items, jax.random.key(i))
    assert np.allclose(learned.params, truth, atol=1e-2)
    assert int(metrics["size"]) == (fit.batch or 64)
    with pytest.raises(ValueError, match="at least 1 as steps"):
        Fit(steps=0)
