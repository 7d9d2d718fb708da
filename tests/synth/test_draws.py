"""Vectorised draws, and looking back."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest

from recallmap.synth.draws import distinct, weighted_order
from recallmap.synth.lookback import previous_same


@pytest.mark.parametrize(("size", "universe"), [(2, 3), (2, 8), (3, 12)], ids=["shuffled", "redrawn", "redrawn twice"])
def test_every_ordered_choice_is_equally_likely(size: int, universe: int) -> None:
    count = 66_000
    drawn = Counter(map(tuple, distinct(np.random.default_rng(0), count, size, universe).tolist()))
    choices = list(permutations(range(universe), size))
    assert set(drawn) == set(choices)
    expected = count / len(choices)
    chi_square = sum((drawn[choice] - expected) ** 2 / expected for choice in choices)
    freedom = len(choices) - 1
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(("size", "universe"), [(256, 4095), (64, 100), (7, 7), (1500, 2_000_000)])
def test_no_number_comes_twice(size: int, universe: int) -> None:
    drawn = distinct(np.random.default_rng(0), 200, size, universe)
    assert (np.diff(np.sort(drawn, axis=1), axis=1) > 0).all()
    assert drawn.min() >= 0
    assert drawn.max() < universe


def test_more_than_there_are_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="cannot draw 5 distinct numbers below 4"):
        distinct(np.random.default_rng(0), 1, 5, 4)


def test_weighted_draws_go_by_what_is_left() -> None:
    weights = np.array([4.0, 2.0, 1.0, 1.0])
    drawn = Counter(map(tuple, weighted_order(np.random.default_rng(0), weights, 100_000, 2).tolist()))
    for first, second in permutations(range(4), 2):
        expected = weights[first] / 8 * weights[second] / (8 - weights[first])
        assert drawn[first, second] / 100_000 == pytest.approx(expected, abs=4 * np.sqrt(expected / 100_000))


def test_previous_same_finds_the_nearest_earlier_one() -> None:
    symbols = np.array([[3, 1, 3, 3, 1, 2], [5, 4, 3, 2, 1, 0]])
    assert previous_same(symbols).tolist() == [[-1, -1, 0, 2, 1, -1], [-1] * 6]
