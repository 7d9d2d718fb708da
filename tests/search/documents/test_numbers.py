"""Numbers in lines are written as a person writes them."""

from __future__ import annotations

import math

import pytest

from recallmap.search.documents.numbers import written


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0018999999, "1.9e-3"),
        (1e-3, "1e-3"),
        (3.16227766e-4, "3.162e-4"),
        (0.01, "0.01"),
        (0.1, "0.1"),
        (0.0, "0"),
        (-0.002, "-2e-3"),
        (2.0, "2"),
        (0.109375, "0.1094"),
        (19584.0, "19,584"),
        (1.5e9, "1.5e9"),
        (1e10, "1e10"),
        (100000.5, "1e5"),
        (math.inf, "inf"),
        (123456, "123456"),
        (True, "true"),
        (None, "null"),
        ("mesa", "mesa"),
    ],
)
def test_a_value_in_few_characters(value: object, said: str) -> None:
    assert written(value) == said
