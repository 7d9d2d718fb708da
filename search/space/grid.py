"""Grids of trials, and unions of grids."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from recallmap.search.documents.nodes import Node, Patch, SpecError
from recallmap.search.space.axis_values import NOWHERE, Point, axis_faults, axis_values


def count(space: Grid | Union) -> int:
    """The number of points that `grid` gives."""
    if isinstance(space, Grid):
        return space.count()
    return sum(count(part) for part in space.spaces)


def grid(space: Grid | Union) -> Iterator[Point]:
    """Every point, in the order in which the space is written."""
    if isinstance(space, Grid):
        yield from space.points()
        return
    for part in space.spaces:
        yield from grid(part)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Every combination of the values of its axes; the first axis varies slowest. No axes: one point, the base trial.

    axes  a list of values by path (`trial.training.lr`, `trial.arch.stack[0].mixer.heads`, `trial` itself). A mapping
          is laid over what stands there, key by key; a mapping of another kind or name replaces it.
          {suite: mad, tier: smoke}, alone or in the list, stands for the settings of that tier. {every: mixer} in it
          stands for every mixer there is; {every: mixer, as: ...} for a document with its kind wherever "*" stands,
          and {every: mixer, as: ..., having: {heads: 2}} gives these parameters to mappings of that kind, if it has them. Some
          mixers alone: {every: [gla, mesa]}, or {every: mixer, but: [atlas]}.
    """

    kind: Literal["grid"] = "grid"
    axes: Node = field(default_factory=lambda: Node({}, NOWHERE))

    def __post_init__(self) -> None:
        faults = axis_faults(self.axes, "axes")
        if faults:
            raise SpecError(faults)

    def axis(self, path: str) -> tuple[Patch, ...]:
        """The values of one axis."""
        at = self.axes.keys[path]
        return tuple(Patch(path, value, at) for value in axis_values(path, self.axes.value[path]))

    def count(self) -> int:
        """The number of points."""
        return math.prod(len(self.axis(path)) for path in self.axes.value)

    def points(self) -> Iterator[Point]:
        """Every point, in order."""
        return product(*(self.axis(path) for path in self.axes.value))


@dataclass(frozen=True, kw_only=True)
class Union:
    """The points of several spaces, one space after the other."""

    kind: Literal["union"] = "union"
    spaces: tuple[Grid | Union, ...]

    def __post_init__(self) -> None:
        if not self.spaces:
            raise ValueError("spaces must hold at least one space, got none")
