"""Recall of vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import Batch
from recallmap.synth.tasks import MqarContinuous

Draw = Callable[..., Batch]

FEW = MqarContinuous(width=6, pairs=4)
MANY = MqarContinuous(width=4, pairs=9)


def parts(task: MqarContinuous, batch: Batch) -> tuple[NDArray[np.float64], ...]:
    """Keys and values [n, K, d], and the keys that are asked for."""
    inputs, d = batch.inputs.astype(np.float64), task.width
    return inputs[:, : task.pairs, :d], inputs[:, : task.pairs, d:], inputs[:, task.pairs :, :d]


def test_every_key_is_asked_once_and_its_value_is_due(draw: Draw) -> None:
    batch = draw(FEW, count=50)
    keys, values, asked = parts(FEW, batch)
    assert np.linalg.norm(keys, axis=2) == pytest.approx(np.ones((50, 4)), abs=1e-6)
    assert np.linalg.norm(values, axis=2) == pytest.approx(np.ones((50, 4)), abs=1e-6)
    found = (asked[:, :, None] == keys[:, None]).all(axis=3)
    assert (found.sum(axis=1) == 1).all()
    assert (found.sum(axis=2) == 1).all()
    assert (FEW.sources(batch)[:, 4:] == found.argmax(axis=2)).all()
    assert not batch.inputs[:, 4:, 6:].any()
    assert (batch.targets[:, 4:, 6:] == np.take_along_axis(values, found.argmax(axis=2)[:, :, None], axis=1)).all()
    assert (batch.aux["weight"] == [0, 0, 0, 0, 1, 1, 1, 1]).all()
    assert np.square(batch.targets).sum(axis=2).min() > 0.99


@pytest.mark.parametrize("task", [FEW, MANY], ids=["few pairs", "many pairs"])
def test_the_mean_the_sum_of_products_and_least_squares_score_their_lines(
    task: MqarContinuous, assert_expects: Any
) -> None:
    def answering(memory: Callable[..., NDArray[np.float64]]) -> Callable[..., NDArray[np.float64]]:
        def answer(_: np.random.Generator, batch: Batch) -> NDArray[np.float64]:
            said = np.zeros(batch.targets.shape)
            said[:, task.pairs :, task.width :] = memory(*parts(task, batch))
            return said

        return answer

    def mean(_: Any, values: NDArray[np.float64], asked: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.broadcast_to(values.mean(axis=1, keepdims=True), values.shape)

    def summed(keys: NDArray[np.float64], values: NDArray[np.float64], asked: Any) -> NDArray[np.float64]:
        found: NDArray[np.float64] = asked @ keys.swapaxes(1, 2) @ values
        return task.width / (task.width + task.pairs - 1) * found

    def solved(keys: NDArray[np.float64], values: NDArray[np.float64], asked: Any) -> NDArray[np.float64]:
        found: NDArray[np.float64] = asked @ np.linalg.pinv(keys) @ values
        return found

    lines = task.references()
    for memory, line in (
        (mean, task.chance()),
        (summed, lines["sum_of_products"]),
        (solved, lines["least_squares"]),
    ):
        assert_expects(task, answering(memory), line)


def test_what_is_retrieved_is_the_nearest_value(draw: Draw) -> None:
    batch = draw(MANY, count=50)
    said = batch.targets * 0.1
    assert MANY.score(batch, said)["retrieved"] == 1
    said[:, 9] = batch.targets[:, 10]
    assert MANY.score(batch, said)["retrieved"] == pytest.approx(8 / 9)


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"width": 1}, "width must be at least 2"),
        ({"pairs": 1}, "pairs must be at least 2"),
        ({"pairs": 2**22}, "at most"),
    ],
)
def test_impossible_pairs_are_refused(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        MqarContinuous(**dials)
