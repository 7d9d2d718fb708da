"""The number of a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import Phonebook

Draw = Callable[..., Batch]

SETTINGS = [Phonebook(), Phonebook(entries=8, names=3, digits=3)]


def lines(task: Phonebook, row: list[int]) -> list[list[int]]:
    """What stands between newlines, without the blank ones."""
    newline = task.roles().of("newline").start
    found: list[list[int]] = [[]]
    for token in row:
        if token == newline:
            found.append([])
        else:
            found[-1].append(token)
    return [line for line in found if line]


@pytest.mark.parametrize("task", SETTINGS)
def test_a_slow_reader_finds_the_number_of_the_name(task: Phonebook, draw: Draw) -> None:
    batch = draw(task, count=200)
    roles = task.roles()
    for row, targets, told in zip(
        batch.inputs.tolist(), batch.targets.tolist(), task.sources(batch).tolist(), strict=True
    ):
        *shown, asked = lines(task, row)
        book, examples = shown[: task.entries], shown[task.entries :]
        numbers = {tuple(line[:2]): line[3:] for line in book}
        assert len(numbers) == task.entries
        for line in shown:
            names = [roles.name_of(token) for token in line]
            assert names == ["first", "last", "colon"] + ["digit"] * task.digits
        assert len(examples) == 2
        assert all(line in book for line in examples)
        assert tuple(asked[:2]) not in {tuple(line[:2]) for line in examples}
        due = numbers[tuple(asked[:2])]
        assert asked[3:] == due[:-1]
        assert targets == [IGNORE] * (len(row) - task.digits) + due
        assert [row[at] for at in told[-task.digits :]] == due


def test_every_entry_is_as_likely_asked(draw: Draw) -> None:
    seen = np.bincount(draw(Phonebook(), count=10_000).aux["entry"], minlength=20) / 10_000
    assert seen == pytest.approx(np.full(20, 1 / 20), abs=4 * np.sqrt(1 / 20 / 10_000))


def test_a_guess_among_numbers_that_no_example_showed_scores_chance(assert_expects: Any) -> None:
    task = Phonebook(digits=8)

    def guess(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        said = np.zeros_like(batch.targets)
        for guessed, row in zip(said, batch.inputs.tolist(), strict=True):
            *shown, _ = lines(task, row)
            left = [line for line in shown[: task.entries] if line not in shown[task.entries :]]
            guessed[-task.digits :] = left[rng.integers(len(left))][3:]
        return said

    assert_expects(task, guess, task.chance())


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"entries": 3}, "entries must be at least 4"),
        ({"names": 4}, "4 first and last names make 16 pairs, got 20 entries: raise names"),
        ({"digits": 0}, "digits must be at least 1"),
        ({"entries": 4000, "digits": 2000}, "lower entries or digits"),
    ],
)
def test_impossible_books_are_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Phonebook(**dials)
