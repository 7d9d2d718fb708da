"""Records as rows of a table for other programs: a column for every figure, every score and every dial."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from results.pool import Memo
from results.record import FIELDS, Record

if TYPE_CHECKING:
    import pandas as pd

_SCORES = {"scores": "", "validation": "validation_", "published_choice": "published_"}  # and how their columns begin
_NESTED = (*_SCORES, "spec", "references", "tests", "curve", "implementation", "versions")
_PLAIN = tuple(name for name in FIELDS if name not in _NESTED)
_PARTS = ("task", "training", "data", "arch")  # of a spec, whose dials are columns


def columns_of(records: Iterable[Record]) -> dict[str, str]:
    """The columns of a frame of all these records, by name the dtype of each. The records are walked through once and not kept:
    a table may be written in pieces that all have these columns."""
    kinds: dict[str, set[type]] = {name: set() for name in _PLAIN}
    there: dict[str, int] = dict.fromkeys(_PLAIN, 0)
    count = 0
    for row in _rows(records):
        count += 1
        for name, value in row.items():
            if value is not None:
                kinds.setdefault(name, set()).add(type(value))
                there[name] = there.get(name, 0) + 1
            elif name not in kinds:
                kinds[name] = set()
    return {name: _dtype(own, whole=there.get(name, 0) == count) for name, own in kinds.items()}


def frame(records: Iterable[Record], columns: Mapping[str, str] | None = None) -> pd.DataFrame:
    """A row a record. Columns: the plain fields of Record; every test score under its name; `validation_<score>`;
    `published_<score>`; and the dials as `task.<dial>`, `training.<dial>`, `data.<dial>`, `arch.<dial>`.

    columns  those of more records than these, as `columns_of` gives them
    """
    import pandas as pd

    records = list(records)
    columns = columns_of(records) if columns is None else columns
    rows = list(rows_of(records, columns))
    return pd.DataFrame({name: pd.Series([r.get(name) for r in rows], dtype=dtype) for name, dtype in columns.items()})


def rows_of(records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The cells of every record, by column, each as a value of its column."""
    others = {name: str if dtype == "str" else float for name, dtype in columns.items() if dtype in ("str", "float64")}
    for row in _rows(records):
        for name, value in row.items():
            kind = others.get(name)
            if kind is not None and value is not None and type(value) is not kind:
                row[name] = kind(value)  # of a dial's two kinds of value, the text; a number among numbers with a point
        yield row


def _dtype(kinds: set[type], *, whole: bool) -> str:
    """Of a column that holds these kinds of value; `whole` where every row has one."""
    if not kinds:
        return "object"
    if kinds == {bool}:
        return "bool" if whole else "boolean"
    if kinds <= {int, float}:
        return "int64" if kinds == {int} and whole else "float64"
    return "str"


def _rows(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """The cells of every record, by column."""
    dials = Memo(lambda spec: dict(_dials(spec)))
    for record in records:
        row = {name: getattr(record, name) for name in _PLAIN}
        for group, prefix in _SCORES.items():
            for name, value in getattr(record, group).items():
                row[prefix + name] = value
        yield row | dials(record.spec)


def _dials(spec: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for part in _PARTS:
        for name, value in spec.get(part, {}).items():
            if value is None or isinstance(value, str | int | float | bool):
                yield f"{part}.{name}", value
