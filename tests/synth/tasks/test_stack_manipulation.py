"""What lies on a stack after a number of actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import StackManipulation

Draw = Callable[..., Batch]

SETTINGS = [StackManipulation(length=10), StackManipulation(length=40, min_length=2)]


@pytest.mark.parametrize("task", SETTINGS)
def test_a_slow_reader_finds_what_lies_on_the_stack(task: StackManipulation, draw: Draw) -> None:
    batch = draw(task, count=300)
    emptied = 0
    for row, targets, pops in zip(
        batch.inputs.tolist(), batch.targets.tolist(), batch.aux["pops"].tolist(), strict=True
    ):
        size = row.index(6)
        blanks = [at for at, token in enumerate(row) if token == 6]
        assert blanks == list(range(size, 2 * size + 1))
        assert set(row[2 * size + 1 :]) <= {7}
        stack: list[int] = []
        for token in row[:size]:
            if token == 3:
                emptied += not stack
                stack = stack[:-1]
            else:
                stack.append(token if token < 2 else token - 4)
        due = [*reversed(stack), 2]
        rest = task.shape[0] - size - len(due)
        assert targets == [IGNORE] * size + due + [IGNORE] * rest
        assert pops == row[:size].count(3)
    assert emptied > 0


def test_bits_are_told_before_actions_and_every_number_of_them_is_as_likely(draw: Draw) -> None:
    tokens = draw(StackManipulation(length=8), count=10_000).inputs[:, :8]
    bits = (tokens < 2).sum(axis=1)
    assert (np.sort(tokens >= 2, axis=1) == (tokens >= 2)).all()
    assert np.bincount(bits)[1:] / 10_000 == pytest.approx(np.full(7, 1 / 7), abs=4 * np.sqrt(6 / 49 / 10_000))
    actions = np.bincount(tokens[tokens >= 2], minlength=6)[3:]
    assert actions / actions.sum() == pytest.approx(np.full(3, 1 / 3), abs=0.01)


@pytest.mark.parametrize("task", SETTINGS)
def test_a_guess_of_every_bit_scores_chance(task: StackManipulation, assert_expects: Any) -> None:
    def guess(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        return rng.integers(2, size=batch.targets.shape)

    assert_expects(task, guess, task.chance())


def test_a_long_stack_ends_two_thirds_as_high_as_there_were_tokens(draw: Draw) -> None:
    batch = draw(StackManipulation(length=200), count=500)
    height = ((batch.targets == 0) | (batch.targets == 1)).sum(axis=1)
    assert height.mean() / 200 == pytest.approx(0.68, abs=0.02)


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"length": 1}, "length must be at least 2"),
        ({"min_length": 1}, "min_length must lie in 2..40"),
        ({"length": 2**22}, "at most 4,194,304: lower it"),
    ],
)
def test_impossible_stacks_are_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        StackManipulation(**dials)
