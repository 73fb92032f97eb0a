"""The benchmark of bonuses: what it measures, what it leaves out, and the same work on both sides."""

import jax
import pytest

from benchmarks.bonuses import rlexplore
from benchmarks.bonuses.rlexplore import PAIRS, Taken
from benchmarks.minigrid import stepping
from made.bonuses import ICM, MADE, Bernstein, FirstVisit, NoBonus

# What rllte-core 1.0.1 holds for 7 x 7 images and seven actions, as benchmarks/bonuses/rlexplore_worker.py counts it.
THEIRS = {"RND": 65_728, "RE3": 32_864, "ICM": 168_167, "E3B": 100_455, "RIDE": 168_167, "PseudoCounts": 48_135}
THEIRS |= {"Disagreement": 303_712}


@pytest.mark.parametrize("name", PAIRS)
def test_ours_hold_at_least_as_many_parameters_as_theirs(name):
    pair = PAIRS[name]
    spec = stepping.driven("none").spec
    state = jax.eval_shape(lambda key: pair.bonus.init(key, spec), jax.random.key(0))
    assert THEIRS[pair.theirs] <= rlexplore.parameters(state) < 1.05 * THEIRS[pair.theirs]


def test_an_optimiser_holds_no_parameters():
    spec = stepping.driven("none").spec
    params = jax.eval_shape(lambda key: ICM(4, 8).init(key, spec), jax.random.key(0)).params
    assert rlexplore.parameters(params) == sum(x.size for x in jax.tree.leaves(params))


def test_a_bonus_that_reads_grids_is_timed_and_a_table_is_left_out(monkeypatch):
    for name, small in {"T": 2, "N": 2, "TASK": "made/MiniGrid-Empty-5x5-v0"}.items():
        monkeypatch.setattr(stepping, name, small)
    assert stepping.seconds(MADE.tabular()) is None and stepping.seconds(Bernstein()) is None
    found = rlexplore.ours_of(FirstVisit())
    assert 0 < found.learning < 10 and 0 < found.remembering < 10
    assert rlexplore.ours_of(NoBonus())[1:] == (0, 0)  # keeps nothing of an episode, has no networks


def test_what_is_not_installed_is_named_and_what_failed_too(monkeypatch):
    monkeypatch.setattr(rlexplore, "ours_of", lambda bonus: Taken(0.01, 0.002, 7))
    monkeypatch.setattr(rlexplore, "rlexplore", dict)
    (row,) = rlexplore.beside(["rnd"], "here")
    assert "MADE_RLEXPLORE_PYTHON" in row.name and row.met is None and row.value == pytest.approx(10)
    monkeypatch.setattr(rlexplore, "rlexplore", lambda: {"RND": Taken(0.05, 0.1, 6), "ICM": "ValueError: no"})
    rnd, _, icm = rlexplore.beside(["rnd", "icm"], "here")
    assert rnd.ratio == pytest.approx(5) and rnd.met and rnd.baseline == pytest.approx(50)
    assert "ValueError: no" in icm.name and icm.met is None


def test_remembering_counts_where_theirs_remembers_while_computing():
    theirs = Taken(0.05, 0.1, 6)
    at_once, apart = (list(rlexplore.rows(n, PAIRS[n], Taken(0.01, 0.01, 7), theirs, "here")) for n in ("e3b", "ride"))
    assert [row.ratio for row in at_once] == pytest.approx([2.5]) and not at_once[0].met
    assert [row.ratio for row in apart] == pytest.approx([5, 10]) and apart[1].goal == ""
