"""Memorization."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.streams import Stream
from recallmap.synth.tasks import Memorization

Draw = Callable[..., Batch]

REPAIRED = Memorization()
MAD = Memorization(protocol="mad-lab")


def facts(batch: Batch) -> dict[int, int]:
    return dict(zip(batch.inputs[:, ::2].ravel().tolist(), batch.targets[:, 1::2].ravel().tolist(), strict=True))


@pytest.mark.parametrize("task", [REPAIRED, MAD], ids=str)
def test_answers_are_due_at_the_insert_token(task: Memorization, draw: Draw) -> None:
    for split in ("train", "test"):
        batch = draw(task, split=split)
        assert (batch.inputs[:, 1::2] == 255).all()
        assert np.isin(batch.inputs[:, ::2], task.roles().of("key")).all()
        assert (batch.targets[:, ::2] == IGNORE).all()
        assert np.isin(batch.targets[:, 1::2], task.roles().of("value")).all()


def test_one_injective_map_holds_everywhere(draw: Draw) -> None:
    everywhere = [
        facts(draw(task, split=split, seed=seed, count=500))
        for task in (REPAIRED, MAD)
        for split in ("train", "test")
        for seed in (0, 1)
    ]
    assert all(one == everywhere[0] for one in everywhere)
    assert len(everywhere[0]) == len(set(everywhere[0].values())) == 127


def test_another_fact_seed_is_another_map(draw: Draw) -> None:
    one, other = facts(draw(REPAIRED, count=500)), facts(draw(replace(REPAIRED, fact_seed=1), count=500))
    assert sum(one[key] == other[key] for key in one) < 10


@pytest.mark.parametrize("vocab", [256, 2048, 8192])
def test_256_training_sequences_show_every_fact_under_repaired(vocab: int) -> None:
    batch = Stream(replace(REPAIRED, vocab=vocab), 0, "train").take(0, 256)
    keys, often = np.unique(batch.inputs[:, ::2], return_counts=True)
    assert len(keys) == (vocab - 1) // 2
    assert often.max() - often.min() <= 1


def test_training_draws_with_replacement_under_mad_lab() -> None:
    batch = Stream(replace(MAD, vocab=4096), 0, "train").take(0, 256)
    assert len(np.unique(batch.inputs[:, ::2])) / 2047 == pytest.approx(1 - 0.135, abs=0.02)


@pytest.mark.parametrize("task", [REPAIRED, MAD, replace(MAD, vocab=8192)], ids=str)
def test_chance_is_a_guess_among_values(task: Memorization, assert_expects: Callable[..., None]) -> None:
    values = task.roles().of("value")

    def guess(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        return rng.integers(values.start, values.stop, size=batch.targets.shape)

    assert_expects(task, guess, task.chance(), sets=200)


def test_chance_at_the_published_setting() -> None:
    assert MAD.chance() == pytest.approx(0.0076, abs=0.0002)
    assert REPAIRED.chance() == pytest.approx(1 / 128)


@pytest.mark.parametrize(
    ("vocab", "low", "high"),
    [(256, 1.0, 1.0), (512, 1.0, 1.0), (1024, 0.999, 1.0), (2048, 0.98, 0.988), (4096, 0.83, 0.87), (8192, 0.52, 0.64)],
)
def test_published_ceilings(vocab: int, low: float, high: float) -> None:
    assert low - 1e-6 <= replace(MAD, vocab=vocab).ceiling() <= high


@pytest.mark.parametrize("vocab", [2048, 8192])
def test_the_ceiling_is_perfect_memory_of_the_training_set(vocab: int, assert_expects: Callable[..., None]) -> None:
    """What was never shown gets one constant answer: its class costs less than guesses all over."""
    task = replace(MAD, vocab=vocab)

    def remember(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        known = facts(task.sample(rng, 256, "train"))
        unknown = min(set(task.roles().of("value")) - set(known.values()))
        answers = np.full_like(batch.targets, IGNORE)
        answers[:, 1::2] = [[known.get(key, unknown) for key in row[::2]] for row in batch.inputs.tolist()]
        return answers

    assert_expects(task, remember, task.ceiling(), sets=16)


def test_the_ceiling_is_one_under_repaired() -> None:
    assert replace(REPAIRED, vocab=8192).ceiling() == 1.0


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"length": 31}, "length must be even"),
        ({"vocab": 4}, "vocab must be at least 5"),
        ({"fact_seed": -1}, "fact_seed"),
    ],
)
def test_impossible_geometry_is_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Memorization(**dials)


def test_the_bits_are_the_ones_we_know(digest: Callable[..., str]) -> None:
    assert [digest(task) for task in (REPAIRED, MAD)] == ["7fe9a15af9634046", "3e1e7efbc5c3a627"]
