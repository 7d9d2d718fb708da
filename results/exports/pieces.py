"""Records written for other programs, a few at a time: a ledger may be larger than memory."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from recallmap.results.atomic_write import write_whole
from recallmap.results.escape import cell
from recallmap.results.exports.frame import Cells, cell_of, columns_of, frame
from recallmap.results.record import Record

AT_ONCE = 2000  # records


def export(each: Callable[[], Iterable[Record]], path: Path) -> None:
    """Write records as `.parquet` or `.csv`, with the columns of `frame`. `each` gives all of them whenever it is called: they
    are gone through twice, first for the columns. Raises OSError."""
    columns = columns_of(each())
    write = _parquet if path.suffix == ".parquet" else _csv
    write_whole(path, lambda draft: write(draft, columns, each()))


def _csv(draft: Path, columns: Mapping[str, str], records: Iterable[Record]) -> None:
    """As pandas writes a frame, but that nothing in it is a formula to a spreadsheet: no text, nor a name of a column."""
    cells, known = Cells(), list[list[Any]]()
    places = {name: (place, dtype) for place, (name, dtype) in enumerate(columns.items())}
    with draft.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(map(cell, columns))
        for record in records:
            own = cells.own(record)
            of_spec = cells.place(record)
            for one in cells.known[len(known) :]:
                known.append([None] * len(columns))
                _fill(known[-1], one, places)
            line = known[of_spec].copy()
            _fill(line, own, places)
            lines.writerow(line)


def _fill(line: list[Any], values: Mapping[str, Any], places: Mapping[str, tuple[int, str]]) -> None:
    for name, value in values.items():
        place, dtype = places[name]
        if dtype == "float64":
            line[place] = None if value != value else float(value)  # no number
        else:
            line[place] = _safe(said) if isinstance(said := cell_of(value, dtype), str) else said


_safe = lru_cache(maxsize=100_000)(cell)


def _parquet(draft: Path, columns: Mapping[str, str], records: Iterable[Record]) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    schema = pa.Schema.from_pandas(frame([], columns), preserve_index=False)
    cells, rest = Cells(), iter(records)
    with ParquetWriter(draft, schema) as file:
        while some := list(islice(rest, AT_ONCE)):
            own = [cells.own(record) for record in some]
            places = [cells.place(record) for record in some]
            rows = [cells.known[place] | row for place, row in zip(places, own, strict=True)]
            numbers = {place: number for number, place in enumerate(dict.fromkeys(places))}
            which = pa.array([numbers[place] for place in places])
            told = {name for row in own for name in row}

            def column(name: str, dtype: str, rows: Iterable[Mapping[str, Any]]) -> pa.Array:
                said = [cell_of(row.get(name), dtype) for row in rows]
                return pa.array(said, schema.field(name).type, from_pandas=True)

            made = [
                column(name, dtype, rows)
                if name in told
                else column(name, dtype, (cells.known[place] for place in numbers)).take(which)
                for name, dtype in columns.items()
            ]
            file.write_table(pa.table(made, schema=schema))
