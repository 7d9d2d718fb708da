"""Writing of records for other programs, a few at a time, because a ledger may be larger than memory."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from recallmap.results.atomic_write import write_whole
from recallmap.results.escape import cell
from recallmap.results.exports.frame import Cells, cell_of, columns_of, frame
from recallmap.results.record import Record

AT_ONCE = 1000  # records


def export(each: Callable[[], Iterable[Record]], path: Path) -> None:
    """Write records as `.parquet` or `.csv`, with the columns of `frame`. `each` gives all of them whenever it is called; it
    is called twice, first for the columns. Raises OSError."""
    columns = columns_of(each())
    write = _parquet if path.suffix == ".parquet" else _csv
    write_whole(path, lambda draft: write(draft, columns, each()))


def _csv(draft: Path, columns: Mapping[str, str], records: Iterable[Record]) -> None:
    """Write a frame as pandas does, with no text or column name that a spreadsheet would take for a formula."""
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
    import pyarrow.compute as pc
    from pyarrow.parquet import ParquetWriter

    schema = pa.Schema.from_pandas(frame([], columns), preserve_index=False)
    cells, rest = Cells(), iter(records)

    def arrays(rows: Sequence[Mapping[str, Any]]) -> dict[str, pa.Array]:
        """Arrays of the columns that any of the rows has."""
        found: dict[str, list[Any]] = {}
        for number, row in enumerate(rows):
            for name, value in row.items():
                if name not in found:
                    found[name] = [None] * len(rows)
                found[name][number] = cell_of(value, columns[name])
        return {name: pa.array(said, schema.field(name).type, from_pandas=True) for name, said in found.items()}

    with ParquetWriter(draft, schema) as file:
        while some := list(islice(rest, AT_ONCE)):
            own = arrays([cells.own(record) for record in some])
            places = [cells.place(record) for record in some]
            numbers = {place: number for number, place in enumerate(dict.fromkeys(places))}
            which = pa.array([numbers[place] for place in places])
            of_specs = {name: said.take(which) for name, said in arrays([cells.known[p] for p in numbers]).items()}
            both = {name: pc.coalesce(own[name], of_specs[name]) for name in own.keys() & of_specs.keys()}
            nothing = {name: pa.nulls(len(some), kind) for name, kind in zip(schema.names, schema.types, strict=True)}
            made = nothing | of_specs | own | both
            file.write_table(pa.table([made[name] for name in columns], schema=schema))
