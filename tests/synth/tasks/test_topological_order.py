"""Ancestors of a node, parents before children."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import TopologicalOrder

Draw = Callable[..., Batch]

Word = tuple[int, ...]

SMALL = TopologicalOrder(nodes=8)
BREVO = TopologicalOrder(protocol="brevo", drawn="brevo", nodes=12)
SPELLED = TopologicalOrder(nodes=8, symbols=3, min_tokens=1, max_tokens=3)
BREVO_2 = TopologicalOrder(protocol="brevo", drawn="brevo", nodes=12, symbols=4, min_tokens=2, max_tokens=4)


def words(task: TopologicalOrder, tokens: list[int]) -> list[Word]:
    """The names that stand in a row of tokens."""
    found: list[Word] = []
    spelled: Word = ()
    roles = task.roles()
    inner, last = (range(0), roles.of("node")) if task.symbols is None else (roles.of("inner"), roles.of("final"))
    for token in tokens:
        spelled += (token,)
        if token in last:
            found, spelled = [*found, spelled], ()
        else:
            assert token in inner
    assert not spelled
    return found


def read(task: TopologicalOrder, row: list[int]) -> tuple[dict[Word, set[Word]], Word, list[Word], int]:
    """Parents of every node of an edge, the node asked for, its answer, and the position that asks for the first of it."""
    roles = task.roles()
    begin, ask, answer, end = (roles.of(name).start for name in ("begin", "ask", "answer", "end"))
    assert row[0] == begin
    asks, at, stop = row.index(ask), row.index(answer), row.index(end)
    parents: dict[Word, set[Word]] = {}
    told = words(task, row[1:asks])
    for parent, child in zip(told[::2], told[1::2], strict=True):
        assert parent not in parents.setdefault(child, set())
        parents[child].add(parent)
        parents.setdefault(parent, set())
    (asked,) = words(task, row[asks + 1 : at])
    assert set(row[stop + 1 :]) <= {0}
    return parents, asked, words(task, row[at + 1 : stop]), at


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("task", [SMALL, TopologicalOrder(names=30), BREVO, SPELLED, BREVO_2])
def test_a_slow_reader_finds_all_ancestors_after_their_parents_and_what_else_is_legal(
    task: TopologicalOrder, split: str, draw: Draw
) -> None:
    batch = draw(task, count=40, split=split)
    sizes = set()
    for n, (row, targets) in enumerate(zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True)):
        parents, asked, answer, at = read(task, row)
        sizes.add(len(parents))
        assert max(map(len, parents.values())) <= 4 >= max(Counter(p for own in parents.values() for p in own).values())
        related, new = {asked}, {asked}
        while new:
            new = {parent for node in new for parent in parents[node]} - related
            related |= new
        assert sorted(answer) == sorted(related)
        for place in range(len(answer)):
            assert parents[answer[place]] <= set(answer[:place])
        due = [IGNORE] * len(row)
        due[at : at + sum(map(len, answer))] = sum(answer, ())
        assert targets == due
        own = batch.rows(slice(n, n + 1))
        for node in ((0,), (task.roles().of("end").start,), *parents):
            said, legal, here = np.zeros_like(own.targets), [], at
            for place, shown in enumerate(answer):
                may = {v for v in related - {*answer[:place]} if parents[v] <= {*answer[:place]}}
                tokens = [node[token] if token < len(node) else 0 for token in range(len(shown))]
                said[0, here : here + len(shown)], here = tokens, here + len(shown)
                legal.append(
                    all(any((*shown[:back], token) == v[: back + 1] for v in may) for back, token in enumerate(tokens))
                )
            assert task.score(own, said)["legal"] == pytest.approx(np.mean(legal))
    assert max(sizes) <= task.nodes
    assert (len(sizes) > 3) == (task.drawn == "brevo" and split == "train")


def test_a_token_that_begins_no_legal_word_makes_its_word_illegal_and_the_other_tokens_are_read_as_shown(
    draw: Draw,
) -> None:
    batch = draw(SPELLED)
    right = SPELLED.score(batch, batch.targets)
    assert right["legal"] == right["exact_match"] == right["legal/place_up_to=0"] == 1
    choices = (batch.targets >= SPELLED.roles().of("final").start).sum()
    row = 5
    said = batch.targets.copy()
    said[row, np.flatnonzero(batch.targets[row] != IGNORE)[0]] = 0
    wrong = SPELLED.score(batch, said)
    assert wrong["legal"] == pytest.approx(1 - 1 / choices)
    assert wrong["legal/place_up_to=0"] == wrong["exact_match"] == 1 - 1 / len(batch)


def test_the_public_generators_graphs_have_the_published_sizes(draw: Draw) -> None:
    """Of 110 nodes: 239 edges, 38 nodes in an answer, 520 tokens."""
    batch = draw(TopologicalOrder(protocol="brevo", drawn="brevo", nodes=110), count=400)
    answers = (batch.targets != IGNORE).sum(axis=1)
    tokens = (batch.inputs > 0).sum(axis=1) - 1  # the last token is only a target in the public code
    for found, published in ((answers, 38), (tokens, 520), ((tokens - 3 - answers) / 2, 239)):
        error = found.std(ddof=1) / np.sqrt(len(batch))
        assert found.mean() == pytest.approx(published, abs=4 * error + 0.5)


@pytest.mark.parametrize(
    ("nodes", "split", "tokens", "answers", "shown", "short"),
    [
        (30, "train", 188.5, 8.60, 13.10, 3.92),
        (30, "test", 448.7, 16.36, 29.965, 8.19),
        (50, "train", 290.5, 11.49, 19.68, 5.45),
        (50, "test", 757.9, 22.92, 49.948, 11.75),
    ],
)
def test_the_public_generators_words_have_the_lengths_that_it_draws(
    nodes: int, split: str, tokens: float, answers: float, shown: float, short: float, draw: Draw
) -> None:
    """Means over 6,000 sequences that the public code drew: tokens, nodes of an answer, nodes of an edge, and names of two
    tokens, of which there are 16."""
    task = TopologicalOrder(protocol="brevo", drawn="brevo", nodes=nodes, symbols=4, min_tokens=2, max_tokens=4)
    batch = draw(task, 1500, split)
    rows = batch.inputs.tolist()
    spelled = [{*words(task, row[1 : row.index(task.roles().of("ask").start)])} for row in rows]
    for found, published in (
        ([np.count_nonzero(row) for row in rows], tokens),
        ((batch.targets >= task.roles().of("final").start).sum(axis=1), answers),
        ([len(own) for own in spelled], shown),
        ([sum(len(word) == 2 for word in own) for own in spelled], short),
    ):
        error = np.std(found, ddof=1) / np.sqrt(len(rows)) * np.sqrt(1 + 1500 / 6000)
        assert np.mean(found) == pytest.approx(published, abs=4 * error + 0.005)


def test_the_order_shown_takes_one_of_the_nodes_whose_children_are_taken_each_as_likely(draw: Draw) -> None:
    """Of the node asked for, its parents a and b, and b's parent c, a comes last but one in half of the rows, where taking each
    right order as often would make it a third."""
    task = TopologicalOrder(nodes=6)
    batch = draw(task, count=30_000)
    late = []
    for row in batch.inputs[(batch.targets != IGNORE).sum(axis=1) == 4].tolist():
        parents, asked, answer, _ = read(task, row)
        counts = sorted(len(parents[node]) for node in answer)
        if (
            counts == [0, 0, 1, 2]
            and len(parents[asked]) == 2
            and {len(parents[node]) for node in parents[asked]} == {0, 1}
        ):
            late.append(not parents[answer[2]])
    assert len(late) > 200
    assert np.mean(late) == pytest.approx(1 / 2, abs=4 * np.sqrt(0.25 / len(late)))


@pytest.mark.parametrize("task", [SMALL, SPELLED])
def test_a_guess_among_nodes_not_yet_named_whose_names_begin_as_shown_scores_chance(
    task: TopologicalOrder, assert_expects: Any
) -> None:
    def guess(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        said = np.zeros_like(batch.targets)
        for out, row in zip(said, batch.inputs.tolist(), strict=True):
            parents, _, answer, at = read(task, row)
            for place, shown in enumerate(answer):
                for back in range(len(shown)):
                    free = sorted(v for v in {*parents} - {*answer[:place]} if v[:back] == shown[:back])
                    out[at] = free[rng.integers(len(free))][back]
                    at += 1
        return said

    assert_expects(task, guess, task.chance(), sets=16, count=64)


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"nodes": 3}, "nodes must be at least 4"),
        ({"names": 19}, "names must be at least nodes, 20"),
        ({"drawn": "depo"}, "drawn must be 'fixed' or 'brevo'"),
        ({"protocol": "brevo"}, "protocol 'brevo' needs drawn 'brevo', got 'fixed': use protocol 'repaired'"),
        ({"max_tokens": 2}, "names of 1 to 2 tokens need symbols: give them, or leave out"),
        ({"symbols": 4, "names": 30}, "leave out names or symbols"),
        (
            {"symbols": 4, "max_tokens": 2},
            "4 symbols make 20 words of 1 to 2 tokens, of which a graph can have 10, got nodes 20",
        ),
        ({"symbols": 0}, "symbols must be at least 1"),
        ({"nodes": 2**20}, "positions, at most 4,194,304: lower them"),
    ],
)
def test_impossible_graphs_are_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TopologicalOrder(**dials)
