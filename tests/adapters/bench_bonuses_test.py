"""The benchmark of bonuses: what it measures, what it leaves out, and the same work on both sides."""

import pytest

from made.bench import BENCHES, bonuses
from made.bonuses import ICM, MADE, RND, Bernstein, FirstVisit, NoBonus
from made.learning import Fit


def test_every_learner_of_a_bonus_is_set_to_the_same_steps():
    fit = Fit(steps=13, batch=256)
    changed = bonuses.with_fit(FirstVisit(MADE.hashed(cover=RND(width=7))), fit)
    assert changed.bonus.cover.fit is fit and changed.bonus.cover.width == 7
    assert bonuses.with_fit(ICM(), fit) != ICM()
    plain = NoBonus()
    assert bonuses.with_fit(plain, fit) is plain


def test_a_bonus_that_reads_grids_is_timed_and_a_table_is_left_out(monkeypatch):
    for name, small in {"T": 2, "N": 2, "TASK": "made/MiniGrid-Empty-5x5-v0"}.items():
        monkeypatch.setattr(bonuses, name, small)
    assert bonuses.seconds(MADE.tabular()) is None and bonuses.seconds(Bernstein()) is None
    assert 0 < (bonuses.seconds(FirstVisit()) or 0) < 10


def test_what_is_not_installed_is_named_and_what_failed_too(monkeypatch):
    monkeypatch.setattr(bonuses, "seconds", lambda bonus: 0.01)
    monkeypatch.setattr(bonuses, "rlexplore", dict)
    (row,) = bonuses.beside({"rnd": RND()}, "here")
    assert "MADE_RLEXPLORE_PYTHON" in row.name and row.met is None and row.value == pytest.approx(10)
    monkeypatch.setattr(bonuses, "rlexplore", lambda: {"RND": 0.05, "ICM": "ValueError: no"})
    rnd, icm = bonuses.beside({"rnd": RND(), "icm": ICM()}, "here")
    assert rnd.ratio == pytest.approx(5) and rnd.met and rnd.baseline == pytest.approx(50)
    assert "failed with ValueError: no" in icm.name and icm.met is None
    assert "bonuses" in BENCHES
