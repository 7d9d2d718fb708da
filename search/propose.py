"""Proposers: which points of a space to try, and in which order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from search.document import Patch
from search.space import Grid, Space

Point = tuple[Patch, ...]


def count(space: Space) -> int:
    """How many points `grid` gives."""
    if isinstance(space, Grid):
        return math.prod(len(space.axis(path)) for path in space.axes.value)
    return sum(count(part) for part in space.spaces)


def grid(space: Space) -> Iterator[Point]:
    """Every point, in the order in which the space is written."""
    if isinstance(space, Grid):
        yield from product(*(space.axis(path) for path in space.axes.value))
        return
    for part in space.spaces:
        yield from grid(part)
