"""Writing of records for other programs, a few at a time, because a ledger may be larger than memory."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from recallmap.results.atomic_write import write_whole
from recallmap.results.escape import cell
from recallmap.results.exports.frame import Cells, cell_of, cells_of, frame, parted_columns
from recallmap.results.record import Record

# Records in memory, and in a group of rows of .parquet. Each group has a description of every column, and all stay in memory to
# the end: of 98,300 records with 972 columns, groups of 2,000 took 250 MB, of 4,000 217 and of 6,000 237.
AT_ONCE = 4000


def export(each: Callable[[], Iterable[Record]], path: Path) -> None:
    """Write records as `.parquet` or `.csv`, with the columns of `frame`. `each` gives all of them whenever it is called; it
    is called twice, first for the columns. Raises OSError."""
    cells = Cells()
    own, of_specs = parted_columns(each(), cells)
    write = _parquet if path.suffix == ".parquet" else _csv
    write_whole(path, lambda draft: write(draft, own, of_specs, each(), cells))


def _csv(
    draft: Path, own: Mapping[str, str], of_specs: Mapping[str, str], records: Iterable[Record], cells: Cells
) -> None:
    """Write a frame as pandas does, with no text or column name that a spreadsheet would take for a formula. The end of a
    line, which is that of all records of a spec, is made once."""
    known = list[tuple[list[Any], str]]()
    columns = {**own, **of_specs}
    places = {name: (place, dtype) for place, (name, dtype) in enumerate(columns.items())}
    with draft.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="")
        lines.writerow(map(cell, columns))
        file.write("\n")
        for record in records:
            found, of_spec = cells.own(record), cells.place(record)
            for one in cells.known[len(known) :]:
                _fill(whole := [None] * len(columns), one, places)
                known.append((whole[: len(own)], _end(whole[len(own) :])))
            start, end = known[of_spec]
            _fill(line := start.copy(), found, places)
            lines.writerow(line)
            file.write(end)


def _end(values: Sequence[Any]) -> str:
    """The end of a line of .csv, from the comma before these cells."""
    text = io.StringIO()
    if values:
        csv.writer(text, lineterminator="").writerow([None, *values])
    return f"{text.getvalue()}\n"


def _fill(line: list[Any], values: Mapping[str, Any], places: Mapping[str, tuple[int, str]]) -> None:
    for name, value in values.items():
        place, dtype = places[name]
        if dtype == "float64":
            line[place] = None if value != value else float(value)  # no number
        else:
            line[place] = _safe(said) if isinstance(said := cell_of(value, dtype), str) else said


_safe = lru_cache(maxsize=100_000)(cell)


def _parquet(
    draft: Path, own: Mapping[str, str], of_specs: Mapping[str, str], records: Iterable[Record], cells: Cells
) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow.parquet import ParquetWriter

    columns = {**own, **of_specs}
    schema = pa.Schema.from_pandas(frame([], columns), preserve_index=False)
    kinds = dict(zip(schema.names, schema.types, strict=True))
    rest = iter(records)

    def arrays(rows: Iterable[Mapping[str, Any]], count: int) -> dict[str, pa.Array]:
        """Arrays of the columns that any of so many rows has."""
        found: dict[str, list[Any]] = {}
        for number, row in enumerate(rows):
            for name, value in row.items():
                if name not in found:
                    found[name] = [None] * count
                found[name][number] = value
        return {
            name: pa.array(cells_of(said, columns[name]), kinds[name], from_pandas=True) for name, said in found.items()
        }

    def table(some: Sequence[Record]) -> pa.Table:
        """The rows of these records."""
        figures = arrays(map(cells.own, some), len(some))
        places = [cells.place(record) for record in some]
        numbers = {place: number for number, place in enumerate(dict.fromkeys(places))}
        which = pa.array([numbers[place] for place in places])
        said = arrays((cells.known[place] for place in numbers), len(numbers))
        leaves = {name: values.take(which) for name, values in said.items()}
        both = {name: pc.coalesce(figures[name], leaves[name]) for name in figures.keys() & leaves.keys()}
        made = leaves | figures | both
        made |= {name: pa.nulls(len(some), kind) for name, kind in kinds.items() if name not in made}
        return pa.table([made[name] for name in columns], schema=schema)

    with ParquetWriter(draft, schema) as file:
        while some := list(islice(rest, AT_ONCE)):
            file.write_table(table(some))
            del some  # before the next are read
