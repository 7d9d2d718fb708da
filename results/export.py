"""Records written for other programs, a few at a time: a ledger may be larger than memory."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from results.frame import columns_of, rows_of
from results.record import Record
from results.write import write_whole

AT_ONCE = 2000  # records

Row = Mapping[str, Any]  # the cells that are set, by column


def export(each: Callable[[], Iterable[Record]], path: Path) -> None:
    """Write records as `.parquet` or `.csv`, with the columns of `frame`. `each` gives all of them whenever it is called: they
    are gone through twice, first for the columns. Raises OSError."""
    columns = columns_of(each())
    write = _parquet if path.suffix == ".parquet" else _csv
    write_whole(path, lambda draft: write(draft, columns, rows_of(each(), columns)))


def _csv(draft: Path, columns: Mapping[str, str], rows: Iterator[Row]) -> None:
    with draft.open("w", encoding="utf-8", newline="") as file:
        lines = csv.DictWriter(file, list(columns), lineterminator="\n")
        lines.writeheader()
        lines.writerows(rows)


def _parquet(draft: Path, columns: Mapping[str, str], rows: Iterator[Row]) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    numbers = {"int64": pa.int64(), "float64": pa.float64()}
    kinds = {"object": pa.null(), "bool": pa.bool_(), "boolean": pa.bool_(), "str": pa.large_string(), **numbers}
    schema = pa.schema([(name, kinds[dtype]) for name, dtype in columns.items()])
    with ParquetWriter(draft, schema) as file:
        while some := list(islice(rows, AT_ONCE)):
            cells = [pa.array([row.get(name) for row in some], kinds[dtype]) for name, dtype in columns.items()]
            file.write_table(pa.table(cells, schema=schema))
