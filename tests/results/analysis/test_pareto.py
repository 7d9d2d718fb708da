"""Fronts and volumes agree with their definitions, spelled out slowly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from recallmap.results.analysis.pareto import front, front_band, front_shares, hypervolume, largest_pairs


def by_definition(points: list[tuple[float, ...]], maximise: list[bool]) -> list[bool]:
    signed = [[-v if up else v for v, up in zip(p, maximise, strict=True)] for p in points]

    def dominates(a: list[float], b: list[float]) -> bool:
        return all(x <= y for x, y in zip(a, b, strict=True)) and any(x < y for x, y in zip(a, b, strict=True))

    return [not any(dominates(other, own) for other in signed) for own in signed]


@pytest.mark.parametrize(
    "maximise", [list(m) for n in (1, 2, 3) for m in itertools.product([True, False], repeat=n)], ids=str
)
@pytest.mark.parametrize("seed", range(3))
def test_the_front_is_those_that_no_other_dominates(maximise: list[bool], seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 6, size=(60, len(maximise))).astype(float)  # a coarse grid: many ties
    assert front(points, maximise).tolist() == by_definition([tuple(p) for p in points.tolist()], maximise)


def test_a_front_of_more_points_than_are_compared_at_a_time() -> None:
    points = np.random.default_rng(0).normal(size=(700, 2))
    assert front(points, [True, False]).tolist() == by_definition([tuple(p) for p in points.tolist()], [True, False])


def test_equal_points_stand_together() -> None:
    assert front([(1, 1), (1, 1), (0, 2)], [True, False]).tolist() == [True, True, False]


def test_no_points_have_no_front_and_no_volume() -> None:
    assert front([], [True, False]).tolist() == []
    assert hypervolume([], (0, 1), [True, False]) == 0


def test_a_failed_trial_has_no_place_on_a_front() -> None:
    with pytest.raises(ValueError, match="leave failed trials out"):
        front([(np.nan, 1.0)], [True, False])


@pytest.mark.parametrize("goals", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_volume_is_the_number_of_grid_cells_that_are_dominated(goals: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 9, size=(8, goals))
    reference = (7,) * goals
    cells = np.array(list(itertools.product(range(7), repeat=goals)))
    counted = sum(bool((points <= cell).all(axis=1).any()) for cell in cells)
    assert hypervolume(points, reference, [False] * goals) == counted
    assert hypervolume(-points, [-r for r in reference], [True] * goals) == counted


def test_more_goals_than_are_exact_are_refused() -> None:
    with pytest.raises(ValueError, match="2 or 3 goals, got 4"):
        hypervolume([(1, 1, 1, 1)], (2, 2, 2, 2), [False] * 4)


def test_seeds_that_never_differ_leave_the_front_sure() -> None:
    shares = front_shares([[0.9, 0.9], [0.5, 0.5], [0.4, 0.4]], [100, 50, 60], np.random.default_rng(0), draws=50)
    assert shares.tolist() == [1.0, 1.0, 0.0]


def test_a_rival_within_the_noise_is_on_the_front_about_half_the_time() -> None:
    shares = front_shares([[0.4, 0.6], [0.4, 0.6]], [100, 100], np.random.default_rng(0), draws=2000)
    # Means tie with 3/8; otherwise each wins half of the time.
    assert shares == pytest.approx([3 / 8 + 5 / 16] * 2, abs=0.05)


def test_capacity_ends_at_the_first_number_of_pairs_that_is_not_held() -> None:
    assert largest_pairs({4: 1.0, 8: 0.995, 16: 0.9, 32: 0.99}) == 8
    assert largest_pairs({4: 0.5}) == 0
    assert largest_pairs({4: 0.8, 8: 0.8}, threshold=0.8) == 8


def test_the_band_rises_and_holds_the_front() -> None:
    scores, costs = [[0.5, 0.6, 0.7], [0.2, 0.2], [0.9, 0.95]], [200.0, 100.0, 300.0]
    band = front_band(scores, costs, np.random.default_rng(0))
    assert [cost for cost, _, _ in band] == [100.0, 200.0, 300.0]
    assert band[0][1:] == (pytest.approx(0.2), pytest.approx(0.2))
    assert 0.5 <= band[1][1] < 0.6 < band[1][2] <= 0.7
    assert all(a[1] <= b[1] and a[2] <= b[2] for a, b in itertools.pairwise(band))


def test_shares_are_those_of_fronts_drawn_one_by_one() -> None:
    rng = np.random.default_rng(3)
    costs = [1.0, 1.0, 2.0, 3.0, 3.0]
    scores = [[v] for v in rng.integers(0, 3, 5) / 2]
    expected = front([(s[0], c) for s, c in zip(scores, costs, strict=True)], [True, False])
    assert front_shares(scores, costs, rng, draws=3).tolist() == expected.astype(float).tolist()
