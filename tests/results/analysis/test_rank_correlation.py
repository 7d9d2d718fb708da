"""The correlation of two orders."""

from __future__ import annotations

import pytest

from recallmap.results.analysis.rank_correlation import spearman


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
