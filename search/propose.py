"""Proposers: which points of a space to try, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from search.document import Patch
from search.space import Grid, Space

Point = tuple[Patch, ...]


def grid(space: Space) -> Iterator[Point]:
    """Every point, in the order in which the space is written."""
    if isinstance(space, Grid):
        yield from product(*(space.axis(path) for path in space.axes.value))
        return
    for part in space.spaces:
        yield from grid(part)
