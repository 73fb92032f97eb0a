"""Every point of ICM's and RIDE's formula against the bonus it stands for."""

import equinox as eqx
import jax
import numpy as np
import pytest
from contracts.settings import Walk, collected, quick

from made.bonuses import ICM, RIDE, FirstVisit
from made.core import EpisodeNote
from made.experiments.paper.minigrid_setup import IMPACT, Impact
from made.nets.fit import Fit


def icm() -> ICM:
    return ICM(embedding=8, width=16, fit=Fit(1e-2))


THEIRS = {"icm": icm(), "icm/gated": FirstVisit(icm()), "ride": RIDE(icm())}


def small(name: str) -> Impact:
    return eqx.tree_at(lambda m: m.model, IMPACT[name], icm(), is_leaf=lambda x: x is IMPACT[name].model)


@pytest.fixture(scope="module")
def fed():
    """A state after two batches, and the second of them."""
    bonus = small("ride")
    _, state, batch, _ = collected(bonus, Walk(), 12, 0)
    update = quick(bonus.update)
    for seed in range(2):
        state, _ = update(state, batch, jax.random.key(seed))
    return state, batch


@pytest.mark.parametrize("name", THEIRS)
def test_a_point_is_the_bonus_of_that_name(fed, name):
    state, batch = fed
    ours, bonus = small(name).reward(state, batch), THEIRS[name]
    if isinstance(bonus, FirstVisit):  # which notes its visits beside those of the bonus inside
        batch = batch._replace(
            note=EpisodeNote(trace=((), ())), next_note=EpisodeNote(trace=(batch.next_note.trace, ()))
        )
    np.testing.assert_allclose(ours, bonus.reward(state, batch), rtol=1e-5, atol=1e-7)
    assert np.unique(np.asarray(ours)).size > 1


def test_all_points_are_lanes_of_one_program_and_no_two_are_the_same(fed):
    assert len({jax.tree.structure(member) for member in IMPACT.values()}) == 1
    paid = [np.asarray(small(name).reward(*fed)) for name in IMPACT]
    assert all(not np.allclose(a, b) for i, a in enumerate(paid) for b in paid[:i])
