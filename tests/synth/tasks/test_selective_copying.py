"""Selective copying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.search.documents.type_hints import plain
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import SelectiveCopying

Draw = Callable[..., Batch]

REPAIRED = SelectiveCopying()
MAD = SelectiveCopying(protocol="mad-lab")
DENSE = SelectiveCopying(length=66, copies=32)
UNIFORM = SelectiveCopying(length=40, copies=6, spacing="uniform")


@pytest.mark.parametrize("task", [REPAIRED, MAD, DENSE, UNIFORM, replace(UNIFORM, length=400)], ids=str)
def test_data_among_blanks_then_the_copy_token_then_blanks(task: SelectiveCopying, draw: Draw) -> None:
    batch = draw(task, count=300)
    copies, length = task.copies, task.length
    data = batch.inputs < 14
    assert (batch.inputs[:, length - copies - 1] == 15).all()
    assert (batch.inputs == 15).sum() == 300
    assert not data[:, length - copies - 1 :].any()
    assert (data.sum(axis=1) == copies).all()
    assert (batch.targets[:, :-copies] == IGNORE).all()
    assert (batch.targets[:, -copies:] == batch.inputs[data].reshape(300, copies)).all()


@pytest.mark.parametrize(("task", "gaps"), [(REPAIRED, 17), (MAD, 16)], ids=["repaired", "mad-lab"])
def test_blanks_fall_into_all_gaps_alike(task: SelectiveCopying, gaps: int, draw: Draw) -> None:
    batch = draw(task, count=4000)
    positions = np.nonzero(batch.inputs < 14)[1].reshape(4000, 16)
    edges = np.pad(positions, ((0, 0), (1, 1)), constant_values=((-1, -1), (-1, 239)))
    sizes = np.diff(edges, axis=1) - 1
    assert sizes.mean(axis=0)[:gaps] == pytest.approx(np.full(gaps, 223 / gaps), abs=0.3)
    assert sizes.var(axis=0)[:gaps] == pytest.approx(np.full(gaps, 223 / gaps * (1 - 1 / gaps)), rel=0.15)
    assert (sizes[:, -1] == 0).all() == (task is MAD)


def test_at_uniform_spacing_all_places_are_as_likely(draw: Draw) -> None:
    places = (draw(UNIFORM, count=20_000).inputs[:, :33] < 14).mean(axis=0)
    assert places == pytest.approx(np.full(33, 6 / 33), abs=4.5 * np.sqrt(6 * 27 / 33**2 / 20_000))


def test_spacing_came_later_and_leaves_old_specs_as_they_were() -> None:
    assert "spacing" not in plain(REPAIRED)
    assert plain(UNIFORM)["spacing"] == "uniform"
    with pytest.raises(ValueError, match="spacing must be 'gaps' or 'uniform', got 'even'"):
        SelectiveCopying(spacing="even")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="protocol 'mad-lab' has spacing 'gaps'"):
        SelectiveCopying(protocol="mad-lab", spacing="uniform")


def test_published_statistics(draw: Draw) -> None:
    batch = draw(MAD, count=2000)
    back = np.arange(256) - MAD.sources(batch)
    assert back[batch.targets != IGNORE].mean() == pytest.approx(121.7, abs=0.3)
    first = np.nonzero(batch.inputs < 14)[1].reshape(2000, 16).mean(axis=0)
    j = np.arange(16)
    assert first == pytest.approx(j + (j + 1) * 223 / 16, abs=1.0)


@pytest.mark.parametrize("task", [REPAIRED, MAD], ids=str)
def test_chance_is_a_guess_among_data(task: SelectiveCopying, assert_expects: Callable[..., None]) -> None:
    assert_expects(task, lambda rng, batch: rng.integers(14, size=batch.targets.shape), task.chance())
    assert task.chance() == pytest.approx(1 / 14)


@pytest.mark.parametrize("task", [REPAIRED, MAD, DENSE, UNIFORM, replace(UNIFORM, length=400)], ids=str)
def test_the_ceiling_is_a_list(task: SelectiveCopying, assert_expects: Callable[..., None]) -> None:
    def recite(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        answers = np.zeros_like(batch.targets)
        answers[:, -task.copies :] = [[token for token in row if token < 14] for row in batch.inputs.tolist()]
        return answers

    assert_expects(task, recite, task.ceiling(), sets=2)


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"length": 33}, "raise length to at least 34, or lower copies"),
        ({"copies": 0}, "copies must be at least 1"),
        ({"vocab": 3}, "vocab must be at least 4"),
    ],
)
def test_impossible_geometry_is_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(REPAIRED, **dials)


def test_the_bits_are_the_ones_we_know(digest: Callable[..., str]) -> None:
    assert [digest(task) for task in (REPAIRED, MAD)] == ["ee5ce5e0259d4df4", "218806abd8170da4"]
