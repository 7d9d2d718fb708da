"""Records written for other programs, a few at a time: a ledger may be larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from recallmap.results.atomic_write import write_whole
from recallmap.results.exports.frame import columns_of, frame, harmless
from recallmap.results.record import Record

if TYPE_CHECKING:
    import pandas as pd

AT_ONCE = 2000  # records


def export(each: Callable[[], Iterable[Record]], path: Path) -> None:
    """Write records as `.parquet` or `.csv`, with the columns of `frame`. `each` gives all of them whenever it is called: they
    are gone through twice, first for the columns. Raises OSError."""
    columns = columns_of(each())
    write = _parquet if path.suffix == ".parquet" else _csv
    write_whole(path, lambda draft: write(draft, _pieces(each(), columns)))


def _pieces(records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[pd.DataFrame]:
    """At least one, for the columns."""
    rest = iter(records)
    yield frame(islice(rest, AT_ONCE), columns)
    while some := list(islice(rest, AT_ONCE)):
        yield frame(some, columns)


def _csv(draft: Path, pieces: Iterator[pd.DataFrame]) -> None:
    with draft.open("w", encoding="utf-8", newline="") as file:
        for number, piece in enumerate(pieces):
            harmless(piece).to_csv(file, index=False, header=not number)


def _parquet(draft: Path, pieces: Iterator[pd.DataFrame]) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    first = pa.Table.from_pandas(next(pieces), preserve_index=False)
    with ParquetWriter(draft, first.schema) as file:
        file.write_table(first)
        for piece in pieces:
            file.write_table(pa.Table.from_pandas(piece, schema=first.schema, preserve_index=False))
