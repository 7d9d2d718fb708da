"""How far two measurements of the same things agree on their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FEW = 4  # things below which an order tells nothing


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """The correlation of ranks, equal values sharing theirs; None where one of them does not vary."""
    ranks = [_ranks(np.asarray(values, dtype=np.float64)) for values in (one, other)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[place])
