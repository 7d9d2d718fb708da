"""Columns of score tables, and the records that belong to each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recallmap.results.analysis.averages import mean
from recallmap.results.analysis.confidence import deviation, gap_between_peaks, mean_interval
from recallmap.results.analysis.measures import Measure, edge_of, trait
from recallmap.results.analysis.published_figures import Column, Published, PublishedTable, Row
from recallmap.results.score_tables.table import MAD, Cell


class Sheet:
    """Measures laid out in columns, with the published tables that they are compared with."""

    def __init__(self, found: list[Measure], columns: list[Column], theirs: list[PublishedTable]) -> None:
        self.found = found
        self.columns = columns
        self.theirs = theirs
        self.parts = [column for column in columns if not column.mean]
        self._settings = {column.name: {m.setting: m for m in _of(found, column)} for column in self.parts}

    def settings(self, column: Column) -> dict[str, Measure]:
        """The settings that a column averages, with one measure of each."""
        return self._settings[column.name]

    def cell(self, own: list[Measure], column: Column) -> Cell:
        """The cell of one architecture. The mean of columns counts each column once, as published averages do."""
        parts = [column] if not column.mean else self.parts
        held = [_of(own, part) for part in parts]
        scored = [[m for m in group if m.values] for group in held]
        choices = {m.keys or m.setting: m for group in held for m in group}  # one choice may be measured many times
        failed = sum(m.failed for m in choices.values())
        if not any(held):  # a setting to test on alone, of trials that all failed
            return Cell(failed=0 if any(m.values for m in own) else max(m.failed for m in own))
        whole = all({m.setting for m in group} == set(self.settings(p)) for group, p in zip(scored, parts, strict=True))
        if any({m.task for m in group} != set(p.tasks) for group, p in zip(scored, parts, strict=True)):
            tried = all({m.task for m in group} == set(p.tasks) for group, p in zip(held, parts, strict=True))
            return Cell(failed=failed if tried or not any(m.values for m in own) else 0)
        if column.mean and not whole:
            return Cell(failed=failed)

        def average(value: Callable[[Measure], float]) -> float:
            return mean([_over_tasks(g, p, value) for g, p in zip(scored, parts, strict=True)])

        seeds = sorted(set.intersection(*(set(m.values) for group in scored for m in group)))
        several = len(seeds) > 1  # then of these alone, so that the interval is that of the mean
        by_seed = means_by_seed(scored, parts, seeds)
        chance, ceiling = (self._average_bound(scored, parts, name) for name in ("chance", "ceiling"))
        return Cell(
            mean=mean(by_seed) if several else average(lambda m: mean(list(m.values.values()))),
            seeds=len(seeds) if several else min(len(m.values) for group in scored for m in group),
            chance=chance,
            ceiling=ceiling,
            **over_seeds(by_seed, chance, ceiling),
            sampling=sampling_error(scored, parts, seeds if several else None),
            edge=edge_of(m for group in scored for m in group),
            failed=failed,
            settings=sum(len(group) for group in scored),
            mark="" if whole else "partial",
            keys=tuple(dict.fromkeys(key for group in scored for m in group for key in m.keys)),
        )

    @staticmethod
    def _average_bound(scored: list[list[Measure]], parts: list[Column], name: str) -> float | None:
        if any(getattr(m, name) is None for group in scored for m in group):
            return None
        found = [_over_tasks(g, p, lambda m: float(getattr(m, name))) for g, p in zip(scored, parts, strict=True)]
        return mean(found)

    def bound(self, column: Column, name: str) -> float | None:
        """Chance or ceiling of a column, every setting once."""
        return self._of_settings(column, lambda m: float(getattr(m, name)))

    def reference(self, column: Column, name: str) -> float | None:
        """The reference line of that name of a column, every setting once; None where a setting has none."""
        every = [m for part in ([column] if not column.mean else self.parts) for m in self.settings(part).values()]
        return (
            self._of_settings(column, lambda m: m.references[name])
            if all(name in m.references for m in every)
            else None
        )

    def _of_settings(self, column: Column, value: Callable[[Measure], float]) -> float | None:
        values = []
        for part in [column] if not column.mean else self.parts:
            own = list(self.settings(part).values())
            if {m.task for m in own} != set(part.tasks):
                return None
            values.append(_over_tasks(own, part, value))
        return mean(values)

    def alike(self, column: Column) -> bool:
        """True where a column of ours averages as many settings as the published one states."""
        parts = self.parts if column.mean else [column]
        return all(not part.settings or part.settings == len(self.settings(part)) for part in parts)

    def published_rows(self, measure: Measure) -> list[tuple[PublishedTable, Row]]:
        """The published rows of the architecture that was measured."""
        return [
            (table, row)
            for table in self.theirs
            for row in table.rows
            if measure.arch in row.ours
            and not row.note
            and all(trait(*dial) in measure.traits for dial in row.dials.items())
        ]

    def published(self, column: Column, rows: list[tuple[PublishedTable, Row]]) -> float | None:
        """The first published figure for a column of ours."""
        for table, row in rows:
            for theirs, value in zip(table.columns, row.values, strict=True):
                if value is not None and self._same(column, theirs, table):
                    return value
        return None

    def _same(self, ours: Column, theirs: Column, table: PublishedTable) -> bool:
        """True where two columns have the same settings, trained alike."""
        if ours.mean and theirs.mean and theirs.over:
            singles = [list(self.settings(part).values()) for part in self.parts]
            found = [sum(all(_agree(m, dials, table) for m in own) for own in singles) for dials in theirs.over]
            return len(self.parts) == len(theirs.over) and found == [1] * len(found)
        if theirs.mean:
            tasks = [{task for column in columns for task in column.tasks} for columns in (self.parts, table.columns)]
            return ours.mean and tasks[0] == tasks[1] and len(self.parts) == len(table.columns) - 1
        own = [m for part in (self.parts if ours.mean else [ours]) for m in self.settings(part).values()]
        averaged = theirs.settings and ours != theirs  # of a task whose settings are each a column of ours
        if ours.mean or averaged:
            return {m.task for m in own} == set(theirs.tasks) and len(own) == theirs.settings
        return set(ours.tasks) == set(theirs.tasks) and all(_agree(m, theirs.dials, table) for m in own)


def _agree(measure: Measure, dials: Mapping[str, Any], table: PublishedTable) -> bool:
    return measure.mixed == table.mix and all(measure.dials.get(name) == value for name, value in dials.items())


def _of(own: Iterable[Measure], column: Column) -> list[Measure]:
    return [m for m in own if m.task in column.tasks and all(m.dials.get(d) == v for d, v in column.dials.items())]


def _over_tasks(own: list[Measure], column: Column, value: Callable[[Measure], float]) -> float:
    """Mean over the settings of a task, then over the tasks of a column."""
    return mean([mean([value(m) for m in own if m.task == task]) for task in column.tasks])


def cell_of(measure: Measure) -> Cell:
    """The cell of a single measure."""
    values = list(measure.values.values())
    return Cell(
        mean=mean(values) if values else None,
        seeds=len(values),
        chance=measure.chance,
        ceiling=measure.ceiling,
        **over_seeds(values, measure.chance, measure.ceiling),
        sampling=sampling_error([[measure]], [Column(name="", tasks=(measure.task,))], None),
        edge=edge_of([measure]),
        failed=measure.failed,
        settings=1,
        keys=measure.keys,
    )


def over_seeds(values: Sequence[float], chance: float | None, ceiling: float | None) -> dict[str, Any]:
    """The fields of a cell that several seeds give: `interval`, `spread`, `deviation` and `learned`."""
    if len(values) < 2:
        return {}
    gap = gap_between_peaks(values, chance, ceiling)
    return {
        "interval": mean_interval(values, chance, ceiling),
        "spread": (min(values), max(values)),
        "deviation": deviation(values),
        "learned": None if gap is None else sum(value > gap for value in values),
    }


def sampling_error(scored: list[list[Measure]], parts: list[Column], seeds: list[int] | None) -> float | None:
    """The standard error that test sequences give a mean over columns, tasks, settings and seeds (None: all of each measure).
    Each has test sequences of its own, so that squares add up. None where a record does not say its own."""
    squares = 0.0
    for group, column in zip(scored, parts, strict=True):
        for task in column.tasks:
            own = [m for m in group if m.task == task]
            for m in own:
                used = m.values if seeds is None else seeds
                if any(seed not in m.errors for seed in used):
                    return None
                weight = 1 / (len(parts) * len(column.tasks) * len(own) * len(used))
                squares += weight**2 * sum(m.errors[seed] ** 2 for seed in used)
    return math.sqrt(squares)


def means_by_seed(scored: list[list[Measure]], parts: list[Column], seeds: list[int]) -> list[float]:
    """The mean of `_over_tasks` over columns, for every seed, all at once because there may be thousands."""

    def over(means: list[list[float]] | list[NDArray[np.float64]]) -> NDArray[np.float64]:
        return np.ascontiguousarray(np.transpose(np.array(means, dtype=np.float64))).mean(axis=1)

    if len(parts) == len(parts[0].tasks) == len(scored[0]) == 1:
        return [float(scored[0][0].values[seed]) for seed in seeds]
    columns = [
        over([over([[m.values[s] for s in seeds] for m in own if m.task == task]) for task in column.tasks])
        for own, column in zip(scored, parts, strict=True)
    ]
    return [float(mean) for mean in over(columns)] if seeds else []


def tables_about(beside: Published | None, about: str) -> list[PublishedTable]:
    """The published tables of a task; for a task of MAD also those of MAD, where a column may be its mean."""
    wanted = (about, "mad") if about in MAD else (about,)
    return [table for table in beside.tables if table.about in wanted] if beside else []
