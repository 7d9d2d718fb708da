"""Files of records: a ledger, a .jsonl, or a folder of these, and those that come with the package."""

from __future__ import annotations

import os
from collections.abc import Collection
from importlib import resources
from pathlib import Path

from recallmap.results.ledger import Ledger, LedgerError
from recallmap.results.record import Record, read_records, unique

LEDGERS = (".sqlite", ".db")

SUFFIXES = (*LEDGERS, ".jsonl")

_SQLITE = b"SQLite format 3\0"  # how every file of SQLite begins


def kept() -> Path:
    """The folder of the records that come with the package."""
    return Path(str(resources.files("recallmap.results").joinpath("records")))


def read(
    path: Path, *, patient: bool = False, curves: bool = True, keys: Collection[str] | None = None
) -> list[Record]:
    """The records of a ledger, of a file of records, or of all of these in a folder; `keys` limits them. A key counts once,
    `done` first. Raises LedgerError."""
    if patient and not os.path.exists(path):
        return []
    inside = files(path)
    if inside == [path]:
        return _read(path, curves, keys)
    return unique(record for file in inside for record in _read(file, curves, keys))


def named(path: Path) -> dict[str, Path]:
    """Files as of `files`, by their names without suffix, or with it where two have one name. Raises LedgerError."""
    inside = files(path)
    stems = [file.stem for file in inside]
    return {file.name if stems.count(file.stem) > 1 else file.stem: file for file in inside}


def by_file(path: Path) -> dict[str, list[Record]]:
    """Records as of `read`, by the names of `named`. Raises LedgerError."""
    return {name: _read(file) for name, file in named(path).items()}


def files(path: Path) -> list[Path]:
    """The ledgers and files of records in a folder; the path itself where it is no folder. Raises LedgerError where the
    folder has none."""
    if not os.path.isdir(path):
        return [path]
    try:
        inside = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not inside:
        raise LedgerError(f"{path}: this folder holds no records, expected files in {', '.join(LEDGERS)} or .jsonl")
    return inside


def _read(path: Path, curves: bool = True, keys: Collection[str] | None = None) -> list[Record]:
    if not is_lines(path):
        with Ledger.open(path) as ledger:
            return ledger.all(curves=curves) if keys is None else ledger.of(keys, curves=curves)
    try:
        return read_records(path, keys=keys)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # it names the file and the line
        raise LedgerError(str(error)) from error


def is_lines(path: Path) -> bool:
    """True for a file of records, one a line."""
    begin = _begin(path)
    return begin != _SQLITE and (path.suffix == ".jsonl" or begin.lstrip().startswith(b"{"))


def _begin(path: Path) -> bytes:
    """The first bytes of a file; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE))
    except (OSError, ValueError):
        return b""


def is_ledger(path: Path) -> bool:
    """True for a ledger, by the first bytes of the file."""
    return _begin(path) == _SQLITE
