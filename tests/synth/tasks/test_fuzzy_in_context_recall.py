"""Fuzzy in-context recall."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import FuzzyInContextRecall

Draw = Callable[..., Batch]

REPAIRED = FuzzyInContextRecall()
MAD = FuzzyInContextRecall(protocol="mad-lab")
LONG = FuzzyInContextRecall(length=256, key_motif=2, value_motif=4)


def motifs(task: FuzzyInContextRecall, row: list[int]) -> list[tuple[str, tuple[int, ...], int]]:
    """A sequence as runs of one role: role, tokens, position of the first."""
    names = task.roles()
    role_of = {token: role for role in names for token in names.of(role)}
    runs = [(role, list(run)) for role, run in groupby(enumerate(row), lambda at: role_of[at[1]])]
    return [(role, tuple(token for _, token in run), run[0][0]) for role, run in runs]


def pairs(task: FuzzyInContextRecall, row: list[int]) -> list[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Key, value (as far as inputs show it) and position of the value, of every pair; the last pair is the probe."""
    found = []
    runs = motifs(task, row)
    for (role, key, at), (after, value, _) in zip(runs, [*runs[1:], ("end", (), 0)], strict=True):
        if role == "key":
            found.append((key, value if after == "value" else (), at + len(key)))
    return found


def reader(task: FuzzyInContextRecall, *, reads: bool) -> Callable[[np.random.Generator, Batch], NDArray[np.int64]]:
    """Answers values that were shown (if it reads) and else guesses among tokens that the value has not shown yet."""
    values = set(task.roles().of("value"))

    def answer(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        answers = np.zeros_like(batch.targets)
        for i, row in enumerate(batch.inputs.tolist()):
            facts: dict[tuple[int, ...], tuple[int, ...]] = {}
            for key, value, at in pairs(task, row):
                for j in np.nonzero(batch.targets[i, at - 1 : at - 1 + task.value_motif] != IGNORE)[0]:
                    if reads and j < len(facts.get(key, ())):
                        answers[i, at - 1 + j] = facts[key][j]
                    else:
                        left = sorted(values - set(value[:j]))
                        answers[i, at - 1 + j] = left[rng.integers(len(left))]
                facts.setdefault(key, value)
        return answers

    return answer


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("task", [REPAIRED, MAD, LONG], ids=str)
def test_motifs_are_distinct_tokens_and_keys_keep_their_values(
    task: FuzzyInContextRecall, split: str, draw: Draw
) -> None:
    batch = draw(task, split=split, count=200)
    for row in batch.inputs.tolist():
        facts: dict[tuple[int, ...], tuple[int, ...]] = {}
        for key, value, _ in pairs(task, row)[:-1]:
            assert len(set(key)) == len(key) <= task.key_motif
            assert 1 <= len(set(value)) == len(value) <= task.value_motif
            assert facts.setdefault(key, value) == value
            assert split == "train" or len(key) == task.key_motif


@pytest.mark.parametrize("task", [REPAIRED, MAD, LONG], ids=str)
def test_pairs_stand_side_by_side_after_the_padding(task: FuzzyInContextRecall, draw: Draw) -> None:
    for split in ("train", "test"):
        for row in draw(task, split=split, count=200).inputs.tolist():
            roles = [role for role, _, _ in motifs(task, row)]
            assert roles[0] == "pad"
            assert set(roles[1::2]) == {"key"}
            assert set(roles[2::2]) == {"value"}


@pytest.mark.parametrize("task", [REPAIRED, MAD, LONG], ids=str)
def test_exactly_the_values_of_repeated_keys_are_tested(task: FuzzyInContextRecall, draw: Draw) -> None:
    batch = draw(task, count=300)
    for row, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        *shown, (probe, part, at) = pairs(task, row)
        size = task.length + 1 - at
        expected = [IGNORE] * task.length
        facts: dict[tuple[int, ...], tuple[int, ...]] = {}
        for key, value, start in shown:
            if key in facts:
                expected[start - 1 : start - 1 + len(value)] = value
            facts.setdefault(key, value)
        assert targets[at - 1 + len(part)] != IGNORE
        expected[at - 1 :] = facts.get(probe, (*part, targets[-1]))[:size]
        assert targets == expected


def test_training_scores_every_next_token(draw: Draw) -> None:
    batch = draw(REPAIRED, split="train")
    assert (batch.targets[:, :-1] == batch.inputs[:, 1:]).all()
    assert (batch.targets[:, -1] != IGNORE).all()


def test_lengths_of_motifs_are_uniform(draw: Draw) -> None:
    task = FuzzyInContextRecall(vocab=128, length=512)
    rows = draw(task, split="train", count=300).inputs.tolist()
    shown = [(len(key), len(value)) for row in rows for key, value, _ in pairs(task, row)[:-1]]
    for sizes in zip(*shown, strict=True):
        often = np.bincount(sizes)[1:]
        assert often / often.sum() == pytest.approx(np.full(3, 1 / 3), abs=0.01)


def test_the_probe_was_always_shown_under_repaired(draw: Draw) -> None:
    for task in (REPAIRED, LONG, FuzzyInContextRecall(vocab=32), FuzzyInContextRecall(length=13)):
        batch = draw(task, count=3000)
        assert (task.sources(batch)[batch.targets != IGNORE] >= 0).all()


@pytest.mark.parametrize(
    ("task", "scored", "tolerance", "before", "near", "distance", "close"),
    [
        (MAD, 4.38, 0.30, 0.9875, 0.009, 49.5, 2.6),
        (replace(MAD, length=256), 12.44, 0.55, 0.9986, 0.003, 87.3, 2.6),
    ],
    ids=["baseline", "length 256"],
)
def test_published_statistics(
    task: FuzzyInContextRecall,
    scored: float,
    tolerance: float,
    before: float,
    near: float,
    distance: float,
    close: float,
    draw: Draw,
) -> None:
    """Means over 2,000 sequences of the public code: scored positions, share of them whose key was shown, and distance
    from a key to its last occurrence."""
    batch = draw(task, count=2000)
    sources = task.sources(batch)
    asked = batch.targets != IGNORE
    assert batch.inputs.shape[1] == task.length
    assert asked.sum(axis=1).mean() == pytest.approx(scored, abs=tolerance)
    assert (sources[asked] >= 0).mean() == pytest.approx(before, abs=near)
    back = np.broadcast_to(np.arange(task.length), sources.shape) - sources + 1
    assert back[sources >= 0].mean() == pytest.approx(distance, abs=close)


@pytest.mark.parametrize(("split", "padding"), [("train", 5.4), ("test", 4.9)])
def test_published_padding(split: str, padding: float, draw: Draw) -> None:
    batch = draw(MAD, split=split, count=2000)
    assert (batch.inputs == 15).sum(axis=1).mean() == pytest.approx(padding, abs=0.15)


@pytest.mark.parametrize(("length", "low", "high"), [(128, 0.018, 0.034), (512, 0.001, 0.009)])
def test_the_published_probe_was_sometimes_not_shown(length: int, low: float, high: float, draw: Draw) -> None:
    task = replace(MAD, length=length)
    batch = draw(task, count=4000)
    assert low < ((task.sources(batch) < 0) & (batch.targets != IGNORE)).any(axis=1).mean() < high


@pytest.mark.parametrize("task", [REPAIRED, MAD, LONG, replace(MAD, vocab=64)], ids=str)
def test_chance_is_a_guess_among_values_not_yet_said(
    task: FuzzyInContextRecall, assert_expects: Callable[..., None]
) -> None:
    assert_expects(task, reader(task, reads=False), task.chance(), sets=12)


def test_chance_at_the_published_setting() -> None:
    assert MAD.chance() == pytest.approx(0.138, abs=0.0005)


@pytest.mark.parametrize("task", [REPAIRED, MAD, replace(MAD, vocab=32)], ids=str)
def test_the_ceiling_is_a_reader(task: FuzzyInContextRecall, assert_expects: Callable[..., None]) -> None:
    assert_expects(task, reader(task, reads=True), task.ceiling())


@pytest.mark.parametrize(
    ("dials", "ceiling", "near"),
    [
        ({}, 0.992, 0.004),
        ({"length": 256}, 0.997, 0.002),
        ({"length": 512}, 1.0, 0.0005),
        ({"vocab": 32}, 0.970, 0.015),
    ],
)
def test_published_oracles(dials: dict[str, Any], ceiling: float, near: float) -> None:
    assert replace(MAD, **dials).ceiling() == pytest.approx(ceiling, abs=near)


def test_repaired_asks_nothing_that_cannot_be_read() -> None:
    assert REPAIRED.ceiling() == 1.0


def test_with_one_query_a_marker_stands_before_the_probe(draw: Draw) -> None:
    task = replace(REPAIRED, multi_query=False)
    batch = draw(task, count=200)
    assert (batch.inputs == 15).sum(axis=1).tolist() == [1] * 200
    for row, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        *_, (_, _, at) = pairs(task, row)
        assert task.roles().name_of(row[at - task.key_motif - 1]) == "marker"
        assert [t != IGNORE for t in targets] == [t >= at - 1 for t in range(task.length)]


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"length": 12}, "raise length to at least 13, or lower key_motif or value_motif"),
        ({"key_motif": 8}, "raise vocab by at least 1"),
        ({"value_motif": 9}, "raise vocab by at least 2"),
        ({"vocab": 4}, "raise vocab by at least 3"),
        ({"key_motif": 0}, "must be at least 1"),
    ],
)
def test_impossible_geometry_is_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FuzzyInContextRecall(**dials)


def test_the_bits_are_the_ones_we_know(digest: Callable[..., str]) -> None:
    assert [digest(task) for task in (REPAIRED, MAD)] == ["07df0d631d888da7", "869d63a03fb675e7"]
