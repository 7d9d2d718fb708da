"""The heat map of the page: architectures by tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from recallmap.results.analysis.labels import ALWAYS_TOLD, MOST_DIALS, differing, telling, words
from recallmap.results.page import thinning
from recallmap.results.page.name_index import Index, carried
from recallmap.results.score_tables.rendering import figure
from recallmap.results.score_tables.table import MAD, Cell, Line, Table

TASK = "task"  # the path of a column's task


def heat_maps(tables: Sequence[Table], index: Index) -> dict[str, Any]:
    """All tables of the heat map in the order of the menu: MAD's first, the fullest ahead, all its settings before its
    tasks."""
    heats, order = [_heat(thinning.rows(table), index) for table in tables], []
    for number, table in enumerate(tables):
        parts = mad_parts(table, tables)
        groups = [(name, len(part.columns) - (part.mean_at is not None)) for name, part in parts.items()]
        if sum(size for _, size in groups) > len([c for c in table.columns if c in parts]):
            order.append(len(heats))
            several = any(size > 1 for _, size in groups)  # otherwise columns have the names of their tasks
            joined = _heat(thinning.rows(_joined(table, parts)), index) | ({"groups": groups} if several else {})
            heats.append(joined | _means(table, joined["rows"]))
        if not says_no_more(table, tables):
            order.append(number)
    full = [sum(cell[0] is not None for line in heat["cells"] for cell in line) for heat in heats]
    order.sort(key=lambda number: -full[number] if heats[number]["title"].startswith("MAD") else 0)
    return {"tables": heats, "heats": order}


def says_no_more(table: Table, tables: Sequence[Table]) -> bool:
    """True where a table of one of MAD's tasks has a single column, which is that of MAD's own table."""
    if len(table.columns) > 1:
        return False
    return any(part is table and name in w.columns for w in tables for name, part in mad_parts(w, tables).items())


def mad_parts(table: Table, tables: Sequence[Table]) -> dict[str, Table]:
    """The tables of MAD's tasks that belong to MAD's table, by name of the task; none for other tables."""
    whole = table.title.removeprefix("MAD")
    if whole == table.title:
        return {}
    return {name: part for task, name in MAD.items() for part in tables if part.title == task + whole}


def _joined(table: Table, parts: dict[str, Table]) -> Table:
    """MAD with a column for every setting of its tasks, and no means."""
    columns, of = [], []
    for name, part in parts.items():
        for at in (n for n in range(len(part.columns)) if n != part.mean_at):
            columns.append(f"{name}: {part.columns[at]}" if len(part.columns) > 1 else name)
            of.append(({line.labels[0]: line for line in part.lines}, at))
    lines = [
        replace(line, cells=tuple(own[line.labels[0]].cells[at] if line.labels[0] in own else Cell() for own, at in of))
        for line in table.lines
        if line.kind != "published"
    ]
    return replace(
        table,
        title=f"{table.title}, every setting",
        columns=tuple(columns),
        lines=tuple(lines),
        units=table.units[:1] * len(columns),
        mean_at=None,
    )


def _means(table: Table, rows: Sequence[str]) -> dict[str, Any]:
    """The means of MAD's own table, for rows of the table that is joined of its parts; none where it has no mean."""
    if table.mean_at is None:
        return {}
    of = {line.labels[0]: line.cells[table.mean_at] for line in table.lines if line.kind == "measured"}
    return {"means": [_cell(of[row]) for row in rows]}


def _heat(table: Table, index: Index) -> dict[str, Any]:
    lines = [line for line in table.lines if line.kind == "measured"]
    bounds = {
        line.kind: [cell.mean for cell in line.cells] for line in table.lines if line.kind in ("chance", "ceiling")
    }
    return {
        "title": table.title,
        "percent": table.percent,
        "columns": list(table.columns),
        "heads": brief(table.columns),
        "rows": [line.labels[0] for line in lines],
        "states": [line.labels[1] for line in lines],
        "chance": bounds["chance"],
        "ceiling": bounds["ceiling"],
        "cells": [[_cell(cell) for cell in line.cells] for line in lines],
        "trials": [
            [
                [] if number == table.mean_at else [index.trial[k] for k in cell.keys]
                for number, cell in enumerate(line.cells)
            ]
            for line in lines
        ],  # of a mean, heat_map.js takes those of the whole line
        "partial": [[number for number, cell in enumerate(line.cells) if cell.mark == "partial"] for line in lines],
        "mean_at": table.mean_at,
        "seen": _heat_seen(table, lines),
    }


def brief(columns: Sequence[str]) -> list[str]:
    """Short names of columns: where any has very many options, as few of them as tell the columns apart. A column is named
    "length 64, pairs 4", with its task and a colon before that where it is of several."""
    tasks, named = zip(*((task + colon, told) for task, colon, told in map(_parted, columns)), strict=True)
    leaves = list(map(_options, named))
    if max(map(len, leaves)) <= MOST_DIALS:
        return list(columns)
    several = [{TASK: task, **leaf} for task, leaf in zip(tasks, leaves, strict=True)]
    shown = [path for path in telling(several, differing(several), always=(TASK, *ALWAYS_TOLD)) if path != TASK]
    return [
        task + (", ".join(words(leaf, shown)) or told) for task, leaf, told in zip(tasks, leaves, named, strict=True)
    ]


def _parted(column: str) -> tuple[str, str, str]:
    task, colon, told = column.partition(": ")
    return (task, colon, told) if colon else ("", "", column)


def _options(told: str) -> dict[str, str]:
    """The options of a column's name by path; one whose last part is there already has a longer path. Words that are no
    option are none."""
    leaf: dict[str, str] = {}
    for part in told.split(", "):
        name, _, value = part.rpartition(" ")
        while name in leaf:
            name = f"again.{name}"
        if name:
            leaf[name] = value
    return leaf


def _cell(cell: Cell) -> list[float | None]:
    """Mean, standard deviation over seeds, number of seeds, and the mean on a scale from 0 (chance) to 1 (ceiling)."""
    if cell.mean is None:
        return [None, None, 0, None]
    share = None
    if cell.chance is not None and cell.ceiling is not None and cell.ceiling > cell.chance:
        share = round(min(1.0, max(0.0, (cell.mean - cell.chance) / (cell.ceiling - cell.chance))), 3)
    return [carried(cell.mean), carried(cell.deviation), cell.seeds, share]


def _heat_seen(table: Table, lines: list[Line]) -> str:
    """The hardest column, and the one that tells architectures apart best, by cells over all settings of their column."""
    columns = {}
    for number, column in enumerate(table.columns):
        cells = [line.cells[number] for line in lines]
        means = [cell.mean for cell in cells if cell.mean is not None and cell.mark != "partial"]
        if means and number != table.mean_at:
            columns[column] = means
    if len(columns) < 2 or len(lines) < 2:
        return ""
    hardest = min(columns, key=lambda c: float(np.median(columns[c])))
    widest = max(columns, key=lambda c: max(columns[c]) - min(columns[c]))
    middle, top = (
        figure(float(np.median(columns[hardest])), table.percent),
        figure(max(columns[hardest]), table.percent),
    )
    low, high = figure(min(columns[widest]), table.percent), figure(max(columns[widest]), table.percent)
    short = dict(zip(table.columns, brief(table.columns), strict=True))
    hardest, widest = short[hardest], short[widest]
    hard = f"Hardest: {hardest}, {middle} for the median architecture and {top} for the best."
    return f"{hard} Architectures differ most on {widest}: from {low} to {high}."
