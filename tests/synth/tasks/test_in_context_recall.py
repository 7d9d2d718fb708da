"""In-context recall, clean and noisy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import InContextRecall, NoisyInContextRecall
from recallmap.synth.tasks.in_context_recall import PairRecall

Draw = Callable[..., Batch]

CLEAN = InContextRecall()
CLEAN_MAD = InContextRecall(protocol="mad-lab")
NOISY = NoisyInContextRecall()
NOISY_MAD = NoisyInContextRecall(protocol="mad-lab")
ALL = [CLEAN, CLEAN_MAD, NOISY, NOISY_MAD]


def read(task: PairRecall, row: list[int]) -> list[int | None]:
    """What one who reads from left to right knows of the answer at every position: the value that the key had."""
    keys, values = task.roles().of("key"), task.roles().of("value")
    facts: dict[int, int] = {}
    known = []
    for here, after in zip(row, [*row[1:], -1], strict=True):
        known.append(facts.get(here) if here in keys else None)
        if here in keys and after in values:
            facts[here] = after
    return known


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("task", ALL, ids=str)
def test_a_key_keeps_its_value(task: PairRecall, split: str, draw: Draw) -> None:
    batch = draw(task, split=split, count=200)
    for row, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        for known, target in zip(read(task, row), targets, strict=True):
            assert known is None or target in (known, IGNORE)


@pytest.mark.parametrize("task", ALL, ids=str)
def test_exactly_the_values_of_repeated_keys_are_tested(task: PairRecall, draw: Draw) -> None:
    batch = draw(task, count=200)
    for row, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        assert [IGNORE if known is None else known for known in read(task, row)] == targets


@pytest.mark.parametrize("task", ALL, ids=str)
def test_training_scores_every_next_token(task: PairRecall, draw: Draw) -> None:
    batch = draw(task, split="train")
    assert (batch.targets[:, :-1] == batch.inputs[:, 1:]).all()
    assert (batch.targets[:, -1] == IGNORE).all() == (task.protocol == "repaired")


def test_inputs_have_the_length_that_was_asked_for() -> None:
    assert CLEAN.shape == (128, 16)
    assert CLEAN_MAD.shape == (127, 16)
    assert replace(CLEAN, multi_query=False).shape == replace(CLEAN_MAD, multi_query=False).shape == (128, 16)


@pytest.mark.parametrize("task", ALL, ids=str)
def test_with_one_query_a_marker_stands_before_the_last_key(task: PairRecall, draw: Draw) -> None:
    single = replace(task, multi_query=False)
    batch = draw(single, count=200)
    marker = single.roles().of("marker").start
    assert (batch.inputs[:, -2] == marker).all()
    assert (batch.inputs == marker).sum() == 200
    assert (batch.targets[:, :-1] == IGNORE).all()
    assert [read(single, row)[-1] for row in batch.inputs.tolist()] == batch.targets[:, -1].tolist()


def test_the_last_key_is_any_of_those_shown_however_often(draw: Draw) -> None:
    batch = draw(InContextRecall(vocab=4, length=8), count=40_000)
    shown = np.sort(batch.inputs[:, 0:6:2], axis=1)  # keys 0 and 1 in three slots
    last = batch.inputs[:, 6]
    assert last[(shown == [0, 0, 1]).all(axis=1)].mean() == pytest.approx(1 / 2, abs=0.02)
    assert last[(shown == [0, 0, 0]).all(axis=1)].max() == 0


@pytest.mark.parametrize(
    ("task", "scored", "tolerance", "distance", "near"),
    [
        (CLEAN_MAD, 56.00, 0.003, 14.03, 0.09),
        (replace(CLEAN_MAD, vocab=64), 36.36, 0.20, 31.31, 0.4),
        (NOISY_MAD, 43.58, 0.40, 16.63, 0.15),
        (replace(NOISY_MAD, noise=0.8), 7.82, 0.35, 34.07, 1.2),
    ],
    ids=["clean", "vocab 64", "noisy", "noise 0.8"],
)
def test_published_statistics(
    task: PairRecall, scored: float, tolerance: float, distance: float, near: float, draw: Draw
) -> None:
    """Means over 2,000 sequences of the public code: scored positions, and from a key to its last occurrence."""
    batch = draw(task, count=2000)
    sources = task.sources(batch)
    asked = batch.targets != IGNORE
    assert batch.inputs.shape[1] == 127
    assert asked.sum(axis=1).mean() == pytest.approx(scored, abs=tolerance)
    assert (sources[asked] >= 0).all()
    back = np.broadcast_to(np.arange(127), sources.shape) - sources + 1
    assert back[asked].mean() == pytest.approx(distance, abs=near)


@pytest.mark.parametrize("keys", [8, 32])
def test_the_number_of_questions_has_a_closed_form(keys: int, draw: Draw) -> None:
    batch = draw(InContextRecall(vocab=2 * keys), count=4000)
    expected = 64 - keys * (1 - (1 - 1 / keys) ** 63)
    assert (batch.targets != IGNORE).sum(axis=1).mean() == pytest.approx(expected, abs=0.15)


@pytest.mark.parametrize(("task", "slots"), [(NOISY, 62), (NOISY_MAD, 63 * (1 - 1 / 64))])
def test_noise_takes_whole_slots_but_one_and_the_last(task: NoisyInContextRecall, slots: float, draw: Draw) -> None:
    batch = draw(task, count=4000, split="train")
    noise = np.isin(batch.inputs, task.roles().of("noise"))
    pairs = noise[:, :126].reshape(4000, 63, 2)
    assert (pairs[:, :, 0] == pairs[:, :, 1]).all()
    assert not noise[:, 126:].any()
    assert noise.sum(axis=1).mean() == pytest.approx(2 * 0.2 * slots, abs=0.4)


@pytest.mark.parametrize("protocol", ["repaired", "mad-lab"])
def test_a_short_and_noisy_sequence_still_shows_a_key(protocol: Any, draw: Draw) -> None:
    task = NoisyInContextRecall(protocol=protocol, length=8, noise=0.8)
    batch = draw(task, count=5000)
    assert ((batch.targets != IGNORE).sum(axis=1) >= 1).all()
    assert (task.sources(batch)[batch.targets != IGNORE] >= 0).all()


@pytest.mark.parametrize("task", [*ALL, replace(CLEAN, vocab=64)], ids=str)
def test_chance_is_a_guess_among_values(task: PairRecall, assert_expects: Callable[..., None]) -> None:
    values = task.roles().of("value")

    def guess(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        return rng.integers(values.start, values.stop, size=batch.targets.shape)

    assert_expects(task, guess, task.chance())
    assert task.chance() == pytest.approx(1 / len(values))


@pytest.mark.parametrize(
    "task", [InContextRecall(vocab=140_000, length=16), NoisyInContextRecall(vocab=70_000, noise_vocab=4000, noise=0.5)]
)
def test_many_symbols_are_told_apart(task: PairRecall, draw: Draw) -> None:
    batch = draw(task, count=64)
    source = task.sources(batch)
    asked = batch.targets != IGNORE
    assert ((source >= 0) == asked).all()
    assert (np.take_along_axis(batch.inputs, source, axis=1) == batch.targets)[asked].all()


@pytest.mark.parametrize("task", ALL, ids=str)
def test_the_ceiling_is_a_reader(task: PairRecall, assert_expects: Callable[..., None]) -> None:
    def answer(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        return np.array(
            [[-1 if known is None else known for known in read(task, row)] for row in batch.inputs.tolist()]
        )

    assert_expects(task, answer, task.ceiling(), sets=2)
    assert task.ceiling() == 1.0


def test_the_published_accuracy_is_macro_by_batch(draw: Draw) -> None:
    """Half of the classes right: the published figure counts classes, not positions."""
    batch = draw(CLEAN_MAD, count=256)
    scores = CLEAN_MAD.score(batch, np.where(batch.targets < 12, batch.targets, 0))
    assert scores["accuracy"] == pytest.approx(4 / 9)  # four of eight classes, and key 0 answered in vain
    assert scores["micro_accuracy"] == pytest.approx((batch.targets[batch.targets != IGNORE] < 12).mean())
    assert scores["macro_accuracy"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("kind", "dials", "said"),
    [
        (InContextRecall, {"length": 127}, "length must be even and at least 4"),
        (InContextRecall, {"vocab": 3}, "raise vocab by 1 or more"),
        (InContextRecall, {"vocab": 4, "multi_query": False}, "raise vocab by 1 or more"),
        (NoisyInContextRecall, {"noise": 1.0}, r"noise must lie in \[0, 1\)"),
        (NoisyInContextRecall, {"vocab": 16}, "raise vocab by 4 or more"),
        (NoisyInContextRecall, {"noise_vocab": 0}, "set noise_vocab to at least 1, or noise to 0"),
        (NoisyInContextRecall, {"noise_vocab": -1, "noise": 0.0}, "noise_vocab must not be negative"),
    ],
)
def test_impossible_geometry_is_refused_with_a_remedy(kind: type, dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kind(**dials)


def test_without_noise_the_tasks_are_one(draw: Draw) -> None:
    noiseless = NoisyInContextRecall(vocab=16, noise_vocab=0, noise=0.0)
    assert (draw(noiseless).inputs == draw(CLEAN).inputs).all()


def test_the_bits_are_the_ones_we_know(digest: Callable[..., str]) -> None:
    assert [digest(task) for task in ALL] == [
        "a56ef2b9183d129e",
        "73e73ce748ba53d5",
        "49cbeaf5f8f67397",
        "9d689d2dc9348847",
    ]
