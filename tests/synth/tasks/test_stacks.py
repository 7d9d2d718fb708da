"""Pushes and pops on many stacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import Stacks

Draw = Callable[..., Batch]

FEW = Stacks(length=50, stacks=3, elements=5)
SETTINGS = [Stacks(), FEW, Stacks(length=6, stacks=2, elements=4, pop=1.0), Stacks(length=97, stacks=64, pop=0.2)]


@pytest.mark.parametrize("task", SETTINGS)
def test_a_slow_reader_keeps_the_stacks_and_finds_what_every_pop_takes_off(task: Stacks, draw: Draw) -> None:
    batch, roles = draw(task), task.roles()
    between = task.slices(batch)["operations_between"].tolist()
    sources = task.sources(batch).tolist()
    for i, (row, targets) in enumerate(zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True)):
        piles: dict[int, list[tuple[int, int, int]]] = {}  # of element, its position, operations on the pile so far
        acted: dict[int, int] = {}
        due = [IGNORE] * len(row)
        for at in range(0, len(row) - 2, 3):
            assert [roles.name_of(token) for token in row[at + 1 : at + 3]] == ["stack", "element"]
            pile = piles.setdefault(row[at + 1], [])
            if roles.name_of(row[at]) == "push":
                pile.append((row[at + 2], at + 2, acted.get(row[at + 1], 0)))
            else:
                assert roles.name_of(row[at]) == "pop"
                due[at + 1], told, then = pile.pop()
                assert row[at + 2] == due[at + 1]
                assert sources[i][at + 1] == told
                passed = acted[row[at + 1]] - then - 1
                assert passed <= between[i][at + 1] <= max(passed, 2 * passed - 1)
            acted[row[at + 1]] = acted.get(row[at + 1], 0) + 1
        assert targets == due
        assert row[len(row) // 3 * 3 :] == [0] * (len(row) % 3)


def test_stacks_and_pops_are_as_likely_as_said(draw: Draw) -> None:
    task = Stacks(length=300, stacks=4, elements=8, pop=0.3)
    batch = draw(task, count=2000)
    stacks = np.bincount(batch.inputs[:, 1::3].ravel() - 3, minlength=4) / 200_000
    assert stacks == pytest.approx(np.full(4, 1 / 4), abs=4 * np.sqrt(3 / 16 / 200_000))
    pushes = batch.inputs[:, 0::3] == 1
    elements = np.bincount(batch.inputs[:, 2::3][pushes] - 7, minlength=8) / pushes.sum()
    assert elements == pytest.approx(np.full(8, 1 / 8), abs=4 * np.sqrt(7 / 64 / pushes.sum()))
    late = batch.inputs[:, -3] == 2  # with 0.7 pushes hardly a stack is empty by then
    assert late.mean() == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / 2000))


@pytest.mark.parametrize(
    ("length", "stacks", "right", "whole"),
    [
        (256, 64, 0.974, 0.65),
        (512, 64, 0.926, 0.04),
        (1024, 64, 0.842, 0.0),
        (256, 8, 0.754, None),
        (1024, 8, 0.630, None),
    ],
)
def test_of_many_stacks_the_last_push_is_nearly_always_right(
    length: int, stacks: int, right: float, whole: float | None, draw: Draw
) -> None:
    """As another program found for the law at the same sizes."""
    task = Stacks(length=length, stacks=stacks)
    batches = [draw(task, count=32, seed=seed) for seed in range(8)]
    scores = [task.score(batch, task.last_pushed(batch)) for batch in batches]
    for name, expected in (("accuracy", right), ("exact_match", whole)):
        found = [score[name] for score in scores]
        if expected is not None:
            assert np.mean(found) == pytest.approx(expected, abs=6 * np.std(found, ddof=1) / np.sqrt(8) + 0.005)


@pytest.mark.parametrize("task", [FEW, Stacks(length=96, stacks=4)])
def test_the_last_push_and_a_guess_score_their_lines(task: Stacks, assert_expects: Any) -> None:
    def last_push(_: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        said = np.zeros_like(batch.targets)
        for guess, row in zip(said, batch.inputs.tolist(), strict=True):
            last = {}
            for at in range(0, len(row) - 2, 3):
                if row[at] == 1:
                    last[row[at + 1]] = row[at + 2]
                guess[at + 1] = last[row[at + 1]]
        return said

    def guess(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        return task.roles().of("element").start + rng.integers(task.elements, size=batch.targets.shape)

    assert_expects(task, last_push, task.references()["last_push"])
    assert_expects(task, guess, task.chance())


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"length": 5}, "length must be at least 6"),
        ({"stacks": 0}, "stacks must be at least 1"),
        ({"elements": 1}, "elements must be at least 2"),
        ({"pop": 0.0}, "pop must be above 0 and at most 1"),
        ({"pop": float("nan")}, "pop must be above 0 and at most 1"),
        ({"length": 9, "stacks": 64}, "3 operations on 64 stacks hardly ever pop: raise length or pop"),
        ({"length": 2**23}, "length must be at most"),
    ],
)
def test_stacks_that_ask_nothing_are_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Stacks(**dials)
