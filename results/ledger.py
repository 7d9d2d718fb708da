"""The ledger: every finished trial as a row of one SQLite file, which many may read and one driver writes."""

from __future__ import annotations

import contextlib
import gc
import os
import sqlite3
import weakref
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from recallmap.results.atomic_write import remedy
from recallmap.results.exports.frame import frame
from recallmap.results.exports.pieces import export as write_rows
from recallmap.results.plain_data.shared_parts import Pool
from recallmap.results.record import ORDER, Addresses, Record, write_lines, write_records
from recallmap.results.storage.layout import (
    COLUMNS,
    COUNT,
    INDICES,
    KEEP,
    LAYOUT,
    MARK,
    NEW,
    OLD_COLUMNS,
    TABLE,
    TOTALS,
    Damaged,
    Known,
    Row,
    key_in,
    mark_of,
    old_record_of,
    record_of,
    row_of,
    whole,
)
from recallmap.results.storage.lock import LedgerError, lock, refuse_names

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

CACHE = 64 * 1024  # KiB of pages that a driver holds: keys come in no order, and each writes to some page of an index
EXPORTED = (".parquet", ".csv")  # tables for other programs, from which no records are read

SYNCHRONOUS = "FULL"  # SQLite's word for: what is kept outlives a power cut


@dataclass(kw_only=True)
class LeftOut:
    """Rows that a damaged ledger could not give: the keys of changed rows, and the number of lost ones."""

    keys: list[str] = field(default_factory=list)
    lost: int = 0

    def __len__(self) -> int:
        return len(self.keys) + self.lost


class Ledger:
    """The records of one file.

    `with Ledger(path) as ledger:` is for drivers: it makes the file and its folder where there are none, and locks the
    file for writing, so that a second driver is refused before it trains anything. Without `with`, nothing is made or
    locked until the first `add`. `Ledger.open(path)` only reads, also while a driver writes.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._reading = False
        self._db: sqlite3.Connection | None = None
        self._known: Known = {}
        self._lock: weakref.finalize[..., object] | None = (
            None  # lets go of the lock; also when nobody closes the ledger
        )
        if self._exists():
            self._db = self._connect("rw")

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Ledger:
        """Open a ledger for reading. Raises LedgerError where there is none."""
        ledger = cls(path)
        ledger._reading = True
        ledger._opened()
        return ledger

    def __enter__(self) -> Ledger:
        if not self._reading:
            self._hold()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return sum(count for (count,) in self._ask("SELECT count(*) FROM records")) if self._db else 0

    def close(self) -> None:
        """Release the file; everything added is in it already."""
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._lock is not None:
            self._lock()
            self._lock = None

    def add(self, record: Record) -> bool:
        """Keep a record; once this returns, it survives a crash. A `done` record is never replaced, a failed one by a later
        record; False where the old one stays. Raises LedgerError where it cannot be written, or where the record is not
        sound (see `Record.from_dict`)."""
        self._hold()
        try:
            row = row_of(record, self._known)
        except (TypeError, ValueError, OverflowError) as error:
            raise LedgerError(f"cannot keep the record of {record.arch} on {record.task}: {error}") from error
        with self._translate(f"cannot keep the record of {record.arch} on {record.task} in {self.path}"):
            return self._keep(row)

    def keys(self) -> set[str]:
        """Keys of trials that are done; empty where no study has begun the ledger."""
        if self._db is None:
            return set()
        with self._snapshot() as (db, layout):
            return {key for _, status, key in self._index(db, layout) if status == "done"}

    def get(self, key: str) -> Record | None:
        """The record under a key, or under the beginning of one if no other begins so."""
        db = self._opened()
        with self._translate(f"cannot read {self.path}"):
            if not (layout := self._layout(db)):
                return None
            found = db.execute(
                f"SELECT {_columns(layout)} FROM records WHERE key >= ? AND key < ? ORDER BY key LIMIT 2",
                (key, f"{key}\U0010ffff"),
            ).fetchall()
        if len(found) == 1 or (found and found[0][0] == key.encode()):
            return self._read(found[0], layout, Pool())
        return None

    def of(self, keys: Collection[str], *, curves: bool = True) -> list[Record]:
        """The records under these keys, in the order in which they were first kept."""
        wanted, pool = frozenset(keys), Pool()
        with unswept(), self._snapshot() as (db, layout):
            places = sorted(row for row, _, key in self._index(db, layout) if key in wanted)
            question = f"SELECT {_columns(layout)} FROM records WHERE rowid = ?"
            rows = [db.execute(question, (place,)).fetchone() for place in places]
            if None in rows:
                raise self._damage("its index of keys leads to no record")
            found = [self._read(row, layout, pool, curves=curves) for row in rows]
        if {record.key for record in found} - wanted:
            raise self._damage("its index of keys leads to other records")
        return found

    def all(self, *, curves: bool = True) -> list[Record]:
        """Every record, in the order in which they were first kept."""
        with unswept():
            return list(self.each(curves=curves))

    def each(
        self, *, curves: bool = True, ordered: str = "", left_out: LeftOut | None = None, pool: Pool | None = None
    ) -> Iterator[Record]:
        """Every record, one after another, as the ledger was when the first was asked for.

        curves    read their curves, which tables do not show
        ordered   columns to sort by; otherwise the order in which records were first kept
        left_out  collects damaged rows, so that the rest comes; without it damage raises LedgerError
        pool      shared parts of records that are read before or after these
        """
        pool = Pool() if pool is None else pool
        return self._walk(lambda row, layout: _record(row, layout, pool, curves=curves), ordered, left_out)

    def rows(self, *, left_out: LeftOut | None = None) -> Iterator[Row]:
        """Every record as a row of the layout that this version writes, for another ledger to `merge`."""
        pool, known, address = Pool(passing=True), self._known, Addresses()

        def made(row: Row, layout: int) -> Row:
            if layout == LAYOUT:
                return whole(row)
            return row_of(old_record_of(row, pool, address), known, checked=True)

        return self._walk(made, "", left_out)

    def records(self) -> pd.DataFrame:
        """Every record as a row of a pandas frame; see `frame`."""
        return frame(self.all())

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write all records as `.parquet` or `.csv` (the columns of `frame`), or whole as `.jsonl`: as they are
        when it begins."""
        pool = Pool()
        with unswept(), self._snapshot() as now:  # it is read twice, and a driver may add records in between

            def each() -> Iterator[Record]:  # no frame has curves
                return self._walk(lambda row, layout: _record(row, layout, pool, curves=False), "", None, now)

            _export(Path(path), each, lambda target: write_lines(target, self.each(ordered=", ".join(ORDER))))

    def merge(self, *others: Ledger | Iterable[Record | Row]) -> int:
        """Keep the records of others too, or none where one of them fails. Returns the number of those that were new here, or
        done where ours had failed."""
        self._hold()
        with unswept(), self._translate(f"cannot merge into {self.path}"), self._transaction():
            return sum(
                self.add(one) if isinstance(one, Record) else self._keep(one)
                for other in others
                for one in (other.rows() if isinstance(other, Ledger) else other)
            )

    def _keep(self, row: Row) -> bool:
        return self._opened().execute(KEEP, row).rowcount > 0

    # The file

    def _exists(self) -> bool:
        try:
            if self.path.is_dir():
                raise LedgerError(f"{self.path} is a folder, a ledger is a file; give {self.path / 'NAME.sqlite'}")
            return self.path.exists()
        except OSError as error:
            raise LedgerError(f"cannot look at {self.path}: {error.strerror}; choose another place") from error

    def _connect(self, mode: str) -> sqlite3.Connection:
        """A checked connection. mode "rw": the file must exist; "rwc": it is made."""
        db = None
        try:
            with self._translate(f"cannot open {self.path}"):
                db = self._dial(f"mode={mode}")
                self._layout(db)
        except LedgerError:
            if db is not None:
                db.close()
            raise
        weakref.finalize(self, db.close)
        return db

    def _dial(self, options: str) -> sqlite3.Connection:
        """A connection. Text comes as bytes, because in a damaged file it may be no text."""
        address = self.path.resolve().as_uri()
        # A connection that nobody closed is closed by the thread that collects it, whichever that is.
        connect = partial(sqlite3.connect, uri=True, isolation_level=None, check_same_thread=False)
        db = connect(f"{address}?{options}", timeout=30)
        try:
            db.execute("PRAGMA user_version")
        except sqlite3.OperationalError:
            db.close()
            if Path(f"{self.path}-wal").exists() or os.access(self.path.parent, os.W_OK) or options != "mode=rw":
                raise
            # A closed ledger in a folder that cannot be written: nothing is under way, so no side files are needed.
            db = connect(f"{address}?immutable=1")
        db.text_factory = bytes
        return db

    def _layout(self, db: sqlite3.Connection) -> int:
        """The layout of the file, 0 where nothing was written to it yet. Raises LedgerError where we cannot read it."""
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        (version,), (mark,) = (
            db.execute("PRAGMA user_version").fetchone(),
            db.execute("PRAGMA application_id").fetchone(),
        )
        if tables and mark != MARK:
            raise LedgerError(f"{self.path} is an SQLite file, but not a ledger; give the path of a ledger")
        if version > LAYOUT:
            raise LedgerError(
                f"{self.path} has layout {version}, of a newer recallmap; this one reads {LAYOUT}: upgrade recallmap"
            )
        if b"records" not in tables:
            return 0
        if version < 1 or (version < LAYOUT) == (b"totals" in tables):
            raise self._damage(f"it says that it has layout {version}, which it has not")
        return int(version)

    def _hold(self) -> None:
        """Become the one writer, and make the table where there is none."""
        if self._lock is not None:
            return
        if self._reading:
            raise LedgerError(f"{self.path} was opened for reading; open it with Ledger(path) to add to it")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerError(
                f"cannot make the folder {self.path.parent}: {error.strerror}; choose another place for the ledger"
            ) from error
        self._lock = lock(self.path, self)
        try:
            self._db = self._db or self._connect("rwc")
            with self._translate(f"cannot write to {self.path}"):
                self._db.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute(f"PRAGMA cache_size = -{CACHE}")
                with self._transaction():
                    self._prepare(self._db)
        except LedgerError:
            self.close()
            raise

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Bring the file to LAYOUT. A ledger of an older layout is converted row by row."""
        layout = self._layout(db)
        db.execute(f"PRAGMA application_id = {MARK}")
        db.execute(TABLE)
        if layout == 1:
            self._upgrade(db)
        db.execute(f"PRAGMA user_version = {LAYOUT}")
        for statement in (*INDICES, *TOTALS):
            db.execute(statement)
        if not db.execute("SELECT 1 FROM totals").fetchone():
            db.execute(COUNT)

    def _upgrade(self, db: sqlite3.Connection) -> None:
        self._sound(db, 1)
        pool = Pool(passing=True)
        known: Known = {}
        for name in NEW:
            db.execute(f"ALTER TABLE records ADD COLUMN {name} {COLUMNS[name]}")
        said = ", ".join(f"{name} = ?" for name in NEW)
        places = [place for (place,) in db.execute("SELECT rowid FROM records ORDER BY rowid")]
        for place in places:
            row = db.execute(f"SELECT {_columns(1)} FROM records WHERE rowid = ?", (place,)).fetchone()
            new = dict(zip(COLUMNS, row_of(self._read(row, 1, pool), known, checked=True), strict=True))
            db.execute(
                f"UPDATE records SET record = NULL, {said} WHERE rowid = ?", (*(new[name] for name in NEW), place)
            )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        db = self._opened()
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:  # SQLite itself rolls back when the disk is full
                db.execute("ROLLBACK")
            raise

    def _opened(self) -> sqlite3.Connection:
        if self._db is None and not self._exists():
            raise LedgerError(
                f"there is no ledger at {self.path}; check the path, or fill one with: recallmap run STUDY"
            )
        if self._db is None:
            self._db = self._connect("rw")
        return self._db

    def _ask(self, question: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        db = self._opened()
        with self._translate(f"cannot read {self.path}"):
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'records'").fetchone():
                return []  # a driver has made the file and not yet begun
            return db.execute(question, values).fetchall()

    # Reading

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[tuple[sqlite3.Connection, int]]:
        """A connection of its own that sees the ledger as it is now, whatever is added meanwhile, and the layout."""
        self._opened()
        with self._translate(f"cannot read {self.path}"):
            db = self._dial("mode=rw")
            try:
                db.execute("BEGIN")
                yield db, self._layout(db)
            finally:
                db.close()

    def _index(self, db: sqlite3.Connection, layout: int) -> list[tuple[int, str, str]]:
        """Row, status and key of every record, from an undamaged index, or from the whole file."""
        if not layout:
            return []
        self._sound(db, layout)
        index = " INDEXED BY records_status" if layout == LAYOUT else ""
        found = db.execute(f"SELECT rowid, status, key FROM records{index}").fetchall()
        try:
            if layout < LAYOUT or _adds_up(found, _totals(db)):
                return [(place, status.decode(), key.decode()) for place, status, key in found]
        except (TypeError, ValueError, AttributeError):  # what should be text is none
            pass
        raise self._damage("its index of keys is not as it was written")

    def _walk(
        self,
        make: Callable[[Row, int], T],
        ordered: str,
        left_out: LeftOut | None,
        snapshot: tuple[sqlite3.Connection, int] | None = None,
    ) -> Iterator[T]:
        """The results of a function of every row, see `each`; of the ledger as it is now where no snapshot is given."""
        with contextlib.nullcontext(snapshot) if snapshot else self._snapshot() as (db, layout):
            count = checksums = 0
            for row in self._rows(db, layout, ordered, salvage=left_out is not None):
                try:
                    made = make(row, layout)
                except ValueError as error:
                    if left_out is None:
                        raise self._unread(error) from error
                    left_out.keys.append(key_in(row))
                    continue
                count, checksums = count + 1, checksums + (row[-1] if layout == LAYOUT else 0)
                yield made
            if layout == LAYOUT and left_out is None:
                rows, _, sums = _totals(db)
                if (count, checksums) != (rows, sums):
                    raise self._damage(f"it says that it holds {rows} records; {count} were found, or others")
            elif layout == LAYOUT and left_out is not None:
                with contextlib.suppress(sqlite3.DatabaseError):  # the totals may be damaged themselves
                    left_out.lost = max(0, _totals(db)[0] - count - len(left_out.keys))

    def _rows(self, db: sqlite3.Connection, layout: int, ordered: str, *, salvage: bool) -> Iterator[Row]:
        """Every row; with `left_out`, the rows outside of damaged pages."""
        if not layout:
            return
        if not salvage:
            self._sound(db, layout)
        columns = f"{_columns(layout)} FROM records"
        if ordered:
            places = array("q", (place for (place,) in db.execute(f"SELECT rowid FROM records ORDER BY {ordered}")))
            for place in places:
                row = db.execute(f"SELECT {columns} WHERE rowid = ?", (place,)).fetchone()
                if row is None:
                    raise sqlite3.DatabaseError("a row is lost")
                yield row
            return
        last = 0
        while True:
            try:
                for place, *row in db.execute(f"SELECT rowid, {columns} WHERE rowid > ? ORDER BY rowid", (last,)):
                    last = max(last, place)
                    yield tuple(row)
                return
            except sqlite3.DatabaseError:
                last += 1  # row by row past the page that cannot be read
                if not salvage or last > _most(db):
                    raise

    def _sound(self, db: sqlite3.Connection, layout: int) -> None:
        """Check the whole file with SQLite, because older layouts have no totals."""
        if layout == 1 and (fault := db.execute("PRAGMA integrity_check(1)").fetchone()[0].decode()) != "ok":
            raise sqlite3.DatabaseError(fault)

    def _read(self, row: Row, layout: int, pool: Pool, *, curves: bool = True) -> Record:
        try:
            return _record(row, layout, pool, curves=curves)
        except ValueError as error:
            raise self._unread(error) from error

    def _unread(self, error: ValueError) -> LedgerError:
        if isinstance(error, Damaged):
            return self._damage(str(error))
        return LedgerError(f"{self.path} holds a row that is not a record: {error}; upgrade recallmap")

    def _damage(self, what: str) -> LedgerError:
        return LedgerError(
            f"{self.path} is damaged ({what}); restore a copy, or save what is whole with: "
            f"recallmap merge --skip-bad {self.path} -o rescued.sqlite"
        )

    @contextlib.contextmanager
    def _translate(self, doing: str) -> Iterator[None]:
        """SQLite's complaints in our words, each with a remedy."""
        try:
            yield
        except UnicodeDecodeError as error:  # of SQLite's complaint about text that is none
            raise self._damage("text in it is none") from error
        except sqlite3.DatabaseError as error:
            said = str(error).replace("*** in database main ***", "").strip()
            if "not a database" in said and self.path.suffix in EXPORTED:
                reason = (
                    f"{self.path} is a table, as recallmap export writes it for other programs, and no records are read from "
                    "it; give what it was exported from: a ledger (.sqlite or .db), a .jsonl of records, or a folder of these"
                )
            elif "not a database" in said:
                reason = f"{self.path} is not an SQLite file; give the path of a ledger, or move this file away"
            elif "locked" in said:
                reason = f"{doing}: another program holds it; close that program and try again"
            elif "readonly" in said or "unable to open" in said:
                reason = f"{doing}: no permission; make the file and its folder writable, or copy the ledger elsewhere"
            elif "full" in said:
                reason = f"{doing}: the disk is full; free some space and run the same command again"
            elif "I/O" in said:
                refuse_names(self.path)
                reason = f"{doing}: {said}; look whether the disk is full or broken, and run the same command again"
            elif isinstance(error, sqlite3.OperationalError) and "malformed" not in said:
                reason = f"{doing}: {said}"
            else:
                raise self._damage(said) from error
            raise LedgerError(reason) from error


def export(records: Sequence[Record], path: str | os.PathLike[str]) -> None:
    """Write records as `.parquet` or `.csv` (the columns of `frame`), or whole as `.jsonl`. Raises LedgerError."""
    _export(Path(path), lambda: records, lambda target: write_records(target, records))


def _export(target: Path, each: Callable[[], Iterable[Record]], lines: Callable[[Path], None]) -> None:
    if target.suffix not in (*EXPORTED, ".jsonl"):
        raise LedgerError(f"cannot export to '{target.name}': the name must end in .parquet, .csv or .jsonl")
    try:
        if target.suffix == ".jsonl":
            lines(target)
        else:
            write_rows(each, target)
    except OSError as error:
        raise LedgerError(f"cannot write {target}: {remedy(error)}") from error


@contextlib.contextmanager
def unswept() -> Iterator[None]:
    """Pause the garbage collector while there are records by the hundred thousand: they hold no cycles."""
    swept = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if swept:
            gc.enable()


def _columns(layout: int) -> str:
    return ", ".join(COLUMNS if layout == LAYOUT else OLD_COLUMNS)


def _record(row: Row, layout: int, pool: Pool, *, curves: bool = True) -> Record:
    return record_of(row, pool, curves=curves) if layout == LAYOUT else old_record_of(row, pool)


def _adds_up(found: list[tuple[int, bytes, bytes]], totals: tuple[int, int, int]) -> bool:
    return (len(found), sum(mark_of(key, status) for _, status, key in found)) == totals[:2]


def _most(db: sqlite3.Connection) -> int:
    """A bound of row numbers."""
    try:
        return int(db.execute("SELECT max(rowid) FROM records").fetchone()[0] or 0)
    except sqlite3.DatabaseError:  # where the last page is damaged: rows count up, and a page has few of them
        return int(db.execute("PRAGMA page_count").fetchone()[0] * 8)


def _totals(db: sqlite3.Connection) -> tuple[int, int, int]:
    """The number of rows, and the sums of their marks and checksums."""
    found = db.execute("SELECT rows, marks, checksums FROM totals").fetchall()
    if len(found) != 1:
        raise sqlite3.DatabaseError("it does not say how many records it holds")
    return found[0]
