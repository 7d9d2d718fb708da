"""Records as rows of a table for other programs: a column for every figure and for every leaf of the spec."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from recallmap.results.analysis.labels import flatten
from recallmap.results.plain_data.shared_parts import Joined
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

_KINDS = (bool, int, float, str)  # types of cells; the first that fits counts

_MIXED = "string[python]"  # text that stands for values of several kinds; "string" is text alone


def columns_of(records: Iterable[Record]) -> dict[str, str]:
    """The columns of a frame of all these records, the dtype of each by its name: first those of the records' own figures,
    then those of their specs. The records are walked through once and not kept, because a table may be written in pieces
    that all have these columns."""
    own: dict[str, _Column] = {name: _Column() for name in FIELDS}
    specs: dict[str, _Column] = {}
    often: Counter[int] = Counter()  # how many rows have the cells of a spec
    cells, rows = Cells(), 0
    for rows, record in enumerate(records, start=1):  # noqa: B007
        for name, value in cells.own(record).items():
            column = own.get(name)
            if column is None:
                column = own[name] = _Column()
            column.see(value)
        often[cells.place(record)] += 1
    for place, times in often.items():
        for name, value in cells.known[place].items():
            (own if name in own else specs).setdefault(name, _Column()).see(value, times)
    return {name: column.dtype(rows) for name, column in (own | specs).items()}


def frame(records: Iterable[Record], columns: Mapping[str, str] | None = None) -> pd.DataFrame:
    """A frame with a row for each record. Columns: the plain fields of Record; every test score under its name;
    `validation_<score>`; `published_<score>`; and every leaf of the spec by its path, such as `task.length`, `training.lr`
    or `arch.stack.0.mixer.key_dim`. Records whose specs differ have rows that differ.

    columns  as `columns_of` gives them, where the frame is a piece of a larger one
    """
    import pandas as pd

    records, cells = list(records), Cells()
    columns = columns_of(records) if columns is None else columns
    rows = [cells.own(record) | cells.known[cells.place(record)] for record in records]
    made = {name: [cell_of(row.get(name), dtype) for row in rows] for name, dtype in columns.items()}
    return pd.DataFrame({name: pd.Series(made[name], dtype=dtype) for name, dtype in columns.items()})


class Cells:
    """Cells of records by column: a record's own, and those of its spec, computed once for all records that share it."""

    def __init__(self) -> None:
        self.known: list[dict[str, Any]] = []  # of specs
        self._places: dict[tuple[Any, ...], tuple[int, Any]] = {}

    def own(self, record: Record) -> dict[str, Any]:
        """The fields and scores of a record."""
        found = {name: getattr(record, name) for name in FIELDS}
        for prefix, scores in _scores_of(record):
            for name, value in scores.items():
                column = f"{prefix}{name}"
                found[f"scores.{column}" if column in found else column] = value
        return {name: value for name, value in found.items() if value is not None}

    def place(self, record: Record) -> int:
        """The index in `known` of the cells of its spec."""
        spec = record.spec
        shared = spec.shared if isinstance(spec, Joined) else spec
        names = tuple(tuple(scores) for _, scores in _scores_of(record))
        apart = tuple(
            (name, repr(spec[name])) for name in spec if name in _OF_BOTH and spec[name] != getattr(record, name)
        )
        found = self._places.get((id(shared), names, apart))
        if found is None:  # the spec is held, so that nothing else gets its place in memory
            found = self._places[id(shared), names, apart] = len(self.known), shared
            taken = {*FIELDS, *(f"{prefix}{name}" for prefix, scores in _scores_of(record) for name in scores)}
            leaf = {f"spec.{path}" if path in taken else path: value for path, value in leaves(record)}
            self.known.append({name: value for name, value in leaf.items() if value is not None})
        return found[0]


_OF_BOTH = frozenset(FIELDS) - {"arch", "task"}  # what a spec and its record both say; those are parts of a spec


def _scores_of(record: Record) -> tuple[tuple[str, Mapping[str, float]], ...]:
    return ("", record.scores), ("validation_", record.validation), ("published_", record.published_choice)


def leaves(record: Record) -> Iterator[tuple[str, Any]]:
    """Every leaf of the spec by its path, without those that are fields of the record; an empty list is a leaf."""
    for path, value in flatten(record.spec, empty=True):
        if path not in FIELDS or getattr(record, path) != value:
            yield path, value


class _Column:
    """The values of a column, as far as they were seen."""

    def __init__(self) -> None:
        self.kinds: set[type] = set()
        self.count = 0
        self.most = 0  # of whole numbers, without their sign

    def see(self, value: Any, times: int = 1) -> None:
        self.count += times
        kind = type(value)
        self.kinds.add(kind if kind in _KINDS else next((kind for kind in _KINDS if isinstance(value, kind)), object))
        if isinstance(value, int):
            self.most = max(self.most, abs(value))

    def dtype(self, rows: int) -> str:
        """The dtype of the column. Whole numbers stay whole where some rows have none. A column of several kinds of value, or
        of numbers that do not fit, is text."""
        if not self.kinds:
            return "object"
        if self.kinds == {bool}:
            return "bool" if self.count == rows else "boolean"
        if self.kinds == {int} and self.most < _LARGEST:
            return "int64" if self.count == rows else "Int64"
        if self.kinds == {float} or (self.kinds == {int, float} and self.most <= _EXACT):
            return "float64"
        return "string" if self.kinds == {str} else _MIXED


def cell_of(value: Any, dtype: str) -> Any:
    """A value as a column of this dtype holds it."""
    if value is None or dtype != _MIXED:
        return value
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        json.loads(value)
    except ValueError:
        return value
    return json.dumps(value)  # text that could be something else
