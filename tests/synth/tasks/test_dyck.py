"""Closing brackets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import Dyck

Draw = Callable[..., Batch]

SETTINGS = [Dyck(), Dyck(types=2, depth=3, length=20, min_length=3), Dyck(types=32, depth=3, length=168, min_length=85)]


@pytest.mark.parametrize("task", SETTINGS)
def test_a_slow_reader_closes_every_bracket(task: Dyck, draw: Draw) -> None:
    batch = draw(task, count=100)
    first, closing = task.roles().of("open").start, task.roles().of("close").start
    deepest = 0
    for row, targets, told in zip(
        batch.inputs.tolist(), batch.targets.tolist(), batch.aux["opened"].tolist(), strict=True
    ):
        size = row.index(1) + 1
        assert task.min_length <= size
        assert set(row[size:]) <= {0}
        due, opened = [IGNORE] * task.length, [-1] * task.length
        stack: list[int] = []
        for at, token in enumerate(row[: size - 1]):
            if token < closing:
                stack.append(at)
                deepest = max(deepest, len(stack))
                continue
            opened[at - 1] = stack.pop()
            assert token == row[opened[at - 1]] - first + closing
            due[at - 1] = token
        assert not stack
        assert targets == due
        assert told == opened
    assert deepest == task.depth


def test_a_word_ends_where_all_are_closed_with_probability_one_half(draw: Draw) -> None:
    """Of depth 2 a pair ends at once with probability 1/4: half of the second tokens close, and half of those words end."""
    words = draw(Dyck(depth=2, length=60, min_length=3), count=8000).inputs
    assert (words[:, 2] == 1).mean() == pytest.approx(1 / 4, abs=4 * np.sqrt(3 / 16 / 8000))


@pytest.mark.parametrize("depth", [3, 5])
def test_of_long_words_the_last_opened_is_right_as_often_as_its_formula_says(depth: int, draw: Draw) -> None:
    task = Dyck(types=128, depth=depth, length=1400, min_length=1000)
    batch = draw(task, count=100)
    assert task.score(batch, task.last_opened(batch))["accuracy"] == pytest.approx((depth + 1) / (2 * depth), abs=0.02)


@pytest.mark.parametrize("task", [SETTINGS[1]])
def test_the_last_opened_and_a_guess_score_their_lines(task: Dyck, assert_expects: Any) -> None:
    def last_opened(_: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        said = np.zeros_like(batch.targets)
        for guess, row in zip(said, batch.inputs.tolist(), strict=True):
            last = 0
            for at, token in enumerate(row):
                last = token if 2 <= token < 2 + task.types else last
                guess[at] = last + task.types
        return said

    def guess(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        return task.roles().of("close").start + rng.integers(task.types, size=batch.targets.shape)

    assert_expects(task, last_opened, task.references()["last_opened"])
    assert_expects(task, guess, task.chance())


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"types": 1}, "types must be at least 2"),
        ({"depth": 1}, "depth must be at least 2"),
        ({"min_length": 2}, "min_length must lie in 3..180"),
        ({"length": 100, "min_length": 98}, "hardly any word of depth 5 ends: lower min_length"),
    ],
)
def test_impossible_words_are_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Dyck(**dials)
