"""What state-tracking tasks share: sizes, labels, and scores by length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks.cycle_navigation import CycleNavigation
from recallmap.synth.tasks.group_word import GroupWord
from recallmap.synth.tasks.modular_arithmetic import ModularArithmetic
from recallmap.synth.tasks.parity import Parity
from recallmap.synth.tracking import StateTracking

Draw = Callable[..., Batch]

EVERY = [
    Parity(),
    CycleNavigation(),
    ModularArithmetic(labels="all"),
    ModularArithmetic(brackets=True),
    GroupWord(),
    GroupWord(tokens_per_element=2, protocol="word-problem"),
]
SIZED: list[StateTracking] = [
    Parity(min_length=2, length=39, labels="final"),
    CycleNavigation(min_length=2, length=39, labels="final"),
    ModularArithmetic(min_length=2, length=38),
    ModularArithmetic(min_length=3, length=38, brackets=True),
    GroupWord(min_length=2, length=39, labels="final"),
]
UNLOCKING: list[tuple[StateTracking, tuple[int, int], tuple[int, int]]] = [  # sizes of training, and of evaluation
    (Parity(protocol="unlocking", min_length=2, length=39, labels="final"), (2, 39), (39, 255)),
    (CycleNavigation(protocol="unlocking", min_length=2, length=39, labels="final"), (2, 39), (39, 255)),
    (ModularArithmetic(protocol="unlocking", min_length=2, length=38), (2, 38), (38, 254)),
    (ModularArithmetic(protocol="unlocking", min_length=1, length=38, brackets=True), (3, 38), (38, 254)),
]


def called(task: Any) -> str:
    return f"{task.kind}{'-brackets' * getattr(task, 'brackets', False)}" if isinstance(task, StateTracking) else ""


def sizes(batch: Batch) -> Any:
    """Of sequences with one answer, due at the end."""
    assert ((batch.targets != IGNORE).sum(axis=1) == 1).all()
    return (batch.targets != IGNORE).argmax(axis=1) + 1


@pytest.mark.parametrize("task", SIZED, ids=called)
def test_sizes_are_uniform_and_the_rest_is_padding(task: StateTracking, draw: Draw) -> None:
    batch = draw(task, count=8000)
    size = sizes(batch)
    values, seen = np.unique(size, return_counts=True)
    unit = values[1] - values[0]
    assert values.tolist() == list(range(task.min_length or 0, task.length + 1, unit))
    assert seen / 8000 == pytest.approx(np.full(len(values), 1 / len(values)), abs=5 / np.sqrt(8000 * len(values)))
    pad = task.roles().of("pad").start
    assert ((batch.inputs == pad) == (np.arange(task.length) >= size[:, None])).all()


@pytest.mark.parametrize(("task", "training", "evaluation"), UNLOCKING, ids=called)
def test_unlocking_pads_to_its_window_and_evaluates_longer_sequences(
    task: StateTracking, training: tuple[int, int], evaluation: tuple[int, int], draw: Draw
) -> None:
    assert task.shape[0] == 255
    for split, (fewest, most) in [("train", training), ("validation", evaluation), ("test", evaluation)]:
        size = sizes(draw(task, count=4000, split=split))
        assert (size.min(), size.max()) == (fewest, most)


@pytest.mark.parametrize("task", EVERY, ids=called)
def test_the_end_is_labelled_alike_whether_or_not_the_way_is(task: StateTracking, draw: Draw) -> None:
    final = draw(replace(task, labels="final"), count=32)
    batch = draw(task, count=32)
    assert (final.inputs == batch.inputs).all()
    assert (final.targets[:, -1] == batch.targets[:, -1]).all()
    assert (final.targets[:, -1] != IGNORE).all()


@pytest.mark.parametrize("task", EVERY, ids=called)
def test_chance_is_a_guess_among_states(task: StateTracking, assert_expects: Callable[..., None]) -> None:
    start = task.roles().of("start").start if task.protocol == "word-problem" else -1

    def guess(rng: np.random.Generator, batch: Batch) -> Any:
        answers = rng.integers(task.answers.start, task.answers.stop, size=batch.targets.shape)
        return np.where(batch.targets == start, start, answers)  # the start token is told

    assert_expects(task, guess, task.chance())


@pytest.mark.parametrize("task", EVERY, ids=called)
def test_scaled_accuracy_is_zero_by_chance_and_one_by_rights(task: StateTracking, draw: Draw) -> None:
    batch = draw(task, count=4000)
    rng = np.random.default_rng(0)
    asked = batch.targets != IGNORE
    guesses = rng.integers(task.answers.start, task.answers.stop, size=asked.shape)
    if task.protocol == "repaired":
        assert task.score(batch, guesses)["scaled_accuracy"] == pytest.approx(0, abs=0.04)
    parts = {name: value for name, value in task.score(batch, guesses).items() if name.startswith("scaled_accuracy/")}
    assert parts == pytest.approx(dict.fromkeys(parts, 0), abs=0.1)  # of no part is an answer known beforehand
    half = np.where(rng.random(asked.shape) < 0.5, batch.targets, -1)
    c = task.chance()
    scores = task.score(batch, half)
    assert scores["scaled_accuracy"] == pytest.approx((scores["accuracy"] - c) / (1 - c))
    assert task.score(batch, batch.targets)["scaled_accuracy"] == 1.0


def test_accuracy_is_told_by_the_number_of_symbols_read(draw: Draw) -> None:
    task = Parity(length=256)
    batch = draw(task)
    read = np.arange(1, 257)
    for edge, first, last in [(16, 1, 16), (40, 17, 40), (64, 41, 64), (96, 65, 96), (128, 97, 128), (256, 193, 256)]:
        right_there = np.where((read >= first) & (read <= last), batch.targets, -1)
        scores = {k: v for k, v in task.score(batch, right_there).items() if k.startswith("accuracy/")}
        assert len(scores) == 7
        assert {name for name, value in scores.items() if value > 0} == {f"accuracy/length={edge}"}
        assert scores[f"accuracy/length={edge}"] == 1.0


def test_lengths_of_final_answers_are_the_sizes(draw: Draw) -> None:
    task = Parity(min_length=2, length=64, labels="final")
    batch = draw(task, count=2000)
    size = sizes(batch)
    long_ones_wrong = np.where((size > 40)[:, None], -1, batch.targets)
    scores = task.score(batch, long_ones_wrong)
    assert [scores[f"accuracy/length={edge}"] for edge in (16, 40, 64)] == [1.0, 1.0, 0.0]
    assert scores["scaled_accuracy/length=64"] == -1.0


def test_exact_match_falls_with_the_first_mistake(draw: Draw) -> None:
    task = GroupWord(length=128)
    batch = draw(task, count=4)
    answers = batch.targets.copy()
    answers[0, 15] = answers[1, 16] = answers[2, 100] = -1
    scores = task.score(batch, answers)
    assert [scores[f"exact_match/length={edge}"] for edge in (16, 40, 64, 96, 128)] == [0.75, 0.5, 0.5, 0.5, 0.25]
    assert scores["exact_match"] == 0.25


def test_exact_match_counts_sequences_that_are_long_enough(draw: Draw) -> None:
    task = Parity(min_length=2, length=64)
    batch = draw(task)
    scores = task.score(batch, np.where(np.arange(64) < 16, batch.targets, -1))
    assert [scores[f"exact_match/length={edge}"] for edge in (16, 40, 64)] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Parity(length=0), "length must be a positive multiple of 1"),
        (lambda: Parity(length=8, min_length=9), "min_length must be a multiple of 1 from 1 to length 8"),
        (lambda: Parity(min_length=0), "min_length must be a multiple of 1 from 1"),
        (lambda: Parity(labels="some"), "labels must be 'all' or 'final'"),
        (lambda: Parity(protocol="unlocking", length=256), "length must be at most 255"),
        (lambda: ModularArithmetic(protocol="unlocking", length=256), "length must be at most 254"),
        (lambda: ModularArithmetic(length=39), "length must be a positive multiple of 2"),
        (lambda: ModularArithmetic(length=38, min_length=3), "min_length must be a multiple of 2"),
        (lambda: GroupWord(length=10, tokens_per_element=4), "length must be a positive multiple of 4"),
    ],
)
def test_impossible_sizes_are_refused(make: Callable[[], StateTracking], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()
