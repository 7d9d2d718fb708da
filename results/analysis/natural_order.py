"""Sort keys that put numbers in their order: cg_steps=2 before cg_steps=10."""

from __future__ import annotations

import math
import re
from typing import Any

_NUMBER = re.compile(r"((?<![\w.])\d+(?:\.\d+)?(?:e[+-]\d+)?(?![\w.]))")


def by_number(name: str) -> list[tuple[float, str]]:
    """A key to sort names by: numbers that stand alone by their size and before words, words by their letters."""
    return [(float(word), "") if _NUMBER.fullmatch(word) else (math.inf, word) for word in _NUMBER.split(name) if word]


def by_size(value: Any) -> tuple[bool, float, str]:
    """A key to sort values of a parameter by: numbers first, by their size, then the rest by their text."""
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)
