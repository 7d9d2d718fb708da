"""Confidence intervals of means over a few seeds.

Half of the t interval is t(n - 1) s / sqrt(n), with s the sample standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# 97.5 % quantile of Student's t for 1, 2, ... degrees of freedom; beyond the table an expansion in 1 / n is exact to 1e-4.
_T = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)

_Z = 1.959964


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % t interval of the mean of independent values; None for fewer than two."""
    if len(values) < 2:
        return None
    mean = float(np.mean(values))
    half = _quantile(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean - half, mean + half


def half_width(interval: tuple[float, float] | None) -> float | None:
    """Half the width of an interval, the number behind ±; None for no interval."""
    return None if interval is None else (interval[1] - interval[0]) / 2


def difference_interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % t interval of mean(a) - mean(b), for independent values with a common variance. None where a side has fewer
    than two values, because nothing then supports the common variance."""
    if min(len(a), len(b)) < 2:
        return None
    freedom = len(a) + len(b) - 2
    squares = sum(float(np.square(np.asarray(side) - np.mean(side)).sum()) for side in (a, b))
    half = _quantile(freedom) * math.sqrt(squares / freedom * (1 / len(a) + 1 / len(b)))
    middle = float(np.mean(a) - np.mean(b))
    return middle - half, middle + half


def _quantile(freedom: int) -> float:
    if freedom <= len(_T):
        return _T[freedom - 1]
    first = (_Z**3 + _Z) / (4 * freedom)
    second = (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * freedom**2)
    return _Z + first + second
