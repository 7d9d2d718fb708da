"""Tests of the difference of two means over seeds, and corrections for many tests.

Values that share a seed share their data, so that they are compared seed by seed (paired t test); others by Welch's t test. All
p values are two-sided, so that p < 0.05 says the same as a 95 % interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from recallmap.results.analysis.confidence import LEVEL, Interval

ALPHA = 1 - LEVEL


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The difference of two means, ours less theirs, and the test of it.

    interval  95 % interval of the difference; None where nothing varies
    paired    whether seeds were compared with themselves
    """

    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    difference: float
    interval: Interval | None
    paired: bool

    def p_above(self, least: float) -> float:
        """The p value of a difference above `least`, against one of at most that."""
        return self._p(least, "greater")

    def p_below(self, most: float) -> float:
        """The p value of a difference below `most`, against one of at least that."""
        return self._p(most, "less")

    def p_within(self, margin: float) -> float:
        """The p value of a difference smaller than `margin` in size: the larger of two one-sided tests (TOST)."""
        return max(self.p_above(-margin), self.p_below(margin))

    def _p(self, bound: float, alternative: Literal["greater", "less"]) -> float:
        """Twice the one-sided p value, 1 at most. Where nothing varies, that of the permutation test, whose smallest value is
        decided by the number of seeds."""
        from scipy.stats import ttest_1samp, ttest_ind

        if self.interval is None:
            right = self.difference > bound if alternative == "greater" else self.difference < bound
            return min(1.0, 2 * self._fewest_permutations()) if right else 1.0
        if self.paired:
            found = ttest_1samp(np.subtract(self.ours, self.theirs), bound, alternative=alternative)
        else:
            found = ttest_ind(np.subtract(self.ours, bound), self.theirs, equal_var=False, alternative=alternative)
        return min(1.0, 2 * float(found.pvalue))

    def _fewest_permutations(self) -> float:
        ours, theirs = len(self.ours), len(self.theirs)
        return 0.5**ours if self.paired else 1 / math.comb(ours + theirs, ours)


def compared(ours: Sequence[float], theirs: Sequence[float], *, paired: bool) -> Comparison:
    """The comparison of two samples of at least two values each; pairs are in the same order. Differences that vary by rounding
    alone count as equal."""
    from scipy.stats import ttest_1samp, ttest_ind

    difference = float(np.mean(ours) - np.mean(theirs))
    varying = [np.subtract(ours, theirs)] if paired else [np.asarray(ours), np.asarray(theirs)]
    interval = None
    if any(np.ptp(side) > 1e-12 for side in varying):
        found = ttest_1samp(varying[0], 0.0) if paired else ttest_ind(ours, theirs, equal_var=False)
        low, high = found.confidence_interval(LEVEL)
        interval = float(low), float(high)
    return Comparison(ours=tuple(ours), theirs=tuple(theirs), difference=difference, interval=interval, paired=paired)


def fisher(ours: tuple[int, int], theirs: tuple[int, int]) -> float:
    """Fisher's exact p value, two-sided, of equal shares: each side as (seeds that learned, seeds)."""
    from scipy.stats import fisher_exact

    return float(fisher_exact([[count, of - count] for count, of in (ours, theirs)]).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the order of the raw ones: below 0.05 at most one family in twenty decides wrongly."""
    adjusted = [1.0] * len(p_values)
    so_far = 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        so_far = max(so_far, min(1.0, (len(p_values) - rank) * p_values[at]))
        adjusted[at] = so_far
    return adjusted


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg's adjusted p values: of those below 0.05, one in twenty is wrong in the mean."""
    from scipy.stats import false_discovery_control

    return [float(p) for p in false_discovery_control(p_values)] if p_values else []
