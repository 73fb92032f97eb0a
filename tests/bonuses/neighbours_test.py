"""Bonuses of distances: RE3 by brute force, E3B by explicit inverses, NGU by its kernel, Disagreement by variances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bonuses.by_hand import discrete, embedded, episodes, inverse_loss, mlp, steps, stream, vector
from contracts.settings import CONTROLLABLE, FIT, TINY, Drift, Lamp, collected, experience, quick, rnd, small_lock

from made.bonuses import E3B, NGU, RE3, Disagreement
from made.bonuses.ngu import Kernel
from made.bonuses.re3 import distances, largest
from made.core import ring_buffer


def brute(points, queries, k):
    distances = np.linalg.norm(points[None] - queries[:, None], axis=-1)
    return np.sort(distances, -1)[:, min(k, points.shape[0] - 1)]


@pytest.mark.parametrize(("source", "capacity", "log"), [(Drift, 64, False), (Drift, 10, True), (Lamp, 64, False)])
def test_re3_is_the_distance_to_the_kth_other_among_the_last(source, capacity, log):
    bonus = RE3(**TINY, capacity=capacity, log=log, chunk=5)  # chunks that do not divide the batch
    _, state, batch, _ = experience(bonus, source())
    for part in (batch, jax.tree.map(lambda x: x[:3], batch)):
        state, _ = quick(bonus.update)(state, part, jax.random.key(0))
    flat = lambda b: [embedded(state.encoder, step.obs) for _, _, step in steps(b)]  # noqa: E731
    points = np.array(flat(batch) + flat(jax.tree.map(lambda x: x[:3], batch)))[-capacity:]
    expected = brute(points, np.array(flat(batch)), 3)
    expected = np.log1p(expected) if log else expected
    assert np.allclose(np.asarray(quick(bonus.reward)(state, batch)).reshape(-1), expected, atol=1e-5)


@pytest.mark.parametrize(("n", "k"), [(100, 4), (103, 4), (7, 7), (11, 5)])  # with and without a last block cut short
def test_the_largest_are_found_by_blocks(n, k):
    held = jnp.arange(n) < n - 2
    rank = jnp.where(held, jax.random.permutation(jax.random.key(n), n).astype(float), -jnp.inf)
    found = np.asarray(rank[largest(rank, k)])
    assert np.array_equal(np.sort(found)[::-1], np.sort(rank)[::-1][:k])


@pytest.mark.parametrize("held", [0, 2, 9, 20, 23])  # none, too few, one block and a part, all but the last, all
def test_neighbours_are_the_same_where_empty_blocks_are_looked_at_too(held):
    points, queries = (jax.random.normal(jax.random.key(i), (n, 4)) for i, n in enumerate((23, 5)))
    ring = ring_buffer.Ring(points, jnp.int32(held))
    searches = (quick(lambda ring, whole=whole: distances(ring, queries, 3, 8, whole)) for whole in (False, True))
    some, every = (np.asarray(search(ring)) for search in searches)
    assert np.array_equal(some, every)
    expected = brute(np.asarray(points)[:held], np.asarray(queries), 3) if held else np.zeros(5)
    assert np.allclose(every, expected, rtol=1e-5)


def test_neighbours_that_are_close_together_and_far_from_zero_are_told_apart():
    """As the frames of one task are in a random encoder: there ranks that are rounded took others for the nearest."""
    spread = jax.random.normal(jax.random.key(0), (200, 4)) * 1e-3
    points = np.asarray(1 + spread)
    found = quick(lambda ring: distances(ring, ring.items[:20], 3, 64))(
        ring_buffer.Ring(jnp.asarray(points), jnp.int32(200))
    )
    assert np.allclose(found, brute(points.astype(np.float64), points[:20].astype(np.float64), 3), rtol=1e-5)


def test_re3_with_few_or_no_neighbours():
    bonus = RE3(**TINY, capacity=8)
    _, state, batch, _ = experience(bonus, Drift())
    assert not bonus.reward(state, batch).any()
    two = jax.tree.map(lambda x: x[:2, :1], batch)
    state, _ = quick(bonus.update)(state, two, jax.random.key(0))
    points = np.array([embedded(state.encoder, step.obs) for _, _, step in steps(two)])
    assert np.allclose(bonus.reward(state, two).reshape(-1), np.linalg.norm(points[0] - points[1]), rtol=1e-5)
    with pytest.raises(ValueError, match="k=8"):
        RE3(k=8, capacity=8)


@pytest.mark.parametrize("source", [small_lock, Drift])
def test_e3b_is_the_quadratic_form_of_the_inverse_of_the_episode(source):
    bonus = E3B(CONTROLLABLE, ridge=0.3)
    _, state, batch, _ = collected(bonus, source(), 12, 0)
    paid = np.asarray(quick(bonus.reward)(state, batch))
    for n, times in episodes(batch):
        phi = embedded(state.params[0], batch.obs[times[0], n])
        c = 0.3 * np.eye(4) + np.outer(phi, phi)
        for t in times:
            phi = embedded(state.params[0], batch.next_obs[t, n])
            assert np.isclose(paid[t, n], phi @ np.linalg.inv(c) @ phi, rtol=2e-3)
            c += np.outer(phi, phi)


@pytest.mark.parametrize("source", [small_lock, Drift])
def test_e3b_learns_inverse_dynamics(source):
    bonus = E3B(CONTROLLABLE)
    _, state, batch, _ = collected(bonus, source(), 12, 0)
    _, metrics = quick(bonus.update)(state, batch, jax.random.key(0))
    phi, inverse = state.params
    pairs = [(embedded(phi, s.obs), embedded(phi, s.next_obs), s.action) for _, _, s in steps(batch)]
    assert np.isclose(metrics["inverse/loss"], np.mean([inverse_loss(inverse, *pair) for pair in pairs]), rtol=1e-4)


def test_e3b_refuses_a_matrix_without_inverse():
    with pytest.raises(ValueError, match="as ridge, got 0"):
        E3B(ridge=0.0)


def test_ngu_is_the_kernel_of_the_episode_times_the_clipped_novelty():
    kernel = Kernel(k=2, epsilon=0.01, most=4.0)
    bonus = NGU(CONTROLLABLE, rnd(squared=True), kernel, most=2.0)
    _, state, batch, _ = collected(bonus, Drift(), 12, 0)
    state, _ = quick(bonus.update)(state, batch, jax.random.key(0))
    paid, error = quick(bonus.reward)(state, batch), np.asarray(bonus.lifelong.reward(state.lifelong, batch))
    assert np.isclose(state.errors.mean, error.mean(), rtol=1e-5)
    assert np.isclose(state.distances.mean, np.mean(batch.next_note.trace.distance), rtol=1e-5)
    factor = np.clip(1 + (error - error.mean()) / error.std(), 1, 2)
    assert len(set(np.round(factor.reshape(-1), 4))) > 2  # not all at an end
    assert np.allclose(paid, batch.next_note.trace.novelty * factor, rtol=1e-4)


def test_ngu_remembers_the_nearest_of_the_episode():
    kernel = Kernel(k=2, epsilon=0.01, cluster=0.1, most=1.1)
    bonus = NGU(CONTROLLABLE, rnd(squared=True), kernel)
    _, state, batch, _ = collected(bonus, Drift(), 12, 0)
    usual = 2.0
    state = state._replace(distances=state.distances._replace(count=jnp.ones(()), mean=jnp.asarray(usual)))
    memory, phi, zeros = bonus.memory, state.features.params[0], 0
    remember = quick(lambda held, obs: memory.remember(state, held, obs, jax.random.key(0)))
    for n, times in list(episodes(batch))[:3]:
        met = [embedded(phi, batch.obs[times[0], n])]
        held, _ = remember(memory.blank(Drift().spec), batch.obs[times[0], n])
        for t in times:
            point = embedded(phi, batch.next_obs[t, n])
            held, note = remember(held, batch.next_obs[t, n])
            near = np.sort([((point - other) ** 2).sum() for other in met])[:2]
            relative = np.maximum(near / usual - 0.1, 0)
            similarity = np.sqrt((0.01 / (relative + 0.01)).sum()) + 0.001
            zeros += similarity > 1.1
            assert np.isclose(note.trace.distance, near.mean(), rtol=1e-4)
            assert np.isclose(note.trace.novelty, 0 if similarity > 1.1 else 1 / similarity, rtol=1e-3)
            met.append(point)
    assert zeros > 0


def test_disagreement_is_the_variance_of_the_models():
    bonus = Disagreement(models=3, **TINY, fit=FIT)
    _, state, batch, _ = experience(bonus, Drift())
    paid = quick(bonus.reward)(state, batch)
    _, metrics = quick(bonus.update)(state, batch, jax.random.key(0))
    models = [jax.tree.map(lambda x, i=i: x[i], state.models.params) for i in range(3)]
    losses = []
    for t, n, step in steps(batch):
        here = np.concatenate([embedded(state.embedding, step.obs), vector(step.action, models[0].action)])
        said = np.array([mlp(model.net, here) for model in models])
        assert np.isclose(paid[t, n], said.var(0).mean(), rtol=1e-4)
        losses.append(((said - embedded(state.embedding, step.next_obs)) ** 2).sum(0))
    assert np.isclose(metrics["disagreement/loss"], np.mean(losses), rtol=1e-4)
    with pytest.raises(ValueError, match="a whole number of at least 2 as models, got 1"):
        Disagreement(models=1)


def test_models_agree_about_what_they_learned():
    bonus = Disagreement(8, 32, models=3, fit=FIT)
    batch = stream(np.repeat([0, 1], 8), np.repeat([1, 2], 8))
    state = bonus.init(jax.random.key(0), discrete(14))
    update = quick(bonus.update)
    for i in range(60):
        state, _ = update(state, batch, jax.random.key(i))
    known, new = quick(bonus.reward)(state, batch).max(), bonus.reward(state, stream([5])).min()
    assert known < 0.05 * new
