"""Hashed counts against a dictionary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bonuses.by_hand import discrete, steps, stream
from contracts.settings import Drift, Lamp, experience, small_grid, small_lock

from made.bonuses import HashedCount


def key_by_content(obs):
    obs = obs["hash"] if isinstance(obs, dict) else obs  # the full state where there is one
    return np.asarray(obs).tobytes()


@pytest.mark.parametrize("source", [small_lock, small_grid, Drift, Lamp])
def test_exact_counts_are_those_of_a_dictionary(source):
    bonus = HashedCount(power=1.0)
    _, state, batch, _ = experience(bonus, source())
    visits = {}
    for _ in range(2):
        state, metrics = bonus.update(state, batch, jax.random.key(0))
        for _, _, step in steps(batch):
            visits[key_by_content(step.next_obs)] = visits.get(key_by_content(step.next_obs), 0) + 1
    paid = bonus.reward(state, batch)
    for t, n, step in steps(batch):
        assert np.isclose(paid[t, n], 1 / visits[key_by_content(step.next_obs)])
    assert np.isclose(float(metrics["hashed/used"]) * 2**20, len(visits))


def test_similar_observations_share_a_slot_and_others_do_not():
    bonus = HashedCount(kind="similar", bits=12, on="obs", power=0.5)
    _, state, batch, _ = experience(bonus, Drift())
    state, _ = bonus.update(state, batch, jax.random.key(0))
    slots = {}
    for _, _, step in steps(batch):
        code = tuple((np.asarray(state.planes) @ step.obs > 0).tolist())
        slots[code] = slots.get(code, 0) + 1
    assert 1 < len(slots) < batch.reward.size
    paid = bonus.reward(state, batch)
    for t, n, step in steps(batch):
        assert np.isclose(paid[t, n], slots[tuple((np.asarray(state.planes) @ step.obs > 0).tolist())] ** -0.5)
    longer = batch._replace(obs=2 * batch.obs)  # SimHash tells directions apart, not lengths
    assert np.array_equal(bonus.reward(state, longer), paid)


def test_what_was_never_seen_is_paid_as_if_seen_once():
    bonus = HashedCount()
    state = bonus.init(jax.random.key(0), discrete())
    batch = stream(jnp.arange(3))
    assert np.array_equal(bonus.reward(state, batch), np.ones((3, 1)))


@pytest.mark.parametrize("wrong", [{"kind": "fuzzy"}, {"bits": 0}, {"bits": 31}, {"on": "reward"}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        HashedCount(**wrong)
