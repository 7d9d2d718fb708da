"""Records as rows of a table for other programs: a column for every figure and for every leaf of the spec."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from recallmap.results.analysis.labels import flatten
from recallmap.results.plain_data.shared_parts import Joined, in_order, names_of
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
    then those of their specs."""
    own, of_specs = parted_columns(records)
    return own | of_specs


def parted_columns(records: Iterable[Record], cells: Cells | None = None) -> tuple[dict[str, str], dict[str, str]]:
    """Columns as of `columns_of`: those in which records have figures of their own, and those in which only their specs have
    any. The records are walked through once and not kept, because a table may be written in pieces that all have these
    columns.

    cells  has the cells of specs afterwards, for another walk through records of these specs
    """
    own: dict[str, _Column] = {name: _Column() for name in FIELDS}
    specs: dict[str, _Column] = {}
    alike: dict[tuple[tuple[str, ...], tuple[type, ...]], _Alike] = {}
    often: Counter[int] = Counter()  # how many rows have the cells of a spec
    cells, rows = cells or Cells(), 0
    for rows, record in enumerate(records, start=1):  # noqa: B007
        found = cells.own(record)
        kinds = tuple(found), tuple(map(type, found.values()))
        if (same := alike.get(kinds)) is None:
            same = alike[kinds] = _Alike(*kinds)
        same.see(found)
        often[cells.place(record)] += 1
    for (names, types), same in alike.items():
        for name, kind in zip(names, types, strict=True):
            own.setdefault(name, _Column()).see(kind, same.count, same.most.get(name, 0))
    for place, times in often.items():
        for name, value in cells.known[place].items():
            most = abs(value) if isinstance(value, int) else 0
            (own if name in own else specs).setdefault(name, _Column()).see(type(value), times, most)
    made = [{name: column.dtype(rows) for name, column in columns.items()} for columns in (own, specs)]
    return made[0], made[1]


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
    made = {name: cells_of([row.get(name) for row in rows], dtype) for name, dtype in columns.items()}
    return pd.DataFrame({name: pd.Series(made[name], dtype=dtype) for name, dtype in columns.items()})


class Cells:
    """Cells of records by column: a record's own, and those of its spec, computed once for all records that share it."""

    def __init__(self) -> None:
        self.known: list[dict[str, Any]] = []  # of specs
        self._places: dict[tuple[Any, ...], tuple[int, Any]] = {}
        self._columns: dict[tuple[tuple[str, ...], ...], list[list[str]]] = {}  # of scores, by their names
        self._said_twice: dict[tuple[type, int], tuple[str, ...]] = {}  # names in a spec that its record has, too

    def own(self, record: Record) -> dict[str, Any]:
        """The fields and scores of a record."""
        found = {name: value for name, value in zip(FIELDS, _OWN(record), strict=True) if value is not None}
        scored = _SCORES(record)
        names = tuple(map(names_of, scored))
        if names not in self._columns:
            self._columns[names] = _columns_of_scores(names)
        for scores, columns in zip(scored, self._columns[names], strict=True):
            if columns:
                found.update(zip(columns, in_order(scores), strict=True))
        return found

    def place(self, record: Record) -> int:
        """The index in `known` of the cells of its spec."""
        spec = record.spec
        shared = spec.shared if isinstance(spec, Joined) else spec
        names = tuple(map(names_of, _SCORES(record)))
        twice = self._said_twice.get((type(spec), id(shared)))
        if twice is None:
            twice = self._said_twice[type(spec), id(shared)] = tuple(name for name in spec if name in _OF_BOTH)
        apart = tuple((name, repr(spec[name])) for name in twice if spec[name] != getattr(record, name))
        found = self._places.get((id(shared), names, apart))
        if found is None:  # the spec is held, so that nothing else gets its place in memory
            found = self._places[id(shared), names, apart] = len(self.known), shared
            taken = {
                *FIELDS,
                *(f"{prefix}{name}" for prefix, own in zip(_PREFIXES, names, strict=True) for name in own),
            }
            leaf = {f"spec.{path}" if path in taken else path: value for path, value in leaves(record)}
            self.known.append({sys.intern(name): value for name, value in leaf.items() if value is not None})
        return found[0]


_OWN = attrgetter(*FIELDS)

_FIELDS = frozenset(FIELDS)

_OF_BOTH = frozenset(FIELDS) - {"arch", "task"}  # what a spec and its record both say; those are parts of a spec

_SCORES = attrgetter("scores", "validation", "published_choice")

_PREFIXES = ("", "validation_", "published_")  # of their columns


def _columns_of_scores(names: Sequence[Sequence[str]]) -> list[list[str]]:
    """The columns of scores with these names, none of which is a field or a column of scores before."""
    taken, columns = set(FIELDS), []
    for prefix, called in zip(_PREFIXES, names, strict=True):
        columns.append(list[str]())
        for name in called:
            column = f"{prefix}{name}"
            columns[-1].append(f"scores.{column}" if column in taken else column)
            taken.add(columns[-1][-1])
    return columns


def leaves(record: Record) -> Iterator[tuple[str, Any]]:
    """Every leaf of the spec by its path, without those that are fields of the record; an empty list is a leaf."""
    for path, value in flatten(record.spec, empty=True):
        if path not in _FIELDS or getattr(record, path) != value:
            yield path, value


class _Alike:
    """Rows whose own cells have the same columns and types."""

    def __init__(self, names: Sequence[str], kinds: Sequence[type]) -> None:
        self.count = 0
        self.most = {name: 0 for name, kind in zip(names, kinds, strict=True) if issubclass(kind, int)}

    def see(self, row: Mapping[str, Any]) -> None:
        self.count += 1
        for name, most in self.most.items():
            if not -most <= row[name] <= most:
                self.most[name] = abs(row[name])


class _Column:
    """The values of a column, as far as they were seen."""

    def __init__(self) -> None:
        self.kinds: set[type] = set()
        self.count = 0
        self.most = 0  # of whole numbers, without their sign

    def see(self, kind: type, times: int, most: int) -> None:
        self.count += times
        self.kinds.add(kind if kind in _KINDS else next((one for one in _KINDS if issubclass(kind, one)), object))
        self.most = max(self.most, most)

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


def cells_of(values: list[Any], dtype: str) -> list[Any]:
    """Values as a column of this dtype holds them."""
    return [cell_of(value, dtype) for value in values] if dtype == _MIXED else values


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
