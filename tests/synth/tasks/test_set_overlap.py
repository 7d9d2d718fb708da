"""The one token of two sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import SetOverlap

Draw = Callable[..., Batch]

SETTINGS = [SetOverlap(), SetOverlap(vocab=40, first=12, second=2), SetOverlap(vocab=20, first=8, second=3, passes=3)]


@pytest.mark.parametrize("task", SETTINGS)
def test_a_slow_reader_intersects_the_sets(task: SetOverlap, draw: Draw) -> None:
    batch = draw(task, count=200)
    sources = task.sources(batch)[:, -1].tolist()
    for row, targets, told in zip(batch.inputs.tolist(), batch.targets.tolist(), sources, strict=True):
        size = 2 + task.first + task.second
        assert row[:-1] == row[:size] * task.passes
        assert (row[0], row[1 + task.first], row[-1]) == (1, 2, 3)
        one, two = row[1 : 1 + task.first], row[2 + task.first : size]
        assert min(one + two) >= 4
        assert len(set(one)) == task.first
        assert len(set(two)) == task.second
        (common,) = set(one) & set(two)
        assert targets == [IGNORE] * (len(row) - 1) + [common]
        assert told == max(at for at, token in enumerate(row) if token == common)


def test_the_common_token_is_as_likely_at_every_place_of_both_sets(draw: Draw) -> None:
    batch = draw(SetOverlap(first=4, second=5), count=20_000)
    common = batch.targets[:, -1:]
    for places, size in ((batch.inputs[:, 1:5], 4), (batch.inputs[:, 6:11], 5)):
        share = (places == common).mean(axis=0)
        assert share == pytest.approx(np.full(size, 1 / size), abs=4 * np.sqrt((size - 1) / size**2 / 20_000))


@pytest.mark.parametrize("task", [SETTINGS[0], SETTINGS[2]])
def test_a_guess_in_the_smaller_set_scores_chance(task: SetOverlap, assert_expects: Any) -> None:
    start, size = (1, task.first) if task.first < task.second else (2 + task.first, task.second)

    def guess(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        said = np.zeros_like(batch.targets)
        said[:, -1] = batch.inputs[np.arange(len(batch)), start + rng.integers(size, size=len(batch))]
        return said

    assert_expects(task, guess, task.chance())


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"first": 1}, "first must be at least 2, got 1"),
        ({"passes": 0}, "passes must be at least 1, got 0"),
        ({"vocab": 35}, "vocab must be at least 36 for sets of 4 and 16 tokens"),
        ({"passes": 2**20}, "lower passes"),
    ],
)
def test_impossible_sets_are_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SetOverlap(**dials)
