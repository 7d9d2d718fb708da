"""Intervals over a few seeds hold what they promise, on scores with two peaks too."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from recallmap.results.analysis.confidence import (
    bounded_interval,
    deviation,
    gap_between_peaks,
    mean_interval,
    share_interval,
    t_interval,
)


def two_peaks(rng: np.random.Generator, share: float, seeds: int) -> NDArray[np.float64]:
    """Scores of seeds, `share` of which learn: near 0.97, the others near 0.15; chance is 0.125."""
    learned = rng.random(seeds) < share
    return np.where(learned, 0.97 + rng.uniform(-0.02, 0.02, seeds), 0.15 + rng.uniform(-0.02, 0.02, seeds))


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9])
def test_nineteen_of_twenty_intervals_of_five_seeds_with_two_peaks_hold_the_mean(share: float) -> None:
    """A t interval holds it in 83, 93, 83 and 41 of 100."""
    rng = np.random.default_rng(1)
    mean = 0.97 * share + 0.15 * (1 - share)
    intervals = [bounded_interval(two_peaks(rng, share, 5).tolist(), 0.125, 1.0) for _ in range(300)]
    assert np.mean([low <= mean <= high for low, high in intervals]) >= 0.95


@pytest.mark.parametrize(("ones", "zeros"), [(5, 0), (4, 1), (2, 3), (0, 3)])
def test_of_scores_of_0_and_1_the_interval_is_that_of_clopper_and_pearson(ones: int, zeros: int) -> None:
    exact = stats.binomtest(ones, ones + zeros).proportion_ci(method="exact")
    found = bounded_interval([1.0] * ones + [0.0] * zeros, 0.0, 1.0)
    assert found == pytest.approx((exact.low, exact.high), abs=0.015)


@pytest.mark.parametrize("values", [[1.0] * 5, [0.125] * 5, [0.5] * 3, [1.0, 0.125, 1.0], [0.125, 1.0] * 4])
def test_an_interval_is_neither_wider_than_the_scale_nor_of_width_zero(values: list[float]) -> None:
    low, high = mean_interval(values, 0.125, 1.0) or (0.0, 0.0)
    assert 0.125 <= low < high <= 1.0
    assert low <= np.mean(values) <= high


def test_a_score_beyond_its_bound_moves_the_bound() -> None:
    below = bounded_interval([0.01, 0.02, 0.01], 0.125, 1.0)
    assert below == bounded_interval([0.01, 0.02, 0.01], 0.0, 1.0)
    assert bounded_interval([-1.0, 0.2, 0.5], 0.125, 1.0)[0] >= -1.0


def test_the_ceiling_of_a_loss_is_below_its_chance() -> None:
    falling = mean_interval([0.1, 0.2, 0.1], 0.875, 0.0)
    rising = mean_interval([0.9, 0.8, 0.9], 0.125, 1.0)
    assert falling == pytest.approx([1 - end for end in reversed(rising or ())])


def test_two_seeds_have_no_interval() -> None:
    assert mean_interval([0.5, 0.6], 0.0, 1.0) is None
    assert mean_interval([0.5, 0.6], None, None) is None


def test_a_score_without_bounds_has_the_t_interval() -> None:
    values = [3.0, 3.1, 3.4]
    assert mean_interval(values, None, None) == t_interval(values)
    expected = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    assert t_interval(values) == pytest.approx(expected)


def test_a_loss_has_no_negative_end() -> None:
    assert (mean_interval([0.0, 0.001, 0.009], None, None) or (1.0, 1.0))[0] == 0.0
    assert (mean_interval([-0.1, 0.1, 0.2], None, None) or (1.0, 1.0))[0] < -0.1


def test_a_t_interval_needs_values_that_differ() -> None:
    assert t_interval([0.5]) is None
    assert t_interval([0.5, 0.5, 0.5]) is None


def test_the_share_of_five_seeds_that_all_learned_is_at_least_57_percent() -> None:
    assert share_interval(5, 5) == pytest.approx((0.5655, 1.0), abs=1e-4)
    assert share_interval(0, 3)[0] == 0.0


@pytest.mark.parametrize(
    ("values", "gap"),
    [
        ([0.1, 0.12, 0.9], pytest.approx(0.51)),
        ([0.5, 0.6, 0.7, 0.8], None),  # one wide peak
        ([0.9], None),
        ([0.2, 0.45], None),  # not a third of the scale apart
    ],
)
def test_two_peaks_are_a_third_of_the_scale_apart(values: list[float], gap: float | None) -> None:
    assert gap_between_peaks(values, 0.1, 1.0) == gap
    assert gap_between_peaks(values, None, None) is None


def test_a_deviation_needs_two_seeds() -> None:
    assert deviation([0.5]) is None
    assert deviation([0.4, 0.6]) == pytest.approx(0.1 * 2**0.5)
