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
        row, column = np.divmod(_repeated(chosen[rows], universe), size)
        chosen[rows[row], column] = rng.integers(universe, size=row.size)
        rows = rows[np.unique(row)]
    return chosen


def _repeated(chosen: NDArray[np.int64], universe: int) -> NDArray[np.int64]:
    """Where among `chosen`, flat and in order, a number below `universe` stands that stands further left in its row too.

    Number and column are sorted as one number, the narrower the faster: several times as fast as to sort the columns.
    """
    size = chosen.shape[1]
    column = (size - 1).bit_length()  # bits
    narrow = np.int32 if universe << column <= 2**31 else np.int64
    ranked = np.sort(chosen.astype(narrow) << column | np.arange(size, dtype=narrow), axis=1)
    row, rank = np.divmod(np.flatnonzero((ranked[:, 1:] ^ ranked[:, :-1]) >> column == 0), max(1, size - 1))
    return np.sort(row * size + (ranked[row, rank + 1] & (1 << column) - 1))


def weighted_order(rng: np.random.Generator, weights: NDArray[Any], count: int, size: int) -> NDArray[np.int64]:
    """int64 [count, size]: the first `size` of successive draws without replacement, in proportion to `weights`.

    Successive draws are the order in which exponential clocks of those rates ring.
    """
    clocks = rng.exponential(size=(count, weights.size)) / weights
    return np.argsort(clocks, axis=1)[:, :size]
