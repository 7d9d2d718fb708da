"""How far the cohorts under way are, when each will end, and which trial is the best so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from recallmap.results.record import Record
from recallmap.results.score_tables.table import more_is_better
from recallmap.search.engines.plan import Report
from recallmap.search.training.outcome import Progress


class Pace:
    """The last progress of each cohort under way, by its number, and the seconds that it still needs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.progress: dict[int, Progress] = {}
        self._first: dict[int, tuple[float, int]] = {}  # time and step of the first progress
        self._last: dict[int, float] = {}
        self._ended: dict[int, int] = {}  # trials that have ended, of a cohort under way

    def hear(self, report: Report) -> None:
        """Take a report in."""
        if report.progress is not None:
            self.progress[report.cohort] = report.progress
            if not report.progress.resumed:  # what is compiled comes after this one
                self._first.setdefault(report.cohort, (self.clock(), report.progress.step))
            self._last[report.cohort] = self.clock()
            self._ended[report.cohort] = self._ended.get(report.cohort, 0) + len(report.progress.ended)
        if report.records:
            for known in (self.progress, self._first, self._last, self._ended):
                known.pop(report.cohort, None)

    def running(self, report: Report) -> int:
        """Trials that train now."""
        return sum(len(work.specs) - self._ended.get(work.number, 0) for work in report.under_way)

    def left(self, cohort: int) -> float | None:
        """Seconds until a cohort ends, by its steps since its first progress: what is compiled before does not count. None
        before the second."""
        progress, first = self.progress.get(cohort), self._first.get(cohort)
        if progress is None or first is None or progress.step <= first[1]:
            return None
        each = (self._last[cohort] - first[0]) / (progress.step - first[1])
        return max(0.0, (progress.steps - progress.step) * each - (self.clock() - self._last[cohort]))


def best_of(one: Record | None, other: Record) -> Record | None:
    """The record that is nearer to its task's ceiling, from chance on; the first of equal ones. A failed trial has no score,
    and a score of which less is better is not compared with others."""
    if other.status != "done" or not more_is_better(other.metric) or not math.isfinite(_level(other)):
        return one
    return other if one is None or _level(other) > _level(one) else one


def _level(record: Record) -> float:
    """A score from 0, for guessing, to 1, for an oracle."""
    span = record.ceiling - record.chance
    return (record.scores.get(record.metric, math.nan) - record.chance) / span if span > 0 else math.nan
