"""Vectorised draws without replacement."""

from __future__ import annotations

from collections.abc import Callable
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


def distinct_as(
    draw: Callable[[NDArray[np.int64]], NDArray[np.int64]], used: NDArray[np.bool_], universe: int
) -> NDArray[np.int64]:
    """int64 [n, size]: where bool [n, size] `used`, numbers below `universe` that differ within a row; elsewhere, universe
    and the column.

    `draw` gives one number for each row that it is told, not all equally likely. What repeats is drawn anew, so the set of
    a row has the law of one-by-one rejection. Its order has not: shuffle it.
    """
    size = used.shape[1]
    chosen = np.broadcast_to(universe + np.arange(size), used.shape).copy()
    chosen[used] = draw(np.nonzero(used)[0])
    rows = np.arange(len(used))
    while rows.size:
        row, column = np.divmod(_repeated(chosen[rows], universe + size), size)
        chosen[rows[row], column] = draw(rows[row])
        rows = rows[np.unique(row)]
    return chosen


def orders(rng: np.random.Generator, sizes: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """int64 [n, width]: the first `sizes[i]` numbers of row i in random order, then the rest of `width` in theirs.

    Random number and column are sorted as one number, several times as fast as to sort columns by random numbers.
    """
    bits = (width - 1).bit_length()
    column = np.arange(width)
    random = rng.integers(2**62, size=(len(sizes), width)) >> bits << bits
    keys = np.where(column < sizes[:, None], random, 2**62) | column
    return np.sort(keys, axis=1) & (1 << bits) - 1


def dealt(rng: np.random.Generator, count: int, size: int, universe: int) -> NDArray[np.int64]:
    """int64 [count, size]: as `distinct`, with other bits, by `size` steps of a shuffle of `universe` cards, all rows at once.

    It is the faster where rows take a fair share of a small universe.
    """
    cards, rows = np.repeat(np.arange(universe)[:, None], count, axis=1), np.arange(count)
    pack = cards.ravel()
    for card, random in enumerate(rng.random((size, count))):
        drawn = (card + (random * (universe - card)).astype(np.int64)) * count + rows
        taken = pack.take(drawn)
        pack[drawn], cards[card] = cards[card], taken
    return np.ascontiguousarray(cards[:size].T)
