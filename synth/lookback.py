"""Where in a sequence a symbol occurred before."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def previous_same(symbols: NDArray[Any]) -> NDArray[np.int64]:
    """int64 [n, T]: the last earlier position that holds the symbol of each position of integer [n, T], or -1."""
    order = np.argsort(symbols, axis=1, kind="stable")
    ranked = np.take_along_axis(symbols, order, axis=1)
    before = np.where(ranked[:, 1:] == ranked[:, :-1], order[:, :-1], -1)
    previous = np.full(symbols.shape, -1, dtype=np.int64)
    np.put_along_axis(previous, order[:, 1:], before, axis=1)
    return previous
