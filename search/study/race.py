"""The rule of a race, by which a grid with one choice a task trains less than all of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Race:
    """Cells of hyper-parameters race on some settings of each task, and those near the best alone go on to the others.

    settings  of a task on which all cells are trained, evenly spaced in the order of the grid: the first, the last, ...
    within    what a cell's mean validation score may lack of the best and still go on
    most      the number of cells that go on, at most: the best of those near the best, of equals the first in the grid; None:
              all of them

    Three settings and 0.05 were chosen before the rule was used, on the 21 rows of MAD's memorization whose eight cells were on
    record for all six settings: they kept 2.3 cells, and the winner of each row. Trained again, 22 rows keep 2.5 cells, and
    two lose their winner: mLSTM a point of mean validation score with it, Mesa from large weights four.

    Where a task is learned with every cell, all of them are near the best, which costs as much as no race. Three at most were
    tried before they were used, on records of one seed: in one of seven rows of in-context recall they cost 0.03 points of
    mean validation score, in one of seven of compression 0.45, on memorization nothing.
    """

    settings: int = 3
    within: float = 0.05
    most: int | None = None

    def __post_init__(self) -> None:
        if self.settings < 1:
            raise ValueError(f"settings must be at least 1, got {self.settings}")
        if not 0 <= self.within < float("inf"):
            raise ValueError(f"within must be at least 0, got {self.within}")
        if self.most is not None and self.most < 1:
            raise ValueError(f"most must be at least 1, got {self.most}")

    def raced(self, count: int) -> frozenset[int]:
        """The places of the settings on which all cells are trained, of so many."""
        if self.settings >= count or count == 1:
            return frozenset(range(count))
        if self.settings == 1:
            return frozenset({0})
        return frozenset(round(at * (count - 1) / (self.settings - 1)) for at in range(self.settings))
