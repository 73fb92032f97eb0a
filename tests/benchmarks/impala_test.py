"""`python -m benchmarks.impala`: what its rows say follows from what was timed."""

import itertools
from types import SimpleNamespace

import pytest
from contracts.settings import Walk

from benchmarks.impala import training_speed
from benchmarks.impala.time_shares import split
from made.agents import Uniform
from made.agents.policy_net import LAYOUTS
from made.bonuses import NoBonus
from made.core import trees
from made.training.on_policy import RunConfig

CASE = training_speed.Case("small", LAYOUTS["small"], 1, 25e3)


def test_costs_set_each_bonus_beside_the_run_without_one(monkeypatch):
    programs = {"": "no bonus", "MADE": "made", "MADE on an RND of width 64": "narrow"}
    took = {"no bonus": 0.1, "made": 0.2, "narrow": 0.125}
    monkeypatch.setattr(training_speed, "seconds", lambda programs: [took[one] for one in programs])
    whole, narrow = training_speed.costs(CASE, programs, "here", asked_for=True)  # type: ignore[arg-type]
    assert (whole.value, whole.baseline, whole.met) == (200, 100, False) and whole.ratio == pytest.approx(0.5)
    assert (narrow.value, narrow.baseline, narrow.met) == (125, 100, True) and narrow.ratio == pytest.approx(0.8)
    assert {row.met for row in training_speed.costs(CASE, programs, "here", asked_for=False)} == {None}  # type: ignore[arg-type]
    assert "width 64" in narrow.name and narrow.name.endswith("small network, 1 lane")


def test_runs_are_timed_in_turn_and_the_best_counts(monkeypatch):
    """The clock here gives each call the next of these durations; the first calls are not timed."""
    lengths = [30.0, 50.0, 20.0, 70.0, 40.0, 60.0]
    ticks = itertools.chain(*((0.0, length) for length in lengths))
    monkeypatch.setattr(training_speed, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    program = training_speed.built(trees.stack([RunConfig(Walk(), Uniform(), NoBonus(), unroll=2)]))
    assert training_speed.seconds([program, program]) == [2.0, 5.0]  # of 10 updates


def test_a_share_is_what_a_program_adds_to_the_one_before():
    took = {"environment": 1.0, "acting": 3.0, "remembering": 4.0, "bonus": 2.0, "both": 6.0}
    assert split(took) == pytest.approx({"environment": 0.1, "acting": 0.2, "bonus": 0.3, "learning": 0.4})
    assert split({**took, "acting": 0.5})["acting"] == 0  # noise
