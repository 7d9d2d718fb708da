"""Variables that are swapped and printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import permutations
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


def test_an_element_moves_all_values_at_once_and_is_named_as_in_lexicographic_order(draw: Draw) -> None:
    task = ReplTrace(variables=3, lines=12, moves="element")
    batch = draw(task, count=100)
    roles = task.roles()
    first, elements = roles.of("variable").start, roles.of("element")
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    seen = set()
    for row, targets, since in zip(
        batch.inputs.tolist(), batch.targets.tolist(), task.slices(batch)["swaps_since"].tolist(), strict=True
    ):
        held, touched = row[2:12:4], [0, 0, 0]
        for at in range(12, len(row), 4):
            word, second, third, _ = row[at : at + 4]
            if word == roles.of("print").start:
                assert third == held[second - first] == targets[at + 1]
                moved = touched[second - first]
                assert since[at + 1] == (1 << max(moved - 1, 0).bit_length() if moved else 0)
                touched[second - first] = 0
                continue
            assert (word, third) == (roles.of("move").start, roles.of("end").start)
            order = orders[second - elements.start]
            seen.add(order)
            held = [held[place] for place in order]
            touched = [count + (place != at) for at, (count, place) in enumerate(zip(touched, order, strict=True))]
    assert len(seen) == len(elements) == 6


@pytest.mark.parametrize(
    "task",
    [ReplTrace(variables=3, lines=8, hidden=0.3), ReplTrace(variables=3, lines=8, hidden=0.4, moves="element")],
    ids=["swap", "element"],
)
def test_one_who_follows_every_state_that_hidden_moves_leave_scores_the_ceiling(
    task: ReplTrace, assert_expects: Any
) -> None:
    elements = list(permutations(range(3)))

    def follow(_: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        said = np.zeros_like(batch.targets)
        for guess, row in zip(said, batch.inputs.tolist(), strict=True):
            states = {tuple(row[2:12:4]): 1.0}
            for at in range(12, len(row), 4):
                word, second, third, _ = row[at : at + 4]
                variable, after = second - 4, Counter[tuple[int, ...]]()
                if word == 1:
                    likely = Counter[int]()
                    for state, share in states.items():
                        likely[state[variable]] += share  # type: ignore[assignment]
                    guess[at + 1] = likely.most_common(1)[0][0]
                    states = {state: share for state, share in states.items() if state[variable] == third}
                    continue
                order = list(range(3))
                if task.moves == "element":
                    order = list(elements[second - 10])
                else:
                    order[variable], order[third - 4] = third - 4, variable
                for state, share in states.items():
                    after[tuple(state[place] for place in order)] += share * (1 - task.hidden)  # type: ignore[assignment]
                    after[state] += share * task.hidden  # type: ignore[assignment]
                states = dict(after)
        return said

    assert task.references()["last_shown"] < task.ceiling() < 1
    assert_expects(task, follow, task.ceiling())


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
        ({"moves": "rotate"}, "moves must be 'swap' or 'element'"),
        ({"moves": "element", "variables": 7}, "variables must be at most 6 where every permutation is a token"),
        ({"hidden": 1.0}, "hidden must be at least 0 and below 1"),
        ({"hidden": 0.1}, "variables must be at most 4 where moves are hidden"),
        ({"loss": "all"}, "loss must be 'answers' or 'lm'"),
    ],
)
def test_traces_that_ask_nothing_are_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ReplTrace(**dials)
