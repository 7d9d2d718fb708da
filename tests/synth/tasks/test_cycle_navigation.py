"""Steps on a cycle."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from recallmap.synth.batch import Batch
from recallmap.synth.tasks.cycle_navigation import CycleNavigation

Draw = Callable[..., Batch]


@pytest.mark.parametrize("places", [2, 5, 7])
def test_the_answer_is_the_place_reached(places: int, draw: Draw) -> None:
    task = CycleNavigation(places=places)
    batch = draw(task)
    move = {1: 0, 2: 1, 3: -1}
    for steps, answers in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        place = 0
        for step, answer in zip(steps, answers, strict=True):
            place = (place + move[step]) % places
            assert answer == 4 + place


def test_steps_are_uniform(draw: Draw) -> None:
    steps = draw(CycleNavigation(), count=2000).inputs
    assert np.bincount(steps.ravel())[1:] / steps.size == pytest.approx(np.full(3, 1 / 3), abs=0.01)


def test_the_vocabulary_is_four_more_than_the_places() -> None:
    task = CycleNavigation(places=6)
    assert task.vocab == 10
    assert task.chance() == 1 / 6
    with pytest.raises(ValueError, match="places must be at least 2"):
        CycleNavigation(places=1)


def test_the_bits_are_the_ones_we_know(digest: Callable[..., str]) -> None:
    assert digest(CycleNavigation()) == "cb6b8e7b103c945c"
