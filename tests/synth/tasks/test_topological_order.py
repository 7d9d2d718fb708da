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

SMALL = TopologicalOrder(nodes=8)
BREVO = TopologicalOrder(protocol="brevo", drawn="brevo", nodes=12)


def read(task: TopologicalOrder, row: list[int]) -> tuple[dict[int, set[int]], int, list[int], int]:
    """Parents of every node of an edge, the node asked for, its answer, and the position that asks for the first of it."""
    roles = task.roles()
    begin, ask, answer, end = (roles.of(name).start for name in ("begin", "ask", "answer", "end"))
    assert row[0] == begin
    at = row.index(ask)
    parents: dict[int, set[int]] = {}
    for parent, child in zip(row[1:at:2], row[2:at:2], strict=True):
        assert parent not in parents.setdefault(child, set())
        parents[child].add(parent)
        parents.setdefault(parent, set())
    assert row[at + 2] == answer
    stop = row.index(end)
    assert set(row[stop + 1 :]) <= {0}
    return parents, row[at + 1], row[at + 3 : stop], at + 2


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("task", [SMALL, TopologicalOrder(names=30), BREVO])
def test_a_slow_reader_finds_all_ancestors_after_their_parents_and_what_else_is_legal(
    task: TopologicalOrder, split: str, draw: Draw
) -> None:
    batch = draw(task, count=40, split=split)
    first = task.roles().of("node").start
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
        due[at : at + len(answer)] = answer
        assert targets == due
        own = batch.rows(slice(n, n + 1))
        for node in (*range(first), *parents):
            said = np.full(own.targets.shape, node)
            legal = [
                node in related - set(answer[:place]) and parents[node] <= set(answer[:place])
                for place in range(len(answer))
            ]
            assert task.score(own, said)["legal"] == pytest.approx(np.mean(legal))
    assert max(sizes) <= task.nodes
    assert (len(sizes) > 3) == (task is BREVO and split == "train")


def test_the_public_generators_graphs_have_the_published_sizes(draw: Draw) -> None:
    """Of 110 nodes: 239 edges, 38 nodes in an answer, 520 tokens."""
    batch = draw(TopologicalOrder(protocol="brevo", drawn="brevo", nodes=110), count=400)
    answers = (batch.targets != IGNORE).sum(axis=1)
    tokens = (batch.inputs > 0).sum(axis=1) - 1  # the last token is only a target in the public code
    for found, published in ((answers, 38), (tokens, 520), ((tokens - 3 - answers) / 2, 239)):
        error = found.std(ddof=1) / np.sqrt(len(batch))
        assert found.mean() == pytest.approx(published, abs=4 * error + 0.5)


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


def test_a_guess_among_nodes_not_yet_named_scores_chance(assert_expects: Any) -> None:
    def guess(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        said = np.zeros_like(batch.targets)
        for out, row in zip(said, batch.inputs.tolist(), strict=True):
            parents, _, answer, at = read(SMALL, row)
            for place in range(len(answer)):
                out[at + place] = rng.choice(sorted({*parents} - {*answer[:place]}))
        return said

    assert_expects(SMALL, guess, SMALL.chance(), sets=16, count=64)


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"nodes": 3}, "nodes must be at least 4"),
        ({"names": 19}, "names must be at least nodes, 20"),
        ({"drawn": "depo"}, "drawn must be 'fixed' or 'brevo'"),
        ({"protocol": "brevo"}, "protocol 'brevo' needs drawn 'brevo', got 'fixed': use protocol 'repaired'"),
        ({"nodes": 2**20}, "positions, at most 4,194,304: lower them"),
    ],
)
def test_impossible_graphs_are_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TopologicalOrder(**dials)
