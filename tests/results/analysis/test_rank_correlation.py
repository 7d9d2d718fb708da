"""The correlation of two orders, and how far a few items determine it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from recallmap.results.analysis.rank_correlation import bootstrap_interval, leaving_one_out, spearman


@pytest.mark.parametrize(
    ("one", "other", "correlation"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 31], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8),
        ([1, 1, 2, 2], [1, 2, 3, 4], 0.894427191),
        ([1, 1, 1, 1], [1, 2, 3, 4], None),
    ],
)
def test_the_correlation_of_ranks(one: list[float], other: list[float], correlation: float | None) -> None:
    assert spearman(one, other) == (None if correlation is None else pytest.approx(correlation))


def test_it_is_that_of_scipy() -> None:
    one, other = np.random.default_rng(0).integers(0, 6, (2, 12)).astype(float)
    assert spearman(one.tolist(), other.tolist()) == pytest.approx(stats.spearmanr(one, other).statistic)


def test_ten_items_leave_much_open() -> None:
    one, other = list(range(10)), [1, 0, 3, 2, 5, 4, 9, 8, 7, 6]
    low, high = bootstrap_interval(one, other) or (0.0, 0.0)
    assert low < 0.75 < (spearman(one, other) or 0.0) < high <= 1.0
    assert bootstrap_interval(one[:4], other[:4]) is None
    assert bootstrap_interval([1.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0]) is None


def test_one_item_left_out_may_decide() -> None:
    one, other = [1.0, 2.0, 3.0, 4.0, 9.0], [4.0, 3.0, 2.0, 1.0, 9.0]
    assert leaving_one_out(one, other) == (pytest.approx(-1.0), pytest.approx(0.2))
    assert leaving_one_out(one[:4], other[:4]) is None
    assert leaving_one_out([1.0, 1.0, 1.0, 1.0, 2.0], one) is None  # without the last there is no order
