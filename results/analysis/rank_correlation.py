"""Rank correlation: how far two measurements of the same items agree on their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FEW = 4  # items below which an order says nothing


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rank correlation; equal values share their mean rank. None where all values of one side are equal."""
    ranks = [_ranks(np.asarray(values, dtype=np.float64)) for values in (one, other)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[place])
