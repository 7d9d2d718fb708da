"""Vectorised draws without replacement."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def distinct(rng: np.random.Generator, count: int, size: int, universe: int) -> NDArray[np.int64]:
    """int64 [count, size]: every row an ordered choice of `size` distinct numbers below `universe`, all equally likely.

    Sparse rows draw with replacement and redraw what repeats: the rule treats all numbers alike, so by symmetry every
    ordered choice is equally likely. Rows that take much of the universe shuffle it.
    """
    if size > universe:
        raise ValueError(f"cannot draw {size} distinct numbers below {universe}")
    if 4 * size > universe:
        return np.argsort(rng.random((count, universe)), axis=1)[:, :size]
    chosen = rng.integers(universe, size=(count, size))
    rows = np.arange(count)
    while rows.size:
        repeated = _repeated(chosen[rows])
        rows = rows[repeated.any(axis=1)]
        repeated = repeated[repeated.any(axis=1)]
        row, column = np.nonzero(repeated)
        chosen[rows[row], column] = rng.integers(universe, size=row.size)
    return chosen


def _repeated(chosen: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where a number stands that stands further left too."""
    order = np.argsort(chosen, axis=1, kind="stable")
    ranked = np.take_along_axis(chosen, order, axis=1)
    repeated = np.zeros(chosen.shape, dtype=bool)
    np.put_along_axis(repeated, order[:, 1:], ranked[:, 1:] == ranked[:, :-1], axis=1)
    return repeated


def weighted_order(rng: np.random.Generator, weights: NDArray[Any], count: int, size: int) -> NDArray[np.int64]:
    """int64 [count, size]: the first `size` of successive draws without replacement, in proportion to `weights`.

    Successive draws are the order in which exponential clocks of those rates ring.
    """
    clocks = rng.exponential(size=(count, weights.size)) / weights
    return np.argsort(clocks, axis=1)[:, :size]
