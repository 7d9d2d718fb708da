"""What followed a few letters of a string."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import Lookup

Draw = Callable[..., Batch]

SETTINGS = [
    Lookup(),
    Lookup(order="suffix"),
    Lookup(alphabet=3, letters=12, given=2, answer=1),
    Lookup(protocol="jelassi", alphabet=3, letters=12, given=2, answer=2, order="suffix"),
    Lookup(alphabet=4, letters=14, given=2, answer=0),
    Lookup(protocol="jelassi", alphabet=3, letters=12, given=2, answer=0, order="suffix"),
]


def parts(task: Lookup, row: list[int]) -> tuple[list[int], list[int]]:
    """The string and what is given."""
    if task.order == "prefix":
        return row[2 + task.given : 2 + task.given + task.letters], row[1 : 1 + task.given]
    return row[1 : 1 + task.letters], row[2 + task.letters : 2 + task.letters + task.given]


@pytest.mark.parametrize("task", SETTINGS)
def test_a_slow_reader_finds_what_followed(task: Lookup, draw: Draw) -> None:
    batch = draw(task, count=300)
    again = 0
    for row, targets, told in zip(
        batch.inputs.tolist(), batch.targets.tolist(), task.sources(batch).tolist(), strict=True
    ):
        string, given = parts(task, row)
        assert max(*string, *given) < task.alphabet
        places = [at for at in range(task.letters - task.given + 1) if string[at : at + task.given] == given]
        again += len(places) > 1
        answer = string[places[0] + task.given :][: task.answer or None]
        due = [at for at, target in enumerate(targets) if target != IGNORE]
        first = len(row) - (task.answer or task.letters - task.given)
        assert due == list(range(first, first + len(answer)))
        assert set(row[due[-1] + 1 :]) <= {task.alphabet + 2}  # the padding where the rest is due
        assert [targets[at] for at in due] == answer
        assert [row[at] for at in due[1:]] == answer[:-1]
        assert [row[told[at]] for at in due] == answer
    assert again > 100 if task.protocol == "jelassi" else again == 0


def test_every_place_is_as_likely_and_the_public_code_leaves_out_three(draw: Draw) -> None:
    for protocol, places in (("repaired", 45), ("jelassi", 42)):
        task = Lookup(protocol=protocol)  # type: ignore[arg-type]
        seen = np.bincount(draw(task, count=20_000).aux["place"]) / 20_000
        assert seen.size == places
        assert seen == pytest.approx(np.full(places, 1 / places), abs=5 * np.sqrt(1 / places / 20_000))


@pytest.mark.parametrize(("given", "letters", "again"), [(3, 50, 0.002), (2, 50, 0.065), (2, 300, 0.36)])
def test_what_is_given_recurs_in_the_public_code_as_often_as_was_seen(
    given: int, letters: int, again: float, draw: Draw
) -> None:
    task = Lookup(protocol="jelassi", given=given, letters=letters)
    inputs = draw(task, count=4000).inputs
    string, asked = inputs[:, 2 + given : 2 + given + letters], inputs[:, 1 : 1 + given]
    pieces = np.lib.stride_tricks.sliding_window_view(string, given, axis=1)
    found = ((pieces == asked[:, None]).all(axis=2).sum(axis=1) > 1).mean()
    assert found == pytest.approx(again, abs=6 * np.sqrt(again / 4000) + 0.001)


@pytest.mark.parametrize("task", [SETTINGS[2], *SETTINGS[-2:]])
def test_a_guess_scores_chance(task: Lookup, assert_expects: Any) -> None:

    def guess(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        return rng.integers(task.alphabet, size=batch.targets.shape)

    assert_expects(task, guess, task.chance())


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"alphabet": 1}, "alphabet must be at least 2"),
        ({"answer": -1}, "answer must be at least 0"),
        ({"answer": 0, "letters": 3}, "letters must be at least 4 for 3 given and the rest due, got 3"),
        ({"letters": 5}, "letters must be at least 6 for 3 given and 3 due, got 5"),
        ({"alphabet": 2, "given": 1}, "hardly any of 2 pieces occurs once: raise given"),
        ({"order": "infix"}, "order must be 'prefix' or 'suffix'"),
        ({"given": 20, "letters": 300}, "lower given"),
    ],
)
def test_impossible_lookups_are_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Lookup(**dials)
