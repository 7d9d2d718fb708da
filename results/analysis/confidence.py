"""Confidence intervals over a few seeds: of means, of bounded scores and of shares.

A score that has a chance and a ceiling is bounded, and its seeds often have two peaks, because some models learn and others do
not. The t interval covers such means too rarely, and its ends leave the scale. `bounded_interval` does neither.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
FEWEST = 3  # values for an interval; two are shown as they are
FEWEST_TO_DECIDE = 5  # seeds a side for a verdict, and of every architecture for the band of a front
PEAK = 1 / 3  # of the scale: the gap between neighbouring seeds that makes two peaks

_DRAWS = 10_000

Interval = tuple[float, float]


def mean_interval(values: Sequence[float], chance: float | None, ceiling: float | None) -> Interval | None:
    """The 95 % interval of the mean over seeds: of a bounded score where both bounds are known, else Student's, which ends at 0
    where no value is negative. None for fewer than three values. The ceiling of a loss is below its chance."""
    if len(values) < FEWEST:
        return None
    if chance is None or ceiling is None or chance == ceiling:
        found = t_interval(values)
        return (max(0.0, found[0]), found[1]) if found and min(values) >= 0 else found
    return bounded_interval(values, min(chance, ceiling), max(chance, ceiling))


def bounded_interval(values: Sequence[float], lowest: float, highest: float) -> Interval:
    """The 95 % interval of the mean of independent values between two bounds, whatever their distribution.

    The Bayesian bootstrap over seeds with one more seed at a bound: at `lowest` for the lower end, at `highest` for the upper
    (Gaffke 2005; Learned-Miller and Thomas 2020). It is never wider than the scale, and never of width zero: five seeds at
    the ceiling leave room for a sixth that fails. For scores of 0 and 1 it is the interval of Clopper and Pearson. A value
    beyond a bound moves the bound: models that have not learned the set of answers score below chance, which then gives way
    to 0 or, for negative values, to the smallest.
    """
    own = np.asarray(values, dtype=np.float64)
    if own.min() < lowest:
        lowest = min(0.0, float(own.min()))
    highest = max(highest, float(own.max()))
    weights, bound = _weights(len(own))
    tail = (1 - LEVEL) / 2
    sums, mean = weights @ own, float(own.mean())
    low = _outer_quantile(sums + bound * lowest, tail)
    high = _outer_quantile(sums + bound * highest, 1 - tail)
    return max(lowest, min(low, mean)), min(highest, max(high, mean))


def t_interval(values: Sequence[float]) -> Interval | None:
    """Student's 95 % interval of the mean of independent values, mean ± t(n - 1) s / sqrt(n), for scores without bounds. None
    for fewer than two, and where all are equal, because nothing then tells their spread."""
    if len(values) < 2 or min(values) == max(values):
        return None
    mean = float(np.mean(values))
    half = _t_quantile(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean - half, mean + half


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation over seeds, which describes them and is no interval; None for fewer than two."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def share_interval(count: int, of: int) -> Interval:
    """Wilson's 95 % interval of a share, such as that of the seeds that learned."""
    from scipy.stats import binomtest

    found = binomtest(count, of).proportion_ci(confidence_level=LEVEL, method="wilson")
    return float(found.low), float(found.high)


def gap_between_peaks(values: Sequence[float], chance: float | None, ceiling: float | None) -> float | None:
    """The middle of the gap between two peaks of the values: the largest between neighbours, which is over a third of the
    scale. Seeds above it have learned. None where there is one peak, or no known scale."""
    if len(values) < 2 or chance is None or ceiling is None:
        return None
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    gaps = np.diff(ordered)
    at = int(np.argmax(gaps))
    return float(ordered[at : at + 2].mean()) if gaps[at] > PEAK * abs(ceiling - chance) else None


def _outer_quantile(values: NDArray[np.float64], share: float) -> float:
    """What `np.quantile` gives of many values near one end, to the last digit, from those beyond that end's twentieth alone."""
    place = (len(values) - 1) * share
    below = math.floor(place)
    part = place - below
    rest = len(values) - 1 - below  # values that are not smaller than the one above
    sample = np.sort(values[:: len(values) // 500 or 1])
    if share < 0.5:
        outer = values[values <= sample[math.ceil(2 * share * len(sample))]]
        at, enough = below, below + 2
    else:
        outer = values[values >= sample[math.floor((2 * share - 1) * len(sample))]]
        at, enough = len(outer) - 1 - rest, rest + 1
    if len(outer) < enough:  # the sample says too little of these values
        outer, at = values, below
    ordered = np.sort(outer)
    low, high = float(ordered[at]), float(ordered[at + 1])
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


@functools.lru_cache(maxsize=64)
def _weights(count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """float [draws, count] and [draws]: uniform weights of `count` values and one bound that sum to 1, the same every time."""
    drawn = np.random.default_rng(0).dirichlet(np.ones(count + 1), size=_DRAWS)
    return drawn[:, :count], drawn[:, count]


@functools.lru_cache(maxsize=256)
def _t_quantile(freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + LEVEL) / 2))
