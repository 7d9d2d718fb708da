"""The token that followed a trigger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import Induction

Draw = Callable[..., Batch]

SETTINGS = [
    Induction(length=32),
    Induction(length=3, vocab=5),
    Induction(length=40, triggers=4, labels="all"),
    Induction(length=9, triggers=4),
]


@pytest.mark.parametrize("task", SETTINGS)
def test_a_slow_reader_finds_what_followed_every_trigger(task: Induction, draw: Draw) -> None:
    batch = draw(task, count=200)
    sources = task.sources(batch).tolist()
    for row, targets, told in zip(batch.inputs.tolist(), batch.targets.tolist(), sources, strict=True):
        triggers = [at for at, token in enumerate(row) if token == task.vocab - 1]
        assert len(triggers) == task.triggers + 1
        assert triggers[-1] == task.length - 1
        followed = {row[at + 1] for at in triggers[:-1]}
        assert len(followed) == 1
        assert followed < set(range(task.vocab - 1))
        asked = triggers[1:] if task.labels == "all" else triggers[-1:]
        due = [IGNORE] * task.length
        for at in asked:
            (due[at],) = followed
            assert told[at] == triggers[triggers.index(at) - 1] + 1
        assert targets == due


@pytest.mark.parametrize("triggers", [1, 2])
def test_a_trigger_is_as_likely_at_every_place(triggers: int, draw: Draw) -> None:
    inputs = draw(Induction(length=10, triggers=triggers), count=20_000).inputs
    found = (inputs[:, :-1] == 15).sum(axis=0)
    assert found[-1] == 0
    if triggers == 1:
        assert found[:8] / 20_000 == pytest.approx(np.full(8, 1 / 8), abs=4 * np.sqrt(7 / 64 / 20_000))
    else:  # two of seven things, each trigger two places wide: 21 ways, 6 of them with a trigger first
        assert found[0] / 20_000 == pytest.approx(6 / 21, abs=4 * np.sqrt(0.21 / 20_000))


def test_safaris_form_is_the_published_one(draw: Draw) -> None:
    """20 ids, 30 tokens, the trigger at one of the first 28 places, then the question; all next tokens are trained."""
    task = Induction(protocol="safari", vocab=20, length=31)
    batch, trained = draw(task, count=20_000), draw(task, count=200, split="train")
    assert set(np.unique(batch.inputs)) == set(range(1, 20))
    at = (batch.inputs == 19).argmax(axis=1)
    seen = np.bincount(at) / 20_000
    assert seen == pytest.approx(np.full(28, 1 / 28), abs=4 * np.sqrt(1 / 28 / 20_000))
    assert (batch.targets[:, :-1] == IGNORE).all()
    assert (batch.targets[:, -1] == np.take_along_axis(batch.inputs, at[:, None] + 1, axis=1)[:, 0]).all()
    assert (trained.targets[:, :-1] == trained.inputs[:, 1:]).all()
    assert task.chance() == 1 / 18


def test_of_several_triggers_safari_has_one_in_half_of_the_rows_and_leaves_out_what_overlaps(draw: Draw) -> None:
    """Of two places among 28 the second is the same in 28 or one further in 2 * 27 of 784 cases."""
    task = Induction(protocol="safari", vocab=20, length=31, triggers=2)
    batch = draw(task, count=20_000)
    triggers = batch.inputs[:, :-1] == 19
    expected = (1 - (28 + 2 * 27) / 784) / 2
    assert (triggers.sum(axis=1) == 2).mean() == pytest.approx(expected, abs=4 * np.sqrt(0.25 / 20_000))
    assert set(triggers.sum(axis=1)) == {1, 2}
    row, at = np.nonzero(triggers)
    assert (batch.inputs[row, at + 1] == batch.targets[row, -1]).all()


def test_a_guess_scores_chance(assert_expects: Any) -> None:
    def guess(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        return rng.integers(15, size=batch.targets.shape)

    assert_expects(SETTINGS[0], guess, SETTINGS[0].chance())


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"vocab": 2}, "vocab must be at least 3"),
        ({"triggers": 0}, "triggers must be at least 1"),
        ({"length": 2}, "take 3 positions, length is 2: raise it"),
        (
            {"protocol": "safari", "labels": "all"},
            "protocol 'safari' asks at the end of 4 positions or more, got labels all",
        ),
        ({"protocol": "safari", "vocab": 3}, "vocab must be at least 4"),
        ({"labels": "first"}, "labels must be 'final' or 'all'"),
    ],
)
def test_impossible_sequences_are_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Induction(**dials)
