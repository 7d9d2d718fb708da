"""Tests of the difference of two means over seeds, and corrections for many tests.

Values that share a seed share their data, or at least the weights that they begin with, so that they are compared seed by seed
(paired t test); others by Welch's t test. All p values are two-sided, so that p < 0.05 says the same as a 95 % interval.

Seeds that chose each other's hyper-parameters are dependent: the better a candidate does by luck, the more of them take it.
Their mean then varies more than its values show. `spread` states by how much at most; intervals are wider by its root.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.results.analysis.confidence import LEVEL, Interval

ALPHA = 1 - LEVEL


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The difference of two means, ours less theirs, and the test of it.

    interval   95 % interval of the difference; None where nothing varies
    paired     whether seeds were compared with themselves
    dependent  of either side, whether its seeds chose each other's hyper-parameters
    """

    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    difference: float
    interval: Interval | None
    paired: bool
    dependent: tuple[bool, bool] = (False, False)

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
        first, *second = _sides(self.ours, self.theirs, paired=self.paired, dependent=self.dependent)
        if second:
            found = ttest_ind(first - bound, *second, equal_var=False, alternative=alternative)
        else:
            found = ttest_1samp(first, bound, alternative=alternative)
        return min(1.0, 2 * float(found.pvalue))

    def _fewest_permutations(self) -> float:
        ours, theirs = (
            independent(len(side), dependent or (self.paired and any(self.dependent)))
            for side, dependent in zip((self.ours, self.theirs), self.dependent, strict=True)
        )
        return 0.5**ours if self.paired else 1 / math.comb(ours + theirs, ours)


def spread(seeds: int) -> float:
    """How much more the mean over seeds may vary than that of independent ones, as a factor of its variance, where the others
    chose the hyper-parameters of each: 1 + sqrt(seeds).

    It bounds what simulations give at the worst, of 2 to 12 candidates that tie: 1.7 to 2.5 times of 5 seeds, 1.8 to 3.1 of 10
    and 2.0 to 3.9 of 20. Where one candidate is surely best, seeds are independent, and the interval is wider than it need be.
    """
    return 1 + math.sqrt(seeds)


def independent(seeds: int, dependent: bool) -> int:
    """The number of independent seeds that tell as much as these, rounded down; at least 1."""
    return max(1, int(seeds / spread(seeds))) if dependent else seeds


def _sides(
    ours: Sequence[float], theirs: Sequence[float], *, paired: bool, dependent: tuple[bool, bool]
) -> list[NDArray[np.float64]]:
    """The samples to be tested: the differences of pairs, or both sides. Dependent ones are spread out around their mean."""
    whole = [np.subtract(ours, theirs)] if paired else [np.asarray(ours, float), np.asarray(theirs, float)]
    wide = [any(dependent)] if paired else dependent
    return [
        side.mean() + (side - side.mean()) * math.sqrt(spread(len(side)) if widen else 1.0)
        for side, widen in zip(whole, wide, strict=True)
    ]


def compared(
    ours: Sequence[float], theirs: Sequence[float], *, paired: bool, dependent: tuple[bool, bool] = (False, False)
) -> Comparison:
    """The comparison of two samples of at least two values each; pairs are in the same order. Differences that vary by rounding
    alone count as equal."""
    from scipy.stats import ttest_1samp, ttest_ind

    difference = float(np.mean(ours) - np.mean(theirs))
    varying = _sides(ours, theirs, paired=paired, dependent=dependent)
    interval = None
    if any(np.ptp(side) > 1e-12 for side in varying):
        found = ttest_1samp(varying[0], 0.0) if paired else ttest_ind(*varying, equal_var=False)
        low, high = found.confidence_interval(LEVEL)
        interval = float(low), float(high)
    return Comparison(
        ours=tuple(ours),
        theirs=tuple(theirs),
        difference=difference,
        interval=interval,
        paired=paired,
        dependent=dependent,
    )


def fisher(ours: tuple[int, int], theirs: tuple[int, int]) -> float:
    """Fisher's exact p value, two-sided, of equal shares: each side as (seeds that learned, seeds)."""
    from scipy.stats import fisher_exact

    return float(fisher_exact([[count, of - count] for count, of in (ours, theirs)]).pvalue)


def fewer_than_half(seeds: int, of: int) -> float:
    """The p value of the binomial test, one-sided, that fewer than half of all seeds would do as `seeds` of these did."""
    from scipy.stats import binomtest

    return float(binomtest(min(seeds, of), of, alternative="less").pvalue)


def told(p: float | None) -> str:
    """p in three decimals, and in as many more as tell it from the level that decides."""
    if p is None:
        return ""
    if p < 0.001:
        return "<0.001"
    decides = round(ALPHA, 9)
    return next(text for digits in range(3, 18) if (float(text := f"{p:.{digits}f}") < decides) == (p < decides))


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
