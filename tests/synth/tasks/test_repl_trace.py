"""Variables that are swapped and printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import ReplTrace

Draw = Callable[..., Batch]

SETTINGS = [ReplTrace(), ReplTrace(variables=2, lines=3), ReplTrace(variables=3, lines=40, prints=0.1)]


@pytest.mark.parametrize("task", SETTINGS)
def test_an_interpreter_prints_what_is_due(task: ReplTrace, draw: Draw) -> None:
    batch = draw(task, count=100)
    roles = task.roles()
    word = {roles.of(name).start: name for name in ("is", "print", "swap", "end")}
    swaps = task.slices(batch)["swaps_since"].tolist()
    sources = task.sources(batch).tolist()
    for row, targets, told, since in zip(batch.inputs.tolist(), batch.targets.tolist(), sources, swaps, strict=True):
        held: dict[int, int] = {}
        shown: dict[int, int] = {}
        touched: dict[int, int] = {}
        for at in range(0, len(row), 4):
            line, due = row[at : at + 4], [IGNORE] * 4
            assert word[line[3]] == "end"
            if at < 4 * task.variables:
                assert word[line[1]] == "is"
                held[line[0]], shown[line[2]], touched[line[0]] = line[2], at + 2, 0
            elif word[line[0]] == "swap":
                one, other = line[1:3]
                assert one != other
                held[one], held[other] = held[other], held[one]
                touched[one] += 1
                touched[other] += 1
            else:
                assert word[line[0]] == "print"
                assert line[2] == held[line[1]]
                due[1] = line[2]
                assert told[at + 1] == shown[line[2]]
                assert since[at + 1] == (1 << max(touched[line[1]] - 1, 0).bit_length() if touched[line[1]] else 0)
                shown[line[2]], touched[line[1]] = at + 2, 0
            assert targets[at : at + 4] == due
        assert len(set(held.values())) == len(held) == task.variables


def test_a_language_model_is_trained_on_every_token_and_tested_on_values(draw: Draw) -> None:
    task = ReplTrace(loss="lm")
    trained, tested = draw(task, split="train"), draw(task)
    assert (trained.targets[:, :-1] == trained.inputs[:, 1:]).all()
    assert (trained.targets[:, -1] == IGNORE).all()
    assert (tested.targets == draw(ReplTrace()).targets).all()


@pytest.mark.parametrize(("lines", "right"), [(32, 0.481), (256, 0.435)])
def test_what_was_last_shown_is_right_as_often_as_another_program_found(lines: int, right: float, draw: Draw) -> None:
    task = ReplTrace(lines=lines)
    found = [
        task.score(batch, task.last_shown(batch))["accuracy"] for batch in (draw(task, 64, seed=s) for s in range(8))
    ]
    assert np.mean(found) == pytest.approx(right, abs=6 * np.std(found, ddof=1) / np.sqrt(8) + 0.001)


@pytest.mark.parametrize("task", SETTINGS)
def test_the_last_shown_and_a_guess_score_their_lines(task: ReplTrace, assert_expects: Any) -> None:
    def last_shown(_: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        said = np.zeros_like(batch.targets)
        for guess, row in zip(said, batch.inputs.tolist(), strict=True):
            seen = {}
            for at in range(0, len(row), 4):
                if at < 4 * task.variables:
                    seen[row[at]] = row[at + 2]
                elif row[at] == 1:
                    guess[at + 1], seen[row[at + 1]] = seen[row[at + 1]], row[at + 2]
        return said

    def guess(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        return task.roles().of("value").start + rng.integers(task.variables, size=batch.targets.shape)

    assert_expects(task, last_shown, task.references()["last_shown"])
    assert_expects(task, guess, task.chance())


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"variables": 1}, "variables must be at least 2"),
        ({"lines": 0}, "lines must be at least 1"),
        ({"prints": 1.0}, "prints must be above 0 and below 1"),
        ({"prints": 0.001}, "32 lines hardly ever print at 0.001: raise lines or prints"),
        ({"loss": "all"}, "loss must be 'answers' or 'lm'"),
    ],
)
def test_traces_that_ask_nothing_are_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ReplTrace(**dials)
