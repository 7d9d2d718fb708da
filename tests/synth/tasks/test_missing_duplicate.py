"""The hidden bit of a string that is told twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import MissingDuplicate

Draw = Callable[..., Batch]

SETTINGS = [MissingDuplicate(length=9), MissingDuplicate(length=40, min_length=2)]


@pytest.mark.parametrize("task", SETTINGS)
def test_a_slow_reader_finds_the_bit_in_the_other_string(task: MissingDuplicate, draw: Draw) -> None:
    batch = draw(task, count=300)
    sizes = set()
    for row, targets, told in zip(
        batch.inputs.tolist(), batch.targets.tolist(), task.sources(batch).tolist(), strict=True
    ):
        shown = [token for token in row if token != 4]
        assert row[: len(shown)] == shown
        sizes.add(len(shown))
        assert (shown[-1] == 3) == (len(shown) % 2 == 1)
        strings = [token for token in shown if token != 3]
        half = len(strings) // 2
        hidden = strings.index(2)
        twin = (hidden + half) % (2 * half)
        assert [a == b for a, b in zip(strings[:half], strings[half:], strict=True)].count(False) == 1
        last = len(shown) - 1
        assert targets == [IGNORE] * last + [strings[twin]] + [IGNORE] * (task.length - last - 1)
        assert told[last] == (twin if twin < last else -1)
    assert sizes == set(range(task.min_length or task.length, task.length + 1))


def test_every_place_is_hidden_as_often(draw: Draw) -> None:
    inputs = draw(MissingDuplicate(length=10), count=10_000).inputs
    assert (inputs == 2).mean(axis=0) == pytest.approx(np.full(10, 0.1), abs=4 * np.sqrt(0.09 / 10_000))


def test_a_guess_scores_chance(assert_expects: Any) -> None:
    def guess(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        return rng.integers(2, size=batch.targets.shape)

    assert_expects(SETTINGS[1], guess, 0.5)


@pytest.mark.parametrize(
    ("dials", "said"),
    [({"length": 1}, "length must be at least 2"), ({"min_length": 1}, "min_length must lie in 2..64")],
)
def test_strings_that_hide_nothing_are_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        MissingDuplicate(**dials)
