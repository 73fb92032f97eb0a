"""Estimates over seeds, with percentile bootstrap intervals.

Seeds are the only source of randomness that is resampled, and every function that draws takes its own
`numpy.random.Generator`, so that the same generator seed gives the same interval to the last bit.
The seeds are on the first axis of `values` everywhere, as in `Table.curves`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

RESAMPLES, LEVEL = 2000, 0.95  # of every interval
_CELLS = 2_000_000  # resampled numbers held at once: bounds the memory taken by long curves


class Interval(NamedTuple):
    """An estimate with the ends of its bootstrap interval; floats for one quantity, arrays for a curve.

    `n` is the number of seeds. One seed says nothing about the spread: both ends are then NaN, and without any all is.

    >>> print(Interval(0.5, 0.25, 0.75, n=20))
    0.5 [0.25, 0.75]
    """

    estimate: float | np.ndarray
    low: float | np.ndarray
    high: float | np.ndarray
    n: int

    def __str__(self) -> str:
        if not self.n:
            return "no seed"
        if np.isposinf(self.low):
            return "not reached"
        ends = "one seed, no interval" if np.isnan(self.low) else f"{number_text(self.low)}, {number_text(self.high)}"
        return f"{number_text(self.estimate)} [{ends}]"


def n_seeds_text(counts: Sequence[int]) -> str:
    """How many seeds, in words.

    >>> n_seeds_text([3, 5, 4]), n_seeds_text([1])
    ('3 to 5 seeds', '1 seed')
    """
    number = " to ".join(str(count) for count in dict.fromkeys((min(counts), max(counts))))
    return f"{number} seed{'s' * (number != '1')}"


def iqm(values: ArrayLike, axis: int = -1) -> np.ndarray | np.floating:
    """The interquartile mean: the mean of the middle half of the sorted values.

        iqm = 2 * integral of the empirical quantile function over [1/4, 3/4]

    A value that straddles a quartile counts by the fraction of it that lies inside. Equal to rliable's
    (Agarwal et al., 2021) where 4 divides the number of values; elsewhere rliable rounds the trimmed
    number down.
    """
    ordered = np.moveaxis(np.sort(np.asarray(values, np.float64), axis), axis, -1)
    n = ordered.shape[-1]
    weights = np.diff(np.clip(4 * np.arange(n + 1), n, 3 * n)) / (2 * n)
    middle = ordered[..., n // 2]  # weighing deviations from it keeps equal values exactly equal
    return middle + np.sum((ordered - middle[..., None]) * weights, axis=-1)


STATISTICS: dict[str, Callable[..., Any]] = {"iqm": iqm, "mean": np.mean}


def interval(values: ArrayLike, statistic: str, rng: np.random.Generator) -> Interval:
    """The statistic over seeds, "iqm" or "mean", with its percentile bootstrap interval.

    `values` is [n_seeds, ...]; whole seeds are drawn with replacement, the same ones for all the further
    axes, and the statistic is taken over seeds for each further entry. Returns estimate, low and high of
    shape [...].
    """
    if statistic not in STATISTICS:
        raise ValueError(f"Unknown statistic {statistic!r}: use {' or '.join(STATISTICS)}.")
    return _over_seeds(_seeds(values), STATISTICS[statistic], rng)


def _over_seeds(values: np.ndarray, reduce: Callable[..., Any], rng: np.random.Generator) -> Interval:
    n = len(values)
    columns = np.ascontiguousarray(values.reshape(n, -1).T)
    estimate = np.asarray(reduce(columns, axis=-1), np.float64)
    low = high = np.full(estimate.shape, np.nan)
    if n > 1:
        draws = rng.integers(n, size=(RESAMPLES, n))
        width = max(1, _CELLS // draws.size)
        parts = [columns[i : i + width] for i in range(0, len(columns), width)]
        each = [interval_ends(reduce(np.take(part, draws, axis=1), axis=-1)) for part in parts]
        low, high = map(np.concatenate, zip(*each, strict=True))
    shape = values.shape[1:]
    estimate, low, high = (x.reshape(shape) if shape else float(x[0]) for x in (estimate, low, high))
    return Interval(estimate, low, high, n)


def resampled_means(values: ArrayLike, rng: np.random.Generator) -> np.ndarray:
    """The means of bootstrap resamples of [n_seeds] values, to make intervals of what they are combined to."""
    values = np.asarray(values, np.float64)
    return values[rng.integers(0, len(values), (RESAMPLES, len(values)))].mean(axis=1)


def paired_interval(a: ArrayLike, b: ArrayLike, statistic: str, rng: np.random.Generator) -> Interval:
    """The statistic of the differences a - b of runs that share their seeds, seed by seed.

    Pairing removes what a seed does to both (the same lock, the same level), so the interval is as narrow
    as the comparison allows. For the mean this is mean(a) - mean(b); for the IQM it is the IQM of the
    differences.
    """
    a, b = _seeds(a), _seeds(b)
    if a.shape != b.shape:
        raise ValueError(f"Paired values must match seed by seed, but a is {a.shape} and b is {b.shape}.")
    return interval(a - b, statistic, rng)


def probability_of_improvement(a: ArrayLike, b: ArrayLike, rng: np.random.Generator) -> Interval:
    """The chance that a run of `a` beats a run of `b`, ties counted half (the Mann-Whitney statistic).

        P = mean over i, j of 1[a_i > b_j] + 1/2 1[a_i = b_j]

    Seeds of a and of b are resampled independently. When every a beats every b the interval is [1, 1],
    however few the seeds: `n`, the smaller of the two numbers of seeds, must be read with it.
    """
    a, b = _seeds(a, one=True), _seeds(b, one=True)
    wins = (a[:, None] > b) + 0.5 * (a[:, None] == b)
    low = high = math.nan
    if min(len(a), len(b)) > 1:
        by_a = rng.multinomial(len(a), np.full(len(a), 1 / len(a)), RESAMPLES)
        by_b = rng.multinomial(len(b), np.full(len(b), 1 / len(b)), RESAMPLES)
        low, high = interval_ends(np.sum((by_a @ wins) * by_b, axis=1) / wins.size)
    return Interval(float(wins.mean()), float(low), float(high), min(len(a), len(b)))


class CensoredTimes(NamedTuple):
    """The step at which each seed reached a threshold; the last step, marked `censored`, where it did not.

    >>> times = CensoredTimes(np.array([30, 10, 50, 50]), np.array([False, False, True, True]))
    >>> times.median(np.random.default_rng(0)).estimate
    30.0
    >>> print(times.say(np.random.default_rng(0)))
    median 30 [10, not reached]; reached by 2 of 4 seeds within 50
    """

    times: np.ndarray
    censored: np.ndarray

    @property
    def reached(self) -> float:
        """The fraction of seeds that reached the threshold."""
        return float(np.mean(~self.censored))

    def median(self, rng: np.random.Generator) -> Interval:
        """The earliest step by which half of the seeds had reached it; inf, not reached, if fewer did."""

        def half(values: np.ndarray, axis: int = -1) -> np.ndarray:
            return np.take(np.sort(values, axis), (values.shape[axis] + 1) // 2 - 1, axis)

        return _over_seeds(np.where(self.censored, np.inf, self.times), half, rng)

    def say(self, rng: np.random.Generator) -> str:
        """One line: the median with its interval, and how many seeds reached the threshold at all."""
        n, middle = len(self.times), self.median(rng)
        line = f"median {middle}; reached by {n - int(self.censored.sum())} of {n} seeds"
        return line + (f" within {self.times[self.censored].max():g}" if self.censored.any() else "")


def time_to_threshold(steps: ArrayLike, curves: ArrayLike, threshold: float | int) -> CensoredTimes:
    """The first recorded step at which each seed's curve is at the threshold or above.

    `steps` is [T] and `curves` [n_seeds, T]. A seed that never gets there is censored at the last step. NaN means
    nothing was recorded at that step, so nothing was reached.
    """
    steps, curves = np.asarray(steps), np.asarray(curves, np.float64)
    if curves.ndim != 2 or steps.shape != curves.shape[1:] or not curves.size:
        given = f"{steps.shape} and {curves.shape}"
        raise ValueError(f"Expected steps [T] and curves [n_seeds, T], but their shapes are {given}.")
    if math.isnan(threshold):
        raise ValueError("The threshold is NaN, which no curve can reach: give a number.")
    hit = curves >= threshold
    reached = hit.any(axis=1)
    return CensoredTimes(np.where(reached, steps[hit.argmax(axis=1)], steps[-1]), np.logical_not(reached))


def interval_ends(drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the interval of [..., resamples], rounded outwards to drawn values, so that inf stays inf."""
    ordered, last = np.sort(drawn, axis=-1), drawn.shape[-1] - 1
    tail = (1 - LEVEL) / 2
    return ordered[..., math.floor(tail * last)], ordered[..., math.ceil((1 - tail) * last)]


def _seeds(values: ArrayLike, *, one: bool = False) -> np.ndarray:
    array = np.asarray(values, np.float64)
    if array.ndim < 1 or (one and array.ndim != 1):
        wanted = "[n_seeds]" if one else "[n_seeds, ...]"
        raise ValueError(f"Expected values of shape {wanted}, but got an array of shape {array.shape}.")
    if not array.size:
        raise ValueError(f"There are no values (shape {array.shape}): at least one seed is needed.")
    if not np.isfinite(array).all():
        bad = int(np.sum(~np.isfinite(array)))
        raise ValueError(f"{bad} of {array.size} values are NaN or infinite: drop or repair those runs.")
    return array


def number_text(value: float | np.ndarray) -> str:
    """Four significant digits; infinity means that a threshold was not reached."""
    if np.isposinf(value):
        return "not reached"
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e8 else f"{value:.4g}"
