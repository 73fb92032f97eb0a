"""`made bench train`: what its rows say follows from what was timed."""

import itertools
from types import SimpleNamespace

import pytest
from contracts.settings import Walk

from made import trees
from made.agents import Uniform
from made.agents.impala_nets import LAYOUTS
from made.bench import train
from made.bonuses import NoBonus
from made.run import Run

CASE = train.Case("small", LAYOUTS["small"], 1, 25e3)


def test_costs_set_each_bonus_beside_the_run_without_one(monkeypatch):
    asked = []

    def seconds(runs):
        asked.extend(run.bonus for run in runs)
        return [0.1, 0.2, 0.125]

    monkeypatch.setattr(train, "seconds", seconds)
    whole, narrow = train.costs(CASE, "cpu", "here")
    assert isinstance(asked[0], NoBonus) and [bonus.bonus.cover.width for bonus in asked[1:]] == [256, 64]
    assert (whole.value, whole.baseline, whole.met) == (200, 100, False) and whole.ratio == pytest.approx(0.5)
    assert (narrow.value, narrow.baseline, narrow.met) == (125, 100, True) and narrow.ratio == pytest.approx(0.8)
    assert "width 64" in narrow.name and narrow.name.endswith("small network, 1 lane")


def test_runs_are_timed_in_turn_and_the_best_counts(monkeypatch):
    """The clock here gives each call the next of these durations; the first calls, which compile, are not timed."""
    lengths = [30.0, 50.0, 20.0, 70.0, 40.0, 60.0]
    ticks = itertools.chain(*((0.0, length) for length in lengths))
    monkeypatch.setattr(train, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    lanes = trees.stack([Run(Walk(), Uniform(), NoBonus(), unroll=2)])
    assert train.seconds([lanes, lanes]) == [2.0, 5.0]  # of 10 updates
