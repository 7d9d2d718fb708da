"""Compression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import Compression

Draw = Callable[..., Batch]

REPAIRED = Compression()
MAD = Compression(protocol="mad-lab")


@pytest.mark.parametrize("task", [REPAIRED, MAD], ids=str)
def test_random_tokens_then_the_compression_token(task: Compression, draw: Draw) -> None:
    batch = draw(task, count=5000)
    assert (batch.inputs[:, -1] == 15).all()
    seen = np.bincount(batch.inputs[:, :-1].ravel(), minlength=16) / (31 * 5000)
    assert seen[:15] == pytest.approx(np.full(15, 1 / 15), abs=0.003)
    assert seen[15] == 0


def test_the_free_token_is_scored_under_mad_lab_alone(draw: Draw) -> None:
    repaired, mad = draw(REPAIRED), draw(MAD)
    assert (mad.targets == mad.inputs).all()
    assert (repaired.targets[:, :-1] == repaired.inputs[:, :-1]).all()
    assert (repaired.targets[:, -1] == IGNORE).all()


def test_all_is_read_from_the_last_vector() -> None:
    assert Compression.readout == "last"


def test_tokens_are_told_apart_by_their_distance_from_the_end(draw: Draw) -> None:
    batch = draw(REPAIRED)
    recent = np.where(np.arange(32) >= 23, batch.targets, 0)  # the last eight tokens, and no zeros among the others
    batch.inputs[:, :23][batch.inputs[:, :23] == 0] = 1
    batch.targets[:, :23][batch.targets[:, :23] == 0] = 1
    parts = {name: value for name, value in REPAIRED.score(batch, recent).items() if "/" in name}
    assert parts == {f"accuracy/distance_up_to={d}": float(d <= 8) for d in (1, 2, 4, 8, 16, 32)}


@pytest.mark.parametrize(("task", "published"), [(REPAIRED, 1 / 15), (MAD, 0.125)], ids=["repaired", "mad-lab"])
def test_chance_is_a_guess_among_data(task: Compression, published: float, assert_expects: Callable[..., None]) -> None:
    def guess(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        answers = rng.integers(15, size=batch.targets.shape)
        answers[:, -1] = 15
        return answers

    assert_expects(task, guess, task.chance())
    assert task.chance() == pytest.approx(published)


@pytest.mark.parametrize("task", [REPAIRED, MAD], ids=str)
def test_the_ceiling_is_a_copy(task: Compression, assert_expects: Callable[..., None]) -> None:
    assert_expects(task, lambda _, batch: batch.inputs, task.ceiling(), sets=2)


@pytest.mark.parametrize(("dials", "said"), [({"length": 1}, "at least 2"), ({"vocab": 2}, "at least 3")])
def test_impossible_geometry_is_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(REPAIRED, **dials)


def test_the_bits_are_the_ones_we_know(digest: Callable[..., str]) -> None:
    assert [digest(task) for task in (REPAIRED, MAD)] == ["4250441addc23726", "87a8daf380c9133b"]
