"""Sequences prepared for a pool: however many columns it has, and in whatever type they travelled."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from recallmap.search.sequences.prepared import Prepared
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import (
    FuzzyInContextRecall,
    GroupWord,
    Learnability,
    Mqar,
    Needle,
    Regbench,
    SelectiveCopying,
)

TASK = Mqar(vocab=32, length=24, pairs=3)
REGBENCH = Regbench(
    letters=6, states=(3, 4), alphabet=(3, 6), out_degree=(1, 2), words=(3, 5), word_length=(1, 8), length=44
)


def drawn() -> Iterator[Batch]:
    rng = np.random.default_rng(0)
    for task in (TASK, REGBENCH, Needle(), SelectiveCopying(), FuzzyInContextRecall(), GroupWord(), Learnability()):
        yield task.sample(rng, 9, "train")
    sparse = np.where(rng.random((9, 40)) < 0.1, rng.integers(0, 300, (9, 40)), IGNORE)
    yield Batch(inputs=rng.integers(0, 70_000, (9, 40)), targets=sparse)
    yield Batch(inputs=rng.integers(0, 300, (9, 40)), targets=sparse, aux={"weight": rng.random((9, 40))})


@pytest.mark.parametrize("batch", list(drawn()))
def test_columns_that_come_later_are_those_that_would_have_been_there(batch: Batch) -> None:
    least = Prepared.of(batch)
    for columns in range(least.columns, batch.targets.shape[1] + 4, 4):
        at_once, later = Prepared.of(batch, columns), least.narrow().with_columns(columns)
        assert at_once.columns == later.columns
        assert (at_once.at is None) == (later.at is None)
        np.testing.assert_array_equal(at_once.inputs, later.inputs)
        np.testing.assert_array_equal(at_once.targets, later.targets)
        np.testing.assert_array_equal(at_once.weights(), later.weights())
        if at_once.at is not None and later.at is not None:
            assert at_once.at.shape[1] == columns
            np.testing.assert_array_equal(at_once.at, later.at)
