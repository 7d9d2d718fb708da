"""Vectorised draws, and looking back."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from recallmap.synth.draws import dealt, distinct, distinct_as, orders, weighted_order
from recallmap.synth.lookback import previous_same


@pytest.mark.parametrize("draw", [distinct, dealt])
@pytest.mark.parametrize(("size", "universe"), [(2, 3), (2, 8), (3, 12)], ids=["shuffled", "redrawn", "redrawn twice"])
def test_every_ordered_choice_is_equally_likely(draw: Any, size: int, universe: int) -> None:
    count = 66_000
    drawn = Counter(map(tuple, draw(np.random.default_rng(0), count, size, universe).tolist()))
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


def test_unlike_numbers_are_drawn_until_they_differ_as_one_by_one() -> None:
    """Of numbers 0, 1, 2 with chances 1/2, 1/4, 1/4 two differ: 0 is among them but for 1/4 * 1/3 + 1/4 * 1/3."""
    rng = np.random.default_rng(0)
    used = np.tile([True, False, True], (60_000, 1))
    found = distinct_as(lambda rows: np.maximum(rng.integers(4, size=rows.size) - 1, 0), used, 3)
    assert (found[:, 1] == 4).all()
    assert (found[:, 0] != found[:, 2]).all()
    assert (found == 0).any(axis=1).mean() == pytest.approx(5 / 6, abs=4 * np.sqrt(5 / 36 / 60_000))


def test_the_first_of_each_row_come_in_random_order_and_the_rest_behind() -> None:
    sizes = np.tile([3, 5], 30_000)
    found = orders(np.random.default_rng(0), sizes, 5)
    assert (np.sort(found, axis=1) == np.arange(5)).all()
    assert (found[::2, 3:] == [3, 4]).all()
    drawn = Counter(map(tuple, found[::2, :3].tolist()))
    assert len(drawn) == 6
    assert max(abs(times / 30_000 - 1 / 6) for times in drawn.values()) < 4 * np.sqrt(5 / 36 / 30_000)
