"""Statistics against closed forms, intervals against their nominal coverage, refusals of bad input."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from made.experiments.statistics import (
    CensoredTimes,
    Interval,
    interval,
    iqm,
    paired_interval,
    probability_of_improvement,
    time_to_threshold,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 5.0], 3.0),
        ([0.0, 6.0, 60.0], (0 + 4 * 6 + 60) / 6),
        ([9.0, 0.0, 4.0, 2.0], 3.0),
        ([0.0, 10.0, 20.0, 30.0, 400.0], 0.3 * 10 + 0.4 * 20 + 0.3 * 30),
        (list(range(8)), 3.5),
    ],
)
def test_iqm_closed_forms(values, expected):
    assert iqm(values) == pytest.approx(expected, rel=1e-14)


def test_iqm_is_scipys_trimmed_mean_where_four_divides_n():
    values = rng().normal(size=(20, 3))
    np.testing.assert_allclose(iqm(values, axis=0), stats.trim_mean(values, 0.25, axis=0), rtol=1e-13)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=23))
@settings(max_examples=60, deadline=None)
def test_iqm_is_the_integral_of_the_quantile_function(values):
    n = len(values)
    points = (np.arange(2 * n) + 0.5) / (4 * n) + 0.25  # 4n cells: the quantile function is constant on each
    quantiles = np.sort(values)[np.floor(points * n).astype(int)]
    assert iqm(values) == pytest.approx(quantiles.mean(), rel=1e-9, abs=1e-6)


def test_interval_of_two_values_has_the_exact_bootstrap_law():
    # Resampled means of {0, 1} are 0, 1/2, 1 with chances 1/4, 1/2, 1/4.
    assert interval([0.0, 1.0], "mean", rng())[:3] == (0.5, 0.0, 1.0)


def test_interval_of_the_mean_has_the_normal_width():
    values = rng().normal(size=200)
    found = interval(values, "mean", rng())
    half = 1.96 * values.std() / math.sqrt(200)
    assert found.high - found.low == pytest.approx(2 * half, rel=0.08)
    assert found.estimate == pytest.approx(values.mean()) and found.n == 200


@pytest.mark.parametrize("statistic", ["mean", "iqm"])
def test_interval_covers_the_truth_about_as_often_as_it_says(statistic):
    draw, boot = rng(1), rng(2)
    hits = 0
    for _ in range(400):
        found = interval(draw.normal(3.0, 2.0, size=30), statistic, boot)
        hits += found.low <= 3.0 <= found.high
    assert 0.90 <= hits / 400 <= 0.98


def test_curves_are_resampled_by_whole_seeds():
    values = rng().normal(size=(12, 7, 2))
    found = interval(values, "iqm", rng(5))
    alone = interval(values[:, 3, 1], "iqm", rng(5))
    assert np.shape(found.estimate) == (7, 2)
    assert (found.estimate[3, 1], found.low[3, 1], found.high[3, 1]) == pytest.approx(alone[:3], rel=1e-12)
    # y = 2 x for every seed, so every resample of y is twice that of x: the intervals must agree exactly.
    x = values[:, 0, 0]
    both = interval(np.stack([x, 2 * x], axis=1), "mean", rng(3))
    np.testing.assert_allclose(2 * both.low[0], both.low[1], rtol=1e-12)


def test_chunks_do_not_change_the_result(monkeypatch):
    values = rng().normal(size=(10, 40))
    whole = interval(values, "iqm", rng(1))
    monkeypatch.setattr("made.experiments.statistics._CELLS", 1)
    parts = interval(values, "iqm", rng(1))
    for a, b in zip(whole[:3], parts[:3], strict=True):
        np.testing.assert_array_equal(a, b)


def test_same_generator_same_interval_and_only_that():
    values = rng().normal(size=50)
    assert interval(values, "iqm", rng(4)) == interval(values, "iqm", rng(4))
    assert interval(values, "iqm", rng(4)).low != interval(values, "iqm", rng(5)).low


def test_degenerate_seeds():
    one = interval([3.0], "iqm", rng())
    assert one.estimate == 3.0 and math.isnan(one.low) and math.isnan(one.high) and "one seed" in str(one)
    equal = interval(np.full(9, 0.1), "iqm", rng())
    assert equal.low == equal.estimate == equal.high == pytest.approx(0.1, rel=1e-15)


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [1.0, math.inf], np.zeros((3, 0)), np.array(4.0)])
@pytest.mark.parametrize(
    "call",
    [
        lambda v: interval(v, "iqm", rng()),
        lambda v: paired_interval(v, v, "mean", rng()),
        lambda v: probability_of_improvement([1.0, 2.0], v, rng()),
    ],
)
def test_bad_values_are_refused(call, bad):
    with pytest.raises(ValueError, match=r"no values|NaN or infinite|Expected values of shape"):
        call(bad)


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="iqm or mean"):
        interval([1.0, 2.0], "iqr", rng())
    with pytest.raises(ValueError, match="seed by seed"):
        paired_interval([1.0, 2.0], [1.0, 2.0, 3.0], "mean", rng())


def test_pairing_removes_what_seeds_share():
    shared, noise = 10 * rng(0).normal(size=20), 0.1 * rng(1).normal(size=20)
    found = paired_interval(shared + 1 + noise, shared, "mean", rng())
    assert found.low < 1 + noise.mean() < found.high and found.high - found.low < 0.2


def test_probability_of_improvement_counts_ties_half():
    a, b = [3.0, 1.0, 2.0], [2.0, 0.0]
    found = probability_of_improvement(a, b, rng())
    assert found.estimate == pytest.approx((1 + 1 + 0 + 1 + 0.5 + 1) / 6)
    assert found.estimate == pytest.approx(stats.mannwhitneyu(a, b).statistic / 6)
    assert probability_of_improvement(b, a, rng()).estimate == pytest.approx(1 - found.estimate)
    assert probability_of_improvement([5.0, 6.0], [1.0, 2.0], rng())[:3] == (1.0, 1.0, 1.0)
    assert probability_of_improvement([1.0, 1.0], [1.0, 1.0], rng())[:3] == (0.5, 0.5, 0.5)
    assert math.isnan(probability_of_improvement([1.0], [0.0, 1.0], rng()).low)


def test_probability_of_improvement_covers_the_truth():
    truth, draw, boot, hits = stats.norm.cdf(0.5 / math.sqrt(2)), rng(1), rng(2), 0
    for _ in range(200):
        a, b = draw.normal(0.5, 1, size=25), draw.normal(0, 1, size=25)
        found = probability_of_improvement(a, b, boot)
        hits += found.low <= truth <= found.high
    assert 0.88 <= hits / 200 <= 0.99


def test_time_to_threshold_and_censoring():
    steps = np.array([0, 10, 20, 30])
    curves = np.array([[0, 1, 0, 0], [0, 0, 0, 1], [0, 0.9, 0.9, 0.9], [1, 0, 0, 0], [np.nan, np.nan, 2, 0]])
    found = time_to_threshold(steps, curves, 1.0)
    np.testing.assert_array_equal(found.times, [10, 30, 30, 0, 20])
    np.testing.assert_array_equal(found.censored, [False, False, True, False, False])
    assert found.reached == 0.8
    with pytest.raises(ValueError, match=r"\(3,\) and \(5, 4\)"):
        time_to_threshold(steps[:3], curves, 1.0)
    with pytest.raises(ValueError, match="NaN"):
        time_to_threshold(steps, curves, math.nan)


def test_median_time_says_when_it_was_not_reached():
    half = CensoredTimes(np.array([10, 20, 99, 99]), np.array([False, False, True, True]))
    assert half.median(rng()).estimate == 20
    assert half.median(rng()).high == math.inf
    most = CensoredTimes(np.array([10, 99, 99]), np.array([False, True, True]))
    assert most.median(rng()).estimate == math.inf
    assert str(most.median(rng())).startswith("not reached [10, not reached")
    assert most.say(rng()).endswith("reached by 1 of 3 seeds within 99")
    none = CensoredTimes(np.array([99, 99]), np.array([True, True]))
    assert str(none.median(rng())) == "not reached"
    every = CensoredTimes(np.array([12000, 25000, 30000]), np.zeros(3, bool))
    assert every.say(rng()) == "median 25000 [12000, 30000]; reached by 3 of 3 seeds"


def test_an_interval_prints_its_numbers():
    assert str(Interval(0.12345, -1.0, 2.5e9, n=3)) == "0.1235 [-1, 2.5e+09]"
