"""Products of group elements."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks.group_word import GroupWord

Draw = Callable[..., Batch]

ORDERS = {"S3": 6, "S4": 24, "S5": 120, "A4": 12, "A5": 60, "Z60": 60, "A4xZ5": 60, "Z2xS3": 12}


def commutator_series(table: Any) -> list[int]:
    """Orders of the group, its commutator subgroup, the commutator subgroup of that, ... until it stays the same."""
    inverse = (table == 0).argmax(axis=1)
    group, orders = np.arange(len(table)), [len(table)]
    while True:
        a, b = group[:, None], group
        found = set(table[table[a, b], inverse[table[b, a]]].ravel().tolist())
        while len(more := found | set(table[np.ix_(list(found), list(found))].ravel().tolist())) > len(found):
            found = more
        if len(found) == len(group):
            return orders
        group = np.array(sorted(found))
        orders.append(len(group))


@pytest.mark.parametrize(("group", "order"), ORDERS.items())
def test_tables_are_groups(group: str, order: int) -> None:
    table = GroupWord(group=group).table
    elements = np.arange(order)
    assert table.shape == (order, order)
    assert (table[0] == elements).all()
    assert (table[:, 0] == elements).all()
    assert (np.sort(table, axis=0) == elements[:, None]).all()
    assert (np.sort(table, axis=1) == elements).all()
    a, b, c = np.random.default_rng(0).integers(order, size=(3, 10_000))
    assert (table[table[a, b], c] == table[a, table[b, c]]).all()


def test_groups_are_as_hard_as_their_names_say() -> None:
    series = {
        group: commutator_series(GroupWord(group=group).table) for group in ("Z60", "A4xZ5", "A5", "S3", "S4", "S5")
    }
    assert series["Z60"] == [60, 1]
    assert series["A4xZ5"] == [60, 4, 1]
    assert series["S3"] == [6, 3, 1]
    assert series["S4"] == [24, 12, 4, 1]
    assert series["A5"] == [60]  # never ends at one: not solvable
    assert series["S5"] == [120, 60]


@pytest.mark.parametrize("group", ["S3", "A5", "Z60", "A4xZ5"])
def test_the_answer_is_the_product_so_far(group: str, draw: Draw) -> None:
    task = GroupWord(group=group, length=20)
    batch = draw(task, count=32)
    for row, answers in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        product = 0
        for element, answer in zip(row, answers, strict=True):
            product = int(task.table[product, element])
            assert answer == product


def test_products_of_permutations_are_compositions(draw: Draw) -> None:
    every = list(permutations(range(4)))
    batch = draw(GroupWord(group="S4", length=6), count=50)
    for row, answers in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        composed = tuple(range(4))
        for element, answer in zip(row, answers, strict=True):
            composed = tuple(composed[every[element][i]] for i in range(4))
            assert every[answer] == composed


def test_elements_and_products_are_uniform(draw: Draw) -> None:
    batch = draw(GroupWord(group="A5"), count=4000)
    for tokens in (batch.inputs, batch.targets):
        assert np.bincount(tokens.ravel()) / tokens.size == pytest.approx(np.full(60, 1 / 60), abs=0.002)


@pytest.mark.parametrize(("moved", "inputs"), [(2, 11), (3, 31), (4, 76), (5, 120)])
def test_inputs_may_move_few_points_while_products_reach_the_whole_group(moved: int, inputs: int, draw: Draw) -> None:
    batch = draw(GroupWord(group="S5", moved=moved), count=2000)
    assert len(np.unique(batch.inputs)) == inputs
    assert 0 in batch.inputs
    assert len(np.unique(batch.targets)) == 120


@pytest.mark.parametrize("filler", ["pause", "repeat"])
def test_an_element_may_have_several_tokens_and_is_asked_at_its_last(filler: Any, draw: Draw) -> None:
    task = GroupWord(length=24, tokens_per_element=3, filler=filler)
    batch, plain = draw(task), draw(GroupWord(length=8))
    assert (batch.inputs[:, ::3] == plain.inputs).all()
    assert (batch.targets[:, 2::3] == plain.targets).all()
    assert (batch.targets.reshape(-1, 8, 3)[:, :, :2] == IGNORE).all()
    rest = batch.inputs.reshape(-1, 8, 3)[:, :, 1:]
    expected = batch.inputs[:, ::3, None] if filler == "repeat" else task.roles().of("pause").start
    assert (rest == expected).all()


def test_word_problems_begin_with_a_start_token_that_is_its_own_answer(draw: Draw) -> None:
    task, plain = GroupWord(protocol="word-problem", group="Z60"), GroupWord(group="Z60")
    batch = draw(task)
    start = task.roles().of("start").start
    assert batch.inputs.shape == (64, 33)
    assert set(batch.inputs[:, 0].tolist()) == set(batch.targets[:, 0].tolist()) == {start}
    assert np.isin(batch.inputs[:, 1:], plain.answers).all()
    assert (np.cumsum(batch.inputs[:, 1:], axis=1) % 60 == batch.targets[:, 1:]).all()
    assert task.chance() == pytest.approx((1 + 32 / 60) / 33)
    early = np.where(np.arange(33) <= 16, batch.targets, -1)
    assert [task.score(batch, early)[f"accuracy/length={edge}"] for edge in (16, 40)] == [1.0, 0.0]
    assert task.score(batch, early)["exact_match/length=16"] == 1.0


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"group": "D4"}, "group must be like S5, A5, Z60"),
        ({"group": "A4x"}, "group must be like S5, A5, Z60"),
        ({"group": "S7"}, "group must have 2 to 720 elements, S7 has 5040"),
        ({"group": "S99"}, "S99 has 99! elements"),
        ({"group": "Z1"}, "group must have 2 to 720 elements"),
        ({"group": "Z60", "moved": 2}, "leave moved out"),
        ({"group": "A5", "moved": 2}, "only the identity of A5 moves at most 2 points"),
        ({"tokens_per_element": 0}, "tokens_per_element must be at least 1"),
        ({"filler": "none"}, "filler must be"),
    ],
)
def test_impossible_dials_are_refused(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GroupWord(**dials)


def test_the_bits_are_the_ones_we_know(digest: Callable[..., str]) -> None:
    assert [digest(task) for task in (GroupWord(), GroupWord(group="S5", moved=2))] == [
        "67c4d157e2ab772f",
        "0d78e15780fa9e3f",
    ]
