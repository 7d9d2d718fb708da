"""Differences of means are tested as textbooks do, and many tests are corrected for being many."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from recallmap.results.analysis.comparison import benjamini_hochberg, compared, fisher, holm, spread, told

A, B = [0.9, 0.95, 0.91, 0.99, 0.93], [0.5, 0.7, 0.61, 0.4, 0.9]


def test_seeds_of_two_sides_are_compared_by_welch() -> None:
    found = compared(A, B, paired=False)
    expected = stats.ttest_ind(A, B, equal_var=False)
    assert found.p_above(0.0) == pytest.approx(expected.pvalue)
    assert found.interval == pytest.approx(expected.confidence_interval(0.95))
    assert found.p_below(0.0) == 1.0


def test_seeds_in_common_are_compared_with_themselves() -> None:
    found = compared(A, B, paired=True)
    expected = stats.ttest_rel(A, B)
    assert found.p_above(0.0) == pytest.approx(expected.pvalue)
    assert found.interval == pytest.approx(expected.confidence_interval(0.95))


@pytest.mark.parametrize("paired", [True, False])
def test_a_bound_is_rejected_where_the_interval_leaves_it_out(paired: bool) -> None:
    found = compared(A, B, paired=paired)
    low, high = found.interval or (0.0, 0.0)
    assert found.p_above(low) == pytest.approx(0.05)
    assert found.p_below(high) == pytest.approx(0.05)
    assert found.p_within(max(-low, high)) == pytest.approx(0.05)


def test_sides_that_do_not_vary_have_the_smallest_p_of_a_permutation_test() -> None:
    apart = compared([1.0] * 5, [0.5] * 5, paired=False)
    assert apart.interval is None
    assert apart.p_above(0.0) == pytest.approx(2 / 252)
    assert (apart.p_above(0.5), apart.p_below(0.0)) == (1.0, 1.0)
    assert compared([1.0] * 5, [0.5] * 5, paired=True).p_above(0.0) == pytest.approx(2 / 32)
    assert compared([0.1 + 0.2] * 5, [0.3] * 5, paired=True).interval is None  # rounding is no variance


def test_shares_of_seeds_that_learned_are_compared_by_fisher() -> None:
    assert fisher((5, 5), (0, 5)) == pytest.approx(2 / 252)
    assert fisher((5, 5), (2, 5)) == pytest.approx(0.1667, abs=1e-4)


def test_p_values_are_adjusted_as_holm_and_benjamini_and_hochberg_do() -> None:
    raw = [0.01, 0.04, 0.03, 0.005]  # adjusted by R: p.adjust
    assert holm(raw) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert benjamini_hochberg(raw) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert (holm([]), benjamini_hochberg([])) == ([], [])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])


def test_one_family_in_twenty_of_ties_has_a_small_p_after_holm() -> None:
    rng = np.random.default_rng(0)
    families = rng.random((2000, 6))
    assert np.mean([min(holm(family)) < 0.05 for family in families.tolist()]) == pytest.approx(0.05, abs=0.015)


# Seeds whose hyper-parameters the others chose. ------------------------------------------------------


def held_out(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """float [draws, seeds]: of float [draws, candidates, seeds], every seed's score under the candidate with the best mean of
    the others."""
    others = scores.sum(2, keepdims=True) - scores
    return np.take_along_axis(scores, others.argmax(1, keepdims=True), 1)[:, 0]


def one_peak(rng: np.random.Generator, means: list[float], seeds: int) -> NDArray[np.float64]:
    return np.array(means)[:, None] + 0.05 * rng.standard_normal((400, len(means), seeds))


def two_peaks(rng: np.random.Generator, shares: list[float], seeds: int) -> NDArray[np.float64]:
    """Each candidate's seeds learn in its share, and are then near 0.97, else near 0.15."""
    learned = rng.random((400, len(shares), seeds)) < np.array(shares)[:, None]
    return np.where(learned, 0.97, 0.15) + rng.uniform(-0.02, 0.02, learned.shape)


CANDIDATES = [[0.6, 0.6, 0.6], [0.6, 0.63], [0.3, 0.8], [0.5] * 12]


@pytest.mark.parametrize("seeds", [5, 10])
@pytest.mark.parametrize("scores", [one_peak, two_peaks])
@pytest.mark.parametrize("means", CANDIDATES, ids=str)
def test_seeds_that_chose_for_each_other_decide_a_tie_in_five_percent_at_most(
    seeds: int, scores: Callable[..., NDArray[np.float64]], means: list[float]
) -> None:
    """Both sides are the same, so that 0 is the truth: it lies within at least 95 of 100 intervals, measured over 400 (97.8
    to 100). As independent seeds, 10 with 12 candidates decide 25 of 100 ties."""
    rng = np.random.default_rng(3)
    pairs = zip(held_out(scores(rng, means, seeds)), held_out(scores(rng, means, seeds)), strict=True)
    found = [compared(a.tolist(), b.tolist(), paired=True, dependent=(True, True)).interval for a, b in pairs]
    assert np.mean([interval is None or interval[0] <= 0 <= interval[1] for interval in found]) >= 0.95


@pytest.mark.parametrize("means", CANDIDATES, ids=str)
def test_nineteen_of_twenty_intervals_of_seeds_that_chose_for_each_other_hold_the_difference(
    means: list[float],
) -> None:
    """Against independent seeds of a mean of 0.5, by Welch's test: 97.3 to 99.3 of 100."""
    rng = np.random.default_rng(4)
    truth = float(np.mean([held_out(one_peak(rng, means, 5)).mean() for _ in range(20)])) - 0.5
    ours, theirs = held_out(one_peak(rng, means, 5)), 0.5 + 0.05 * rng.standard_normal((400, 5))
    found = [
        compared(a.tolist(), b.tolist(), paired=False, dependent=(True, False)).interval or (0.0, 0.0)
        for a, b in zip(ours, theirs, strict=True)
    ]
    assert np.mean([low <= truth <= high for low, high in found]) >= 0.95


def test_dependent_seeds_have_a_wider_interval_and_a_p_value_that_agrees_with_it() -> None:
    alone, together = (compared(A, B, paired=True, dependent=(flag, False)) for flag in (False, True))
    assert alone.interval
    assert together.interval
    wider = np.ptp(together.interval) / np.ptp(alone.interval)
    assert wider == pytest.approx(spread(5) ** 0.5)
    assert together.p_above(together.interval[0]) == pytest.approx(0.05)


def test_dependent_seeds_that_do_not_vary_count_as_fewer() -> None:
    assert compared([1.0] * 10, [0.5] * 10, paired=True, dependent=(True, True)).p_above(0.0) == 0.5  # as two of them
    assert compared([1.0] * 10, [0.5] * 10, paired=True).p_above(0.0) == pytest.approx(2 / 1024)


@pytest.mark.parametrize(
    ("p", "said"),
    [
        (None, ""),
        (0.0004, "<0.001"),
        (0.0361, "0.036"),
        (0.04962, "0.0496"),
        (0.0499996, "0.0499996"),
        (0.0503, "0.050"),
        (1.0, "1.000"),
    ],
)
def test_a_p_is_told_so_that_one_sees_what_it_decides(p: float | None, said: str) -> None:
    assert told(p) == said
