"""Differences of means are tested as textbooks do, and many tests are corrected for being many."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from recallmap.results.analysis.comparison import benjamini_hochberg, compared, fisher, holm

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
