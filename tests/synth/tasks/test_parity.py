"""Parity of bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks.parity import Parity

Draw = Callable[..., Batch]


def test_by_default_every_position_asks_for_the_parity_so_far(draw: Draw) -> None:
    batch = draw(Parity())
    assert batch.inputs.shape == (64, 40)
    for bits, answers in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        assert answers == [1 + bits[: t + 1].count(2) % 2 for t in range(40)]


def test_at_the_end_the_answer_is_the_parity_of_all_bits(draw: Draw) -> None:
    batch = draw(Parity(labels="final", min_length=2, length=39), split="train", count=500)
    for bits, answers in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        last = sum(bit > 0 for bit in bits) - 1
        assert {t: a for t, a in enumerate(answers) if a != IGNORE} == {last: 1 + bits.count(2) % 2}


def test_bits_and_answers_are_fair(draw: Draw) -> None:
    batch = draw(Parity(), count=5000)
    assert (batch.inputs == 2).mean() == pytest.approx(0.5, abs=0.005)
    assert (batch.targets == 2).mean() == pytest.approx(0.5, abs=0.005)


def test_published_sequences_fill_a_twelfth_of_their_window(draw: Draw) -> None:
    task = Parity(protocol="unlocking", labels="final", min_length=2, length=39)
    batch = draw(task, count=5000, split="train")
    assert batch.inputs.shape == (5000, 255)
    assert (batch.inputs != 0).mean() == pytest.approx(20.5 / 255, abs=0.002)
    assert np.unique(batch.inputs).tolist() == [0, 1, 2]


def test_the_bits_are_the_ones_we_know(digest: Callable[..., str]) -> None:
    assert [
        digest(task) for task in (Parity(), Parity(protocol="unlocking", labels="final", min_length=2, length=39))
    ] == ["86fa950a46d5d97c", "77fc8f89b064b98c"]
