"""Counting where steps lead, against counting by hand."""

import collections

import jax
import numpy as np
from contracts.settings import Walk, collected

from made.bonuses import HashedRecentCounts
from made.bonuses.combinators import ConstantBonus
from made.bonuses.densities.recent_counts import SuccessorDensity
from made.bonuses.made import MADE


def after_one_batch(arrived: float):
    density = SuccessorDensity(HashedRecentCounts(1000, capacity=1000), arrived)
    _, state, batch, _ = collected(MADE(ConstantBonus(), density), Walk(), 12, 0)
    state, _ = density.update(density.init(jax.random.key(0), Walk().spec), batch, jax.random.key(1))
    return np.exp(np.asarray(density.log_density(state, batch))), batch


def counted(keys) -> np.ndarray:
    times = collections.Counter(keys)
    return np.array([times[key] for key in keys])


def test_where_steps_lead_is_counted_whatever_led_there():
    found, batch = after_one_batch(1.0)
    reached = [
        np.asarray(x).tobytes() for x in np.asarray(jax.tree.leaves(batch.next_obs)[0]).reshape(batch.reward.size, -1)
    ]
    np.testing.assert_allclose(found.reshape(-1), counted(reached), rtol=1e-5)
    assert len(set(reached)) > 1


def test_at_zero_it_is_the_density_of_what_was_done():
    found, batch = after_one_batch(0.0)
    seen = np.asarray(jax.tree.leaves(batch.obs)[0]).reshape(batch.reward.size, -1)
    done = [(x.tobytes(), int(a)) for x, a in zip(seen, np.asarray(batch.action).reshape(-1), strict=True)]
    np.testing.assert_allclose(found.reshape(-1), counted(done), rtol=1e-5)
    assert counted(done).max() > 1
