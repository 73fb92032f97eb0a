"""ICM and RIDE against their formulas, recomputed in NumPy from their parameters."""

import jax
import numpy as np
import pytest
from bonuses.by_hand import embedded, episodes, inverse_loss, mlp, steps, vector
from contracts.settings import Drift, Lamp, Walk, collected, experience, quick, small_lock

from made.bonuses import ICM, RIDE
from made.nets.fit import Fit

SMALL = ICM(embedding=4, width=8, fit=Fit(1e-2))


@pytest.mark.parametrize("source", [small_lock, Drift, Lamp])
def test_icm_pays_the_forward_error_and_learns_the_weighted_losses(source):
    _, state, batch, _ = experience(SMALL, source())
    paid = quick(SMALL.reward)(state, batch)
    _, metrics = quick(SMALL.update)(state, batch, jax.random.key(1))
    nets, forward, inverse = state.params, [], []
    for t, n, step in steps(batch):
        here, there = embedded(nets.embedding, step.obs), embedded(nets.embedding, step.next_obs)
        gap = mlp(nets.forward.net, np.concatenate([here, vector(step.action, nets.forward.action)])) - there
        assert np.isclose(paid[t, n], np.linalg.norm(gap), rtol=1e-4)
        forward.append(0.5 * (gap**2).sum())
        inverse.append(inverse_loss(nets.inverse, here, there, step.action))
    assert np.isclose(metrics["icm/forward"], np.mean(forward), rtol=1e-4)
    assert np.isclose(metrics["icm/inverse"], np.mean(inverse), rtol=1e-4)
    assert np.isclose(metrics["icm/loss"], 0.2 * np.mean(forward) + 0.8 * np.mean(inverse), rtol=1e-4)


def test_icm_comes_to_foresee_and_to_tell_actions_apart():
    bonus = ICM(embedding=8, width=32, fit=Fit(3e-3, steps=50))
    _, state, batch, _ = experience(bonus, Drift(), steps=24)
    update, told = quick(bonus.update), []
    for i in range(6):
        state, metrics = update(state, batch, jax.random.key(i))
        told.append(float(metrics["icm/inverse"]))
    assert told[-1] < 0.2 * told[0]  # the push is the difference of the places over 0.5


def test_the_weights_are_numbers_that_lanes_can_differ_in():
    _, state, batch, _ = experience(SMALL, Drift())
    lanes = jax.tree.map(lambda *x: np.stack(x), *(ICM(4, 8, forward_weight=w, fit=Fit(1e-2)) for w in (0.2, 5.0)))
    update = quick(jax.vmap(lambda bonus: bonus.update(state, batch, jax.random.key(0))[1]["icm/loss"]))
    a, b = update(lanes)
    assert a < b


def test_ride_is_the_impact_over_the_root_of_the_visits_of_the_episode():
    bonus = RIDE(SMALL)
    _, state, batch, _ = collected(bonus, Walk(), 12, 0)
    paid, phi = quick(bonus.reward)(state, batch), state.params.embedding
    repeats = 0
    for n, times in episodes(batch):
        visits = {int(batch.obs[times[0], n]): 1}
        for t in times:
            after = int(batch.next_obs[t, n])  # the true successor, at the last step too
            visits[after] = visits.get(after, 0) + 1
            repeats += visits[after] > 1
            moved = np.linalg.norm(embedded(phi, after) - embedded(phi, int(batch.obs[t, n])))
            assert np.isclose(paid[t, n], moved / np.sqrt(visits[after]), rtol=1e-4, atol=1e-6)
    assert repeats > 5


def test_ride_counts_again_from_one_in_each_episode():
    bonus = RIDE(SMALL)
    _, _, batch, _ = collected(bonus, Lamp(), 12, 0)
    ends = np.asarray(batch.terminated | batch.truncated)
    assert ends[:-1].any()
    assert (np.asarray(batch.note.trace)[1:][ends[:-1]] == 1).all()
    assert (np.asarray(batch.next_note.trace) > 1).any()


def test_ride_learns_as_its_model_does():
    _, state, batch, _ = experience(SMALL, small_lock())
    ours, theirs = (quick(b.update)(state, batch, jax.random.key(1)) for b in (RIDE(SMALL), SMALL))
    same = jax.tree.map(np.array_equal, ours, theirs)
    assert all(jax.tree.leaves(same))
