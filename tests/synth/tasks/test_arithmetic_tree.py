"""Values of prefix expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import ArithmeticTree

Draw = Callable[..., Batch]

SETTINGS = [ArithmeticTree(), ArithmeticTree(operators=3, modulus=5), ArithmeticTree(protocol="mano", operators=6)]


@pytest.mark.parametrize("task", SETTINGS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_recursive_reader_finds_the_value(task: ArithmeticTree, split: str, draw: Draw) -> None:
    batch = draw(task, count=200, split=split)
    roles, names = task.roles(), 2 if task.protocol == "mano" else 1
    sizes = set()

    def read(tokens: list[int]) -> tuple[int, bool]:
        """The value of the expression that comes first, and whether a factor is 0; takes its tokens off."""
        token = tokens.pop(0)
        if roles.name_of(token) == "operand":
            return token - roles.of("operand").start, False
        (first, left), (second, right) = read(tokens), read(tokens)
        which = (token - roles.of("operator").start) // names
        value = (first + second, first - second, first * second)[which] % task.modulus
        return value, left or right or (which == 2 and 0 in (first, second))

    for row, targets, zero in zip(
        batch.inputs.tolist(), batch.targets.tolist(), batch.aux["zero"].tolist(), strict=True
    ):
        size = (row[1] - roles.of("tag").start) // names + 1
        sizes.add(size)
        end = 2 * size + 3
        assert (row[end] - roles.of("ask").start) // names + 1 == size
        assert set(row[end + 1 :]) <= {0}
        tokens = row[2:end]
        value, with_zero = read(tokens)
        assert not tokens
        assert zero == with_zero
        due = [IGNORE] * len(row)
        due[end] = roles.of("operand").start + value
        assert targets == due
    assert sizes == (set(range(1, task.operators + 1)) if split == "train" else {task.operators})


def test_the_first_part_has_any_number_of_operators_as_often(draw: Draw) -> None:
    """Of three: two, one or none; after a first part of none stands an operand."""
    task = ArithmeticTree(operators=3)
    inputs = draw(task, count=9000).inputs
    operand = task.roles().of("operand").start
    assert (inputs[:, 3] >= operand).mean() == pytest.approx(1 / 3, abs=4 * np.sqrt(2 / 9 / 9000))
    assert ((inputs[:, 3] < operand) & (inputs[:, 6] >= operand) & (inputs[:, 4] >= operand)).any()


def test_two_names_are_as_likely(draw: Draw) -> None:
    task = SETTINGS[2]
    inputs = draw(task, count=4000).inputs
    for name in ("begin", "tag", "ask", "operator"):
        first = task.roles().of(name).start
        seen = inputs[(inputs >= first) & (inputs < task.roles().of(name).stop)]
        assert ((seen - first) % 2).mean() == pytest.approx(1 / 2, abs=4 * np.sqrt(0.25 / seen.size))


@pytest.mark.parametrize(("operators", "chance"), [(10, 0.0703), (16, 0.0721)])
def test_chance_is_what_another_program_found(operators: int, chance: float) -> None:
    assert ArithmeticTree(operators=operators).chance() == pytest.approx(chance, abs=0.00005)


@pytest.mark.parametrize("task", SETTINGS[:2])
def test_to_say_zero_scores_chance(task: ArithmeticTree, assert_expects: Any) -> None:
    def zero(_: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        return np.full(batch.targets.shape, task.roles().of("operand").start)

    assert_expects(task, zero, task.chance())


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"operators": 0}, "operators must be at least 1"),
        ({"operators": 2**22}, "lower them"),
        ({"modulus": 9}, "modulus must be a prime"),
    ],
)
def test_impossible_expressions_are_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ArithmeticTree(**dials)
