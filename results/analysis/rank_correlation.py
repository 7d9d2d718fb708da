"""Rank correlation: how far two measurements of the same items agree on their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recallmap.results.analysis.confidence import LEVEL, Interval

FEW = 4  # items below which an order says nothing

_DRAWS = 2000


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rank correlation; equal values share their mean rank. None where all values of one side are equal."""
    found = _correlations(np.array([one]), np.array([other]))
    return None if np.isnan(found[0]) else float(found[0])


def bootstrap_interval(one: Sequence[float], other: Sequence[float]) -> Interval | None:
    """The 95 % percentile bootstrap interval of Spearman's correlation over items; None for fewer than five, or where all
    values of one side are equal. Samples of items that are all equal on one side say nothing and are left out."""
    if len(one) <= FEW or spearman(one, other) is None:
        return None
    drawn = np.random.default_rng(0).integers(len(one), size=(_DRAWS, len(one)))
    found = _correlations(np.asarray(one, dtype=np.float64)[drawn], np.asarray(other, dtype=np.float64)[drawn])
    tail = (1 - LEVEL) / 2
    low, high = np.nanquantile(found, [tail, 1 - tail])
    return float(low), float(high)


def leaving_one_out(one: Sequence[float], other: Sequence[float]) -> Interval | None:
    """The smallest and the largest correlation of all items but one; None where fewer than four are left, or no order is."""
    if len(one) <= FEW:
        return None
    kept = [[at for at in range(len(one)) if at != left] for left in range(len(one))]
    found = _correlations(np.asarray(one, dtype=np.float64)[kept], np.asarray(other, dtype=np.float64)[kept])
    return None if np.isnan(found).any() else (float(found.min()), float(found.max()))


def _correlations(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """float [N]: the rank correlation of every row of two float [N, items]; NaN where a row has one value throughout."""
    from scipy.stats import rankdata

    first, second = (
        rank - rank.mean(axis=1, keepdims=True) for rank in (rankdata(one, axis=1), rankdata(other, axis=1))
    )
    scale = np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
    return np.where(scale > 0, (first * second).sum(axis=1) / np.where(scale > 0, scale, 1.0), np.nan)
