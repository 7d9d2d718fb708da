"""Records as rows of a table for other programs: a column for every figure and for every leaf of the spec."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from recallmap.results.analysis.labels import flatten
from recallmap.results.escape import cell
from recallmap.results.record import Record

if TYPE_CHECKING:
    import pandas as pd

_NESTED = (
    "scores",
    "validation",
    "published_choice",
    "spec",
    "references",
    "tests",
    "curve",
    "implementation",
    "versions",
)

FIELDS = tuple(f.name for f in fields(Record) if f.name not in _NESTED)  # each a column

_EXACT = 2**53  # whole numbers up to here are numbers with a point, too

_LARGEST = 2**63  # whole numbers below are numbers of a table

_KINDS = (bool, int, float, str)  # of a cell; the first that fits counts

_MIXED = "string[python]"  # text that stands for values of several kinds; "string" is text alone


def columns_of(records: Iterable[Record]) -> dict[str, str]:
    """The columns of a frame of all these records, by name the dtype of each. The records are walked through once and not kept:
    a table may be written in pieces that all have these columns."""
    found: dict[str, _Column] = {name: _Column() for name in FIELDS}
    count = 0
    for count, record in enumerate(records, start=1):  # noqa: B007
        for name, value in row(record).items():
            found.setdefault(name, _Column()).see(value)
    return {name: column.dtype(count) for name, column in found.items()}


def frame(records: Iterable[Record], columns: Mapping[str, str] | None = None) -> pd.DataFrame:
    """A row a record. Columns: the plain fields of Record; every test score under its name; `validation_<score>`;
    `published_<score>`; and every leaf of the spec by its path, such as `task.length`, `training.lr` or
    `arch.stack.0.mixer.key_dim`. Records whose specs differ have rows that differ.

    columns  those of more records than these, as `columns_of` gives them
    """
    import pandas as pd

    records = list(records)
    columns = columns_of(records) if columns is None else columns
    rows = [row(record) for record in records]
    return pd.DataFrame({name: _values(rows, name, dtype) for name, dtype in columns.items()})


def harmless(table: pd.DataFrame) -> pd.DataFrame:
    """The same frame for a CSV file: no text in it, nor a name of a column, is a formula to a spreadsheet."""
    text: dict[str, pd.Series[Any]] = {}
    for name in table.columns:
        if table[name].dtype == "string":
            acting = {value: safe for value in table[name].dropna().unique() if (safe := cell(value)) != value}
            text |= {name: table[name].replace(acting)} if acting else {}
    return table.assign(**text).rename(columns=cell)


def row(record: Record) -> dict[str, Any]:
    """The cells of a record that are set, by column."""
    found = {name: getattr(record, name) for name in FIELDS}
    scores = (("", record.scores), ("validation_", record.validation), ("published_", record.published_choice))
    for prefix, group in scores:
        found |= _beside(found, {f"{prefix}{name}": value for name, value in group.items()}, "scores")
    found |= _beside(found, dict(leaves(record)), "spec")
    return {name: value for name, value in found.items() if value is not None}


def leaves(record: Record) -> Iterator[tuple[str, Any]]:
    """Every leaf of the spec by its path. What a field of the record says already is none, and an empty list is one."""
    for path, value in flatten(record.spec, empty=True):
        if path not in FIELDS or getattr(record, path) != value:
            yield path, value


def _beside(taken: Mapping[str, Any], cells: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The cells, those whose names are taken under longer ones."""
    return {f"{what}.{name}" if name in taken else name: value for name, value in cells.items()}


class _Column:
    """What a column holds, as far as it was seen."""

    def __init__(self) -> None:
        self.kinds: set[type] = set()
        self.count = 0
        self.most = 0  # of whole numbers, without their sign

    def see(self, value: Any) -> None:
        self.count += 1
        self.kinds.add(next((kind for kind in _KINDS if isinstance(value, kind)), object))
        if isinstance(value, int):
            self.most = max(self.most, abs(value))

    def dtype(self, rows: int) -> str:
        """Whole numbers stay whole where some rows have none. Of several kinds of value, and of numbers that do not fit, the
        column is text."""
        if not self.kinds:
            return "object"
        if self.kinds == {bool}:
            return "bool" if self.count == rows else "boolean"
        if self.kinds == {int} and self.most < _LARGEST:
            return "int64" if self.count == rows else "Int64"
        if self.kinds == {float} or (self.kinds == {int, float} and self.most <= _EXACT):
            return "float64"
        return "string" if self.kinds == {str} else _MIXED


def _values(rows: Sequence[Mapping[str, Any]], name: str, dtype: str) -> pd.Series[Any]:
    import pandas as pd

    cells = [one.get(name) for one in rows]
    if dtype == _MIXED:
        cells = [None if value is None else _said(value) for value in cells]
    return pd.Series(cells, dtype=dtype)


def _said(value: Any) -> str:
    """A value of a column of several kinds: as JSON, but for text that could be nothing else."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        json.loads(value)
    except ValueError:
        return value
    return json.dumps(value)
