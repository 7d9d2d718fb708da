"""Hops over a cycle that is told in context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import Hops

Draw = Callable[..., Batch]

SMALL = Hops(nodes=8, hops=3, queries=4, symbols=16)
RAGGED = Hops(nodes=12, hops=5, queries=6, symbols=4, min_tokens=1, max_tokens=3)
DEPO = replace(RAGGED, protocol="depo", drawn="depo")
DEPO_1 = {"hops": 8, "symbols": 50, "min_tokens": 1, "max_tokens": 2}
DEPO_2 = {"hops": 16, "symbols": 3, "min_tokens": 5, "max_tokens": 7}


def published(nodes: int, **dials: Any) -> Hops:
    return Hops(protocol="depo", drawn="depo", nodes=nodes, queries=10, **dials)


def read(task: Hops, row: list[int]) -> tuple[dict[Any, Any], list[tuple[int, Any, Any, int]]]:
    """The facts of a row, and its queries: steps, start, answer, and the position of the answer's first token."""
    roles = task.roles()
    assert roles.name_of(row[0]) == "begin"
    rest, last = [(roles.name_of(token), token, at) for at, token in enumerate(row)][1:], None
    while rest and rest[-1][0] == "pad":
        rest.pop()
    facts, queries = {}, []

    def word() -> tuple[int, ...]:
        spelled, role = [], "inner"
        while role == "inner":
            role, token, _ = rest.pop(0)
            assert role in ("inner", "final")
            spelled.append(token)
        return tuple(spelled)

    while rest[0][0] != "hop":
        last = word()
        assert last not in facts
        facts[last] = word()
    while rest:
        role, token, _ = rest.pop(0)
        assert role == "hop"
        start = word()
        assert rest.pop(0)[0] == "mark"
        at = rest[0][2]
        queries.append((token - roles.of("hop").start + 1, start, word(), at))
    return facts, queries


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("task", [SMALL, RAGGED, DEPO, replace(DEPO, protocol="repaired")])
def test_a_slow_reader_finds_every_answer_by_walking_the_cycle(task: Hops, split: str, draw: Draw) -> None:
    batch = draw(task, split=split)
    sources = task.sources(batch)
    for row, targets, told in zip(batch.inputs.tolist(), batch.targets.tolist(), sources.tolist(), strict=True):
        facts, queries = read(task, row)
        assert sorted(facts) == sorted(facts.values())
        assert len(queries) == min(task.queries, len(facts)) == len({start for _, start, _, _ in queries})
        walk = [min(facts)]
        while facts[walk[-1]] != walk[0]:
            walk.append(facts[walk[-1]])
        assert len(walk) == len(facts) <= task.nodes
        assert len(facts) == task.nodes or (task.drawn == "depo" and split == "train")
        due = [IGNORE] * len(row)
        for steps, start, answer, at in queries:
            assert answer == walk[(walk.index(start) + steps) % len(walk)]
            assert steps in (task.tested if split == "test" else range(1, task.hops + 1))
            assert task.protocol == "depo" or answer != start
            due[at - 1 : at - 1 + len(answer)] = answer
            for back, source in enumerate(told[at - 1 : at - 1 + len(answer)]):
                assert row[source] == answer[back]
                before = row[: source - back]  # ends in the word whose fact it is
                before = before[len(before) - len(walk[walk.index(answer) - 1]) :]
                assert tuple(before) == walk[walk.index(answer) - 1]
        assert targets == due


def mean_and_error(values: NDArray[Any]) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(values.size))


@pytest.mark.parametrize(
    ("nodes", "dials", "size", "train", "test"),
    [
        (225, DEPO_1, 70, 284, 859),
        (375, DEPO_1, 110, 429, 1458),
        (75, DEPO_2, 27.5, 451, 1043),
        (125, DEPO_2, 42, 629, 1647),
    ],
)
def test_the_published_draw_has_the_lengths_of_the_public_generator(
    nodes: int, dials: dict[str, int], size: float, train: float, test: float, draw: Draw
) -> None:
    """Means over sequences drawn by the public code, to the digits that were noted."""
    task = published(nodes, **dials)
    tokens, error = mean_and_error((draw(task, 2000, "train").inputs > 0).sum(axis=1))
    assert abs(tokens - train) < 6 * error + 0.5
    tokens, error = mean_and_error((draw(task, 100).inputs > 0).sum(axis=1))
    assert abs(tokens - test) < 6 * error + 0.5
    words, error = mean_and_error(task._sizes(np.random.default_rng(0), 2000, "train"))
    assert abs(words - size) < 6 * error + 0.5


def test_short_words_run_out_in_the_published_draw(draw: Draw) -> None:
    """49.95 of the 50 words of one token occur in a cycle of 375."""
    task = published(375, **DEPO_1)
    found = [sum(len(word) == 1 for word in read(task, row)[0]) for row in draw(task, 60).inputs.tolist()]
    mean, error = mean_and_error(np.array(found))
    assert abs(mean - 49.95) < 6 * error + 0.005


@pytest.mark.parametrize(("nodes", "dials", "share"), [(375, DEPO_1, 0.007), (125, DEPO_2, 0.026)])
def test_published_queries_may_go_round_the_cycle(nodes: int, dials: dict[str, int], share: float) -> None:
    rng, task = np.random.default_rng(0), published(nodes, **dials)
    sizes = task._sizes(rng, 20_000, "train")
    asked = np.arange(10) < sizes[:, None]
    mean, error = mean_and_error((task._steps(rng, sizes, "train") % sizes[:, None] == 0)[asked])
    assert abs(mean - share) < 6 * error + 0.0005
    assert (replace(task, protocol="repaired")._steps(rng, sizes, "train") < sizes[:, None]).all()


def answered(pick: Callable[[np.random.Generator, dict[Any, Any], Any], Any], task: Hops) -> Callable[..., Any]:
    """A player who answers every query by a word of the cycle."""

    def play(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        said = np.zeros_like(batch.targets)
        for guess, row in zip(said, batch.inputs.tolist(), strict=True):
            facts, queries = read(task, row)
            for _, start, _, at in queries:
                word = pick(rng, facts, start)
                guess[at - 1 : at - 1 + len(word)] = word[: len(guess) - at + 1]
        return said

    return play


@pytest.mark.parametrize("task", [SMALL, RAGGED])
def test_the_next_word_and_a_guess_score_their_lines(task: Hops, assert_expects: Any) -> None:
    following = answered(lambda rng, facts, start: facts[start], task)
    assert_expects(task, following, task.references()["one_hop"], sets=16, count=64)

    def guess(rng: np.random.Generator, facts: dict[Any, Any], start: Any) -> Any:
        return list(facts)[(list(facts).index(start) + rng.integers(1, len(facts))) % len(facts)]

    assert_expects(task, answered(guess, task), task.chance(), sets=16, count=64)


def test_the_line_of_one_hop_is_one_in_the_tested_steps() -> None:
    assert published(375, **DEPO_1).references() == {"one_hop": 0.25}
    assert published(125, **DEPO_2).references() == {"one_hop": 0.2}
    assert Hops(nodes=64, hops=32).tested == (1, 2, 4, 8, 16, 24, 32)


def test_a_word_is_right_only_with_all_its_tokens(draw: Draw) -> None:
    batch = draw(RAGGED)
    longest = (batch.targets[:, 1:] != IGNORE) & (batch.targets[:, :-1] != IGNORE)  # not the first token of an answer
    wrong = batch.targets.copy()
    wrong[:, 1:][longest] = 0
    scores = RAGGED.score(batch, wrong)
    assert scores["word_accuracy"] == pytest.approx(1 / 3, abs=0.15)
    assert scores["word_accuracy"] < scores["accuracy"]
    assert {name for name in scores if name.startswith("word")} == {
        "word_accuracy",
        *(f"word_accuracy/hops={k}" for k in (1, 2, 4)),
    }


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"nodes": 4}, "hops must be below nodes, 4"),
        ({"nodes": 2, "hops": 1}, "nodes must be at least 3, got 2"),
        ({"queries": 33}, "queries must be at most nodes, 32"),
        ({"symbols": 31}, "raise symbols or max_tokens, or lower nodes"),
        ({"symbols": 5, "max_tokens": 2}, "of which a cycle can have 15, got nodes 32"),
        ({"min_tokens": 2}, "max_tokens must be at least min_tokens, 2, got 1"),
        ({"max_tokens": 10**6}, "lower symbols or max_tokens"),
        ({"drawn": "mixed"}, "drawn must be 'fixed' or 'depo'"),
        ({"protocol": "depo"}, "protocol 'depo' needs drawn 'depo', got 'fixed'"),
        ({"hops": 0}, "hops must be at least 1, got 0"),
        ({"nodes": 2**21, "symbols": 2**20, "max_tokens": 1}, "lower nodes"),
    ],
)
def test_impossible_cycles_are_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Hops(**dials)
