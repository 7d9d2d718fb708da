"""Strings and their copies, packed into one sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import PackedStrings

Draw = Callable[..., Batch]

SETTINGS = [PackedStrings(), PackedStrings(alphabet=4, length=30, min_size=1, max_size=5)]


def examples(row: list[int], begin: int) -> list[tuple[int, list[int]]]:
    """Where each example begins, and its tokens."""
    starts = [at for at, token in enumerate(row) if token == begin]
    return [(at, row[at:until]) for at, until in zip(starts, [*starts[1:], len(row)], strict=True)]


@pytest.mark.parametrize("task", SETTINGS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_slow_reader_finds_every_copy_and_the_cut_one_asks_nothing(
    task: PackedStrings, split: str, draw: Draw
) -> None:
    batch = draw(task, count=100, split=split)
    begin, separator, end = (task.roles().of(name).start for name in ("begin", "separator", "end"))
    sources = task.sources(batch).tolist()
    for row, targets, told in zip(batch.inputs.tolist(), batch.targets.tolist(), sources, strict=True):
        due, source = [IGNORE] * task.length, [-1] * task.length
        assert row[0] == begin
        for start, tokens in examples(row, begin):
            if tokens[-1] != end:
                assert start == max(at for at, token in enumerate(row) if token == begin)
                continue
            string, copy = tokens[1 : tokens.index(separator)], tokens[tokens.index(separator) + 1 : -1]
            assert string == copy
            assert task.min_size <= len(string) <= task.max_size
            first = start + 1 + len(string)
            for number, letter in enumerate(string):
                due[first + number], source[first + number] = letter, start + 1 + number
            if split == "train":
                due[first + len(string)] = end
        assert targets == due
        assert told == source


def test_sizes_are_equally_likely_and_the_largest_is_not_tested_as_published(draw: Draw) -> None:
    def firsts(task: PackedStrings, split: str) -> set[int]:
        inputs = draw(task, count=4000, split=split).inputs
        size = (inputs == task.roles().of("separator").start).argmax(axis=1) - 1
        seen = np.bincount(size, minlength=21)[5:] / 4000
        kept = seen[seen > 0]
        assert kept == pytest.approx(np.full(kept.size, 1 / kept.size), abs=4 * np.sqrt(1 / kept.size / 4000))
        return set(size.tolist())

    assert firsts(PackedStrings(), "test") == firsts(PackedStrings(protocol="jelassi"), "train") == set(range(5, 21))
    assert firsts(PackedStrings(protocol="jelassi"), "test") == set(range(5, 20))


@pytest.mark.parametrize("task", SETTINGS)
def test_a_guess_scores_chance(task: PackedStrings, assert_expects: Any) -> None:
    def guess(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        return rng.integers(task.alphabet, size=batch.targets.shape)

    assert_expects(task, guess, task.chance())


def test_one_who_matches_single_letters_scores_the_line(draw: Draw) -> None:
    task, rng = PackedStrings(), np.random.default_rng(3)
    batch = draw(task, count=400)
    begin = task.roles().of("begin").start
    right = []
    for row in batch.inputs.tolist():
        for _, tokens in examples(row, begin):
            if tokens[-1] != begin + 2:
                continue
            string = tokens[1 : tokens.index(begin + 1)]
            for at in range(1, len(string)):
                places = [p for p in range(len(string) - 1) if string[p] == string[at - 1]]
                right.append(string[1 + rng.choice(places)] == string[at])
    error = np.std(right) / np.sqrt(len(right))
    assert np.mean(right) == pytest.approx(task.references()["one_token_match"], abs=4 * error)


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"alphabet": 1}, "alphabet must be at least 2"),
        ({"min_size": 21}, "min_size must lie in 1..20"),
        ({"length": 42}, "take 43 positions, length is 42: raise it"),
        ({"min_size": 20, "protocol": "jelassi"}, "so that min_size must be lower"),
    ],
)
def test_strings_that_do_not_fit_are_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PackedStrings(**dials)
