"""What a study's front dominates as trials end, and which dial its scores depend on."""

from __future__ import annotations

import pytest

from recallmap.results.analysis.importance import hypervolumes, importance


def test_the_ceiling_at_the_smallest_state_dominates_everything() -> None:
    assert hypervolumes([1.0, 0.9], [100, 400], chance=0.5, ceiling=1.0) == [1.0, 1.0]


def test_what_is_dominated_adds_up_in_rectangles() -> None:
    # States 1, 2, 4 on a logarithm from 1 to 8: rooms 3/3, 2/3, 1/3.
    shares = hypervolumes([0.5, 0.25, 1.0], [2, 1, 4], chance=0.0, ceiling=1.0)
    assert shares == pytest.approx([0.5 * 2 / 3, 0.25 * 3 / 3 + 0.25 * 2 / 3, 0.25 + 0.25 * 2 / 3 + 0.5 * 1 / 3])


def test_what_guesses_dominates_nothing() -> None:
    assert hypervolumes([0.1, 0.2], [1, 2], chance=0.2, ceiling=1.0) == [0.0, 0.0]


def test_the_dial_that_makes_the_difference_is_first() -> None:
    leaves = [{"lr": lr, "seed": seed, "width": 64} for lr in (1e-3, 1e-2) for seed in (0, 1)]
    found = dict(importance([0.1, 0.1, 0.9, 0.9], ["mesa"] * 4, leaves))
    assert found == {"lr": pytest.approx(1.0), "seed": pytest.approx(0.0)}


def test_dials_count_within_an_architecture_and_the_rest_is_the_architecture() -> None:
    leaves = [{"window": 1}, {"window": 4}, {"key_dim": 8}, {"key_dim": 8}]
    found = dict(importance([0.0, 0.2, 0.9, 0.9], ["atlas", "atlas", "mesa", "mesa"], leaves))
    assert list(found) == ["architecture", "window"]
    assert found["architecture"] + found["window"] == pytest.approx(1.0)


def test_a_dial_with_a_value_of_its_own_for_every_trial_says_nothing() -> None:
    assert importance([0.1, 0.5, 0.9], ["mesa"] * 3, [{"seed": n} for n in range(3)]) == []
    assert importance([0.5] * 4, ["mesa"] * 4, [{"lr": n % 2} for n in range(4)]) == []
