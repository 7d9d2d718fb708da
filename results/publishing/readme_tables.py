"""The small tables of README.md and results/README.md: figures of the score tables, arranged for a document.

A document asks for one by a line `<!-- excerpt: NAME -->`. The table below that line is made anew from the records.
`excerpts.yaml` holds the excerpts; the codec of `search` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal

from recallmap.results.score_tables.costs import HOURS
from recallmap.results.score_tables.rendering import cell_text, shown
from recallmap.results.score_tables.table import Cell, Line, Table, Unit

_NAMES = "Names. "  # begins the line below a table that says which of its names stand for other models

_MARK = re.compile(rf"^<!-- excerpt: (.*) -->\n(?:\n?(?:\|.*\n)+(?:\n{_NAMES}.*\n)?)?", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a figure stands, or a part of that; None where another part says it.

    records  the file of records
    row      the architecture's row in its score table; {} stands for `at`
    at       what stands for {} in `row`
    column   the column of that table; of hours, the task
    of       the figure: the score, the score with its lowest and highest seed, the figure that the source published, the
             difference from that, the size of the state, or the hours that all trials of the row took
    source   a part of the name of the published source that the table compares with; None: any table
    title    a part of the table's title; None: any table
    cell     task: hyper-parameters are chosen once a task, by the mean over its settings; None: once a setting
    """

    records: str | None = None
    row: str | None = None
    at: str | int | None = None
    column: str | None = None
    of: Literal["score", "spread", "published", "difference", "state", "hours"] | None = None
    source: str | None = None
    title: str | None = None
    cell: Literal["task"] | None = None

    def under(self, *others: Place) -> Place:
        """This place, each part replaced by what the last of the others says of it."""
        return replace(self, **{name: part for other in others for name, part in other.said().items()})

    def said(self) -> dict[str, Any]:
        """The parts that are given, by name."""
        return {f.name: part for f in fields(self) if (part := getattr(self, f.name)) is not None}

    @property
    def tables(self) -> str:
        """The name of the tables that have the figure: the file of records, and how hyper-parameters are chosen."""
        return f"{self.records}{OF_COSTS if self.of == 'hours' else BY_TASK if self.cell == 'task' else ''}"


BY_TASK, OF_COSTS = ", one cell a task", ", costs"  # behind a file's name

NEEDED = ("records", "row", "column", "of")  # of a figure's place


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """A table by the heads of its columns and rows. Each head says a part of where its figures stand. Where several say the
    same part, a column goes before a row, and a row before `every`.

    corner  the head of the column of heads
    every   the parts that all figures share
    across  columns by their heads
    down    rows by their heads

    Raises ValueError where there is no column or no row, and where a figure's place lacks a part.
    """

    corner: str = ""
    every: Place = Place()
    across: Mapping[str, Place]
    down: Mapping[str, Place]

    def __post_init__(self) -> None:
        for name, heads in (("across", self.across), ("down", self.down)):
            if not heads:
                raise ValueError(f"{name} must have at least one head, got none")
        for row in self.down:
            for column in self.across:
                said = self.place(row, column).said()
                missing = [part for part in NEEDED if part not in said]
                if missing:
                    raise ValueError(
                        f"every must give {' and '.join(missing)} where neither head does, got none for row '{row}' and "
                        f"column '{column}'"
                    )

    def place(self, row: str, column: str) -> Place:
        """The place of the figure below a column's head and beside a row's."""
        return self.every.under(self.down[row], self.across[column])

    def markdown(self, name: str, tables: Mapping[str, Sequence[Table]]) -> str:
        """The table, blank where nothing was trained, and below it which of its names stand for other models. Raises
        ValueError where a column or a row is blank throughout, because the records lack what it names."""
        found = {(row, column): _found(self.place(row, column), tables) for row in self.down for column in self.across}
        figures = {place: text for place, (text, _) in found.items()}
        for heads, axis in ((self.down, 0), (self.across, 1)):
            for head in heads:
                if not any(text for place, text in figures.items() if place[axis] == head):
                    raise ValueError(f"excerpt {name}: '{head}' has no figure in these records")
        lines = [[self.corner, *self.across], ["---", *["---:"] * len(self.across)]]
        lines += [[row, *(figures[row, column] for column in self.across)] for row in self.down]
        table = "".join(f"|{''.join(f' {cell} |' if cell else ' |' for cell in line)}\n" for line in lines)
        about: dict[str, dict[str, None]] = {}
        for row in self.down:
            remarks = {column: remark for column in self.across for text, remark in [found[row, column]] if text}
            of_row = len(set(remarks.values())) == 1
            for column, remark in remarks.items():
                if remark:
                    about.setdefault(remark, {})[row if of_row else column] = None
        names = " ".join(f"{' / '.join(heads)}: {remark}." for remark, heads in about.items())
        return f"{table}\n{_NAMES}{names}\n" if names else table


def asked_for(text: str, excerpts: Mapping[str, Excerpt]) -> set[str]:
    """The names of the tables (`Place.tables`) that a document's excerpts are made of."""
    named = [excerpts[mark[1]] for mark in _MARK.finditer(text) if mark[1] in excerpts]
    return {one.place(row, column).tables for one in named for row in one.down for column in one.across}


def filled(
    text: str,
    tables: Mapping[str, Sequence[Table]],
    excerpts: Mapping[str, Excerpt],
    made_whole: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """A document with each of its excerpts made from the score tables, which come by name (`Place.tables`). `made_whole` are
    tables by name that are no excerpt of these. Raises ValueError where the document asks for an excerpt that does not exist,
    or whose figures these records lack."""

    def made(mark: re.Match[str]) -> str:
        name = mark[1]
        if name not in excerpts and name not in made_whole:
            raise ValueError(f"there is no excerpt '{name}', only {', '.join([*excerpts, *made_whole])}")
        end = "" if text[mark.end() : mark.end() + 1] in ("", "\n") else "\n"  # the next line is no row of it
        table = made_whole[name] if name in made_whole else excerpts[name].markdown(name, tables)
        return f"<!-- excerpt: {name} -->\n\n{table}{end}"

    return _MARK.sub(made, text)


def _found(place: Place, tables: Mapping[str, Sequence[Table]]) -> tuple[str, str]:
    """The figure at a whole place, and the remark on its line; "" for both where there is none."""
    row = str(place.row).replace("{}", "" if place.at is None else str(place.at))
    if place.of == "hours":
        return _hours(row, str(place.column), tables.get(place.tables, ()))
    for table in tables.get(place.tables, ()):
        of_it = (place.source or "") in table.beside and (place.title or "") in table.title
        if of_it and place.column in table.columns:
            at = table.columns.index(place.column)
            for line in table.lines:
                if line.kind == "measured" and line.labels[0] == row:
                    return _text(line, line.cells[at], table.units[at], str(place.of)), line.remark
    return "", ""


def _hours(row: str, task: str, tables: Sequence[Table]) -> tuple[str, str]:
    """Hours of a row on a task, and the remark on its line; "" for both where there is none."""
    for table in tables:
        for line in table.lines:
            if line.labels[:2] == (row, task):
                return shown(line.cells[table.columns.index(HOURS)].mean, "hours"), line.remark
    return "", ""


def _text(line: Line, cell: Cell, unit: Unit, of: str) -> str:
    if of == "state":
        return "grows" if line.labels[1].endswith("grows") else line.labels[1]
    if of == "published":
        return "" if cell.published is None else shown(cell.published, unit)
    if of == "difference":
        return "" if cell.difference is None else shown(cell.difference, unit, sign=True)
    alone = replace(cell, interval=None, sampling=None, spread=None, learned=None, failed=0, not_above="")
    text = cell_text(line, alone, unit)
    if of == "spread" and cell.spread is not None:
        text += f" ({'–'.join(shown(end, unit) for end in cell.spread)})"
    return text + (f" †{cell.failed}" if cell.failed else "")
