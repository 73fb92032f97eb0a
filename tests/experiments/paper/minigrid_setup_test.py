"""Every point of the two formulas against the bonus it stands for, and bonuses set to a strength."""

import equinox as eqx
import jax
import numpy as np
import pytest
from contracts.settings import Walk, collected, quick

from made.bonuses import (
    ICM,
    MADE,
    RIDE,
    RND,
    Bernstein,
    Calibrated,
    ConstantBonus,
    FirstVisit,
    HashedRecentCounts,
    NovelD,
    Standardized,
)
from made.core import EpisodeNote
from made.experiments.paper.minigrid_setup import FAMILY, IMPACT, Family, Impact
from made.nets.fit import Fit


def rnd() -> RND:
    return RND(embedding=8, width=32, fit=Fit(1e-2))


RECENT = Standardized(HashedRecentCounts(40, capacity=40, bits=8))
POINTS = {  # those of the comparison, and more of the formula
    **{name: point for name, point in FAMILY.items() if name != "none"},
    "noveld": Family(alpha=0.5, gate=1.0),
    "density": Family(novelty=0.0, power=0.5),
    "density/gated": Family(novelty=0.0, power=0.5, gate=1.0),
}
THEIRS = {
    "rnd": rnd(),
    "rnd/gated": FirstVisit(rnd()),
    "gate": FirstVisit(),
    "bebold": NovelD(rnd(), alpha=1.0),
    "noveld": NovelD(rnd(), alpha=0.5),
    "made": MADE(rnd(), RECENT),
    "made/gated": FirstVisit(MADE(rnd(), RECENT)),
    "density": MADE(ConstantBonus(), RECENT),
    "density/gated": FirstVisit(MADE(ConstantBonus(), RECENT)),
}


@pytest.fixture(scope="module")
def fed():
    """A family member's state after two batches, and the second of them."""
    bonus = small("rnd")
    _, state, batch, _ = collected(bonus, Walk(), 12, 0)
    update = quick(bonus.update)
    for seed in range(2):
        state, _ = update(state, batch, jax.random.key(seed))
    return state, batch


def small(name: str) -> Family:
    where = lambda m: (m.cover, m.recent)  # noqa: E731
    return eqx.tree_at(where, POINTS[name], (rnd(), RECENT), is_leaf=lambda x: x is POINTS[name].recent)


def own_state(name, state):
    """The parts of the family's state that the bonus of its own has."""
    if "density" in name:
        return state._replace(cover=())
    return state if "made" in name else () if name == "gate" else state.cover


def beneath(batch):
    """The batch as `FirstVisit` reads it: its visits are noted in addition to those of the bonus inside."""
    return batch._replace(note=EpisodeNote(trace=((), ())), next_note=EpisodeNote(trace=(batch.next_note.trace, ())))


@pytest.mark.parametrize("name", THEIRS)
def test_a_point_of_the_family_is_the_bonus_of_that_name(fed, name):
    state, batch = fed
    ours, bonus = small(name).reward(state, batch), THEIRS[name]
    if isinstance(bonus, FirstVisit):
        batch = beneath(batch)
    np.testing.assert_allclose(ours, bonus.reward(own_state(name, state), batch), rtol=1e-5, atol=1e-7)
    assert np.unique(np.asarray(ours)).size > 1


def test_all_points_are_lanes_of_one_program_and_no_two_are_the_same(fed):
    assert len({jax.tree.structure(member) for member in POINTS.values()}) == 1
    paid = [np.asarray(small(name).reward(*fed)) for name in POINTS]
    assert all(not np.allclose(a, b) for i, a in enumerate(paid) for b in paid[:i])


def icm() -> ICM:
    return ICM(embedding=8, width=16, fit=Fit(1e-2))


def small_impact(name: str) -> Impact:
    return eqx.tree_at(lambda m: m.model, IMPACT[name], icm(), is_leaf=lambda x: x is IMPACT[name].model)


@pytest.fixture(scope="module")
def fed_impact():
    """The same of ICM and RIDE."""
    bonus = small_impact("ride")
    _, state, batch, _ = collected(bonus, Walk(), 12, 0)
    update = quick(bonus.update)
    for seed in range(2):
        state, _ = update(state, batch, jax.random.key(seed))
    return state, batch


@pytest.mark.parametrize(("name", "bonus"), [("icm", icm()), ("icm/gated", FirstVisit(icm())), ("ride", RIDE(icm()))])
def test_a_point_of_impact_is_the_bonus_of_that_name(fed_impact, name, bonus):
    state, batch = fed_impact
    ours = small_impact(name).reward(state, batch)
    if isinstance(bonus, FirstVisit):
        batch = beneath(batch)
    np.testing.assert_allclose(ours, bonus.reward(state, batch), rtol=1e-5, atol=1e-7)
    assert np.unique(np.asarray(ours)).size > 1


def test_all_points_of_impact_are_runs_of_one_program_and_no_two_are_the_same(fed_impact):
    assert len({jax.tree.structure(member) for member in IMPACT.values()}) == 1
    paid = [np.asarray(small_impact(name).reward(*fed_impact)) for name in IMPACT]
    assert all(not np.allclose(a, b) for i, a in enumerate(paid) for b in paid[:i])


def test_a_cover_with_an_episodic_memory_is_refused():
    with pytest.raises(ValueError, match="RIDE keeps an episodic memory"):
        Family(cover=RIDE())


def test_calibrated_pays_the_strength_asked_for_and_keeps_its_scale_afterwards():
    bonus = Calibrated(rnd(), strength=0.8, warmup=2)
    _, state, batch, _ = collected(bonus, Walk(), 12, 0)
    update, paid = quick(bonus.update), lambda s: float(bonus.reward(s, batch).mean()) * Walk().spec.horizon
    assert paid(state) == 0  # nothing is known of the scale before the first update
    state, _ = update(state, batch, jax.random.key(0))
    assert paid(state) == pytest.approx(0.8, rel=1e-5)
    state, _ = update(state, batch, jax.random.key(1))
    scale = 0.8 / float(state.mean) / Walk().spec.horizon
    for seed in range(2, 5):
        state, metrics = update(state, batch, jax.random.key(seed))
    assert float(metrics["calibrated/mean"]) * scale * 6 == pytest.approx(0.8)
    np.testing.assert_allclose(bonus.reward(state, batch), scale * rnd().reward(state.inner, batch), rtol=1e-5)
    assert paid(state) < 0.8  # RND has learnt, so it pays less at the same scale


def test_without_a_warm_up_the_strength_is_the_factor_itself():
    bonus = Calibrated(rnd(), strength=0.1, warmup=0)
    _, state, batch, _ = collected(bonus, Walk(), 12, 0)
    for seed in range(2):
        np.testing.assert_allclose(bonus.reward(state, batch), 0.1 * rnd().reward(state.inner, batch), rtol=1e-6)
        state, _ = quick(bonus.update)(state, batch, jax.random.key(seed))


def test_calibrated_needs_a_clock_and_a_bonus_that_it_can_ask():
    with pytest.raises(ValueError, match="no time limit"):
        Calibrated(rnd()).init(jax.random.key(0), Walk().spec._replace(horizon=None))
    with pytest.raises(ValueError, match="Bernstein has them only"):
        Calibrated(Bernstein())
