"""Every finished trial, one row each, in one SQLite file: many may read it, one driver writes it."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
import sqlite3
import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from results.frame import frame, harmless
from results.record import Record, to_json, write_records
from results.write import write_whole

if TYPE_CHECKING:
    import pandas as pd

LAYOUT = 1  # of the file; raise it when a reader of the layout before could not read it
MARK = 0x7265636D  # SQLite's application_id: the file is a ledger of ours

COLUMNS = {  # what SQL and an index can see of a record; `record` holds it whole, as JSON
    "key": "TEXT PRIMARY KEY",
    "study": "TEXT",
    "status": "TEXT",
    "task": "TEXT",
    "setting": "TEXT",
    "protocol": "TEXT",
    "arch": "TEXT",
    "seed": "INTEGER",
    "metric": "TEXT",
    "score": "REAL",  # of `metric`, on test
    "accuracy": "REAL",  # on test, where the task has one
    "validation": "REAL",  # of `metric`, on validation
    "chance": "REAL",
    "ceiling": "REAL",
    "parameters": "INTEGER",
    "state_bytes": "INTEGER",
    "state_grows": "INTEGER",
    "length": "INTEGER",
    "seconds": "REAL",
    "created": "TEXT",
    "error": "TEXT",
    "record": "TEXT",
}
INDICES = ("study", "task", "arch")

_KEEP = (
    f"INSERT INTO records ({', '.join(COLUMNS)}) VALUES ({', '.join(f':{name}' for name in COLUMNS)}) "
    f"ON CONFLICT (key) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in COLUMNS if name != 'key')} "
    "WHERE records.status = 'failed' AND (excluded.status = 'done' "
    "OR excluded.created >= records.created AND excluded.record != records.record)"  # a done record stands
)


class LedgerError(Exception):
    """The ledger cannot be used; the message says why and what to do."""


class Ledger:
    """The records of one file.

    `with Ledger(path) as ledger:` is the driver's way: it makes the file and its folder where there are none, and holds
    the file for writing, so that a second driver is refused before it trains anything. Without `with`, nothing is made
    or held until the first `add`. `Ledger.open(path)` reads alone, and may read while a driver writes.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._reading = False
        self._db: sqlite3.Connection | None = None
        self._lock: weakref.finalize[..., Ledger] | None = (
            None  # lets go of the lock; also when nobody closes the ledger
        )
        if self._exists():
            self._db = self._connect("rw")

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Ledger:
        """For reading alone. Raises LedgerError where there is no ledger."""
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
        """Let go of the file; everything added is in it already."""
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._lock is not None:
            self._lock()
            self._lock = None

    def add(self, record: Record) -> bool:
        """Keep a record; when this returns it survives a crash. A `done` record is never replaced, a failed one by what is
        done or failed later; False where one stays. Raises LedgerError where it cannot be written, or where the record is not
        plain data."""
        self._hold()
        try:
            row = _row(record)
        except (TypeError, ValueError) as error:
            raise LedgerError(f"the record of {record.arch} on {record.task} is not plain data: {error}") from error
        with self._translate(f"cannot keep the record of {record.arch} on {record.task} in {self.path}"):
            return self._opened().execute(_KEEP, row).rowcount > 0

    def keys(self) -> set[str]:
        """Keys of trials that are done; empty where no study has begun the ledger."""
        return {key for (key,) in self._ask("SELECT key FROM records WHERE status = 'done'")} if self._db else set()

    def get(self, key: str) -> Record | None:
        """The record under a key, or under the beginning of one if no other begins so."""
        found = self._ask("SELECT record FROM records WHERE substr(key, 1, ?) = ? LIMIT 2", (len(key), key))
        return self._read(found[0][0]) if len(found) == 1 else None

    def all(self) -> list[Record]:
        """Every record, in the order in which they were first kept."""
        return [self._read(text) for (text,) in self._ask("SELECT record FROM records ORDER BY rowid")]

    def records(self) -> pd.DataFrame:
        """Every record as a row of a pandas frame; see `frame`."""
        return frame(self.all())

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write all records as `.parquet` or `.csv` (the columns of `frame`), or whole as `.jsonl`."""
        export(self.all(), path)

    def merge(self, other: Ledger | Iterable[Record]) -> int:
        """Keep the records of another ledger too; how many of them were new here (or done where ours had failed)."""
        records = other.all() if isinstance(other, Ledger) else other
        self._hold()
        with self._translate(f"cannot merge into {self.path}"), self._transaction():
            return sum(self.add(record) for record in records)

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
                self._check(db)
        except LedgerError:
            if db is not None:
                db.close()
            raise
        weakref.finalize(self, db.close)
        return db

    def _dial(self, options: str) -> sqlite3.Connection:
        address = self.path.resolve().as_uri()
        # What nobody closed is closed by the thread that sweeps it up, whichever that is.
        connect = partial(sqlite3.connect, uri=True, isolation_level=None, check_same_thread=False)
        db = connect(f"{address}?{options}", timeout=30)
        try:
            db.execute("PRAGMA user_version")
        except sqlite3.OperationalError:
            db.close()
            if Path(f"{self.path}-wal").exists() or os.access(self.path.parent, os.W_OK) or options != "mode=rw":
                raise
            # A closed ledger in a folder that cannot be written: nothing is under way, so no side files are needed.
            return connect(f"{address}?immutable=1")
        return db

    def _check(self, db: sqlite3.Connection) -> None:
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
        if (fault := db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(fault)

    def _hold(self) -> None:
        """Be the one who writes, and have the table to write to."""
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
        self._claim()
        try:
            self._db = self._db or self._connect("rwc")
            with self._translate(f"cannot write to {self.path}"):
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = FULL")
                with self._transaction():
                    self._db.execute(f"PRAGMA application_id = {MARK}")
                    self._db.execute(f"PRAGMA user_version = {LAYOUT}")
                    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
                    self._db.execute(f"CREATE TABLE IF NOT EXISTS records ({columns})")
                    for name in INDICES:
                        self._db.execute(f"CREATE INDEX IF NOT EXISTS records_{name} ON records ({name})")
        except LedgerError:
            self.close()
            raise

    def _claim(self) -> None:
        """Lock a side file: the lock goes with the process, however it ends."""
        import fcntl  # not on every system; reading needs none of it

        side = Path(f"{self.path.resolve()}.lock")
        while self._lock is None:
            try:
                handle = os.open(side, os.O_RDWR | os.O_CREAT, 0o666)
            except OSError as error:
                raise LedgerError(
                    f"cannot write beside {self.path}: {error.strerror}; make its folder writable, or copy the ledger"
                ) from error
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.read(handle, 200).decode(errors="replace") or "another process"
                os.close(handle)
                raise LedgerError(
                    f"{self.path} is being written by {holder}; wait for it to end, or use another ledger"
                ) from error
            if side.exists() and os.fstat(handle).st_ino == side.stat().st_ino:
                now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
                os.ftruncate(handle, 0)
                os.write(handle, f"process {os.getpid()} on {socket.gethostname()} since {now}".encode())
                self._lock = weakref.finalize(self, _let_go, side, handle, os.getpid())
            else:  # the holder before us removed it between our open and our lock
                os.close(handle)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        db = self._opened()
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if db.in_transaction:  # SQLite itself rolls back when the disk is full
                db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

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

    def _read(self, text: str) -> Record:
        try:
            return Record.from_dict(json.loads(text))
        except (ValueError, TypeError) as error:
            raise LedgerError(f"{self.path} holds a row that is not a record: {error}; upgrade recallmap") from error

    @contextlib.contextmanager
    def _translate(self, doing: str) -> Iterator[None]:
        """SQLite's complaints in our words, each with a remedy."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            said = str(error).replace("*** in database main ***", "").strip()
            if "not a database" in said:
                reason = f"{self.path} is not an SQLite file; give the path of a ledger, or move this file away"
            elif "locked" in said:
                reason = f"{doing}: another program holds it; close that program and try again"
            elif "readonly" in said or "unable to open" in said:
                reason = f"{doing}: no permission; make the file and its folder writable, or copy the ledger elsewhere"
            elif "full" in said:
                reason = f"{doing}: the disk is full; free some space and run the same command again"
            elif isinstance(error, sqlite3.OperationalError):
                reason = f"{doing}: {said}"
            else:
                reason = (
                    f"{self.path} is damaged ({said}); restore a copy, or save what can be read with: "
                    f"sqlite3 {self.path} .recover | sqlite3 rescued.sqlite"
                )
            raise LedgerError(reason) from error


def export(records: Sequence[Record], path: str | os.PathLike[str]) -> None:
    """Write records as `.parquet` or `.csv` (the columns of `frame`), or whole as `.jsonl`. Raises LedgerError."""
    target = Path(path)
    if target.suffix not in (".parquet", ".csv", ".jsonl"):
        raise LedgerError(f"cannot export to '{target.name}': the name must end in .parquet, .csv or .jsonl")
    try:
        if target.suffix == ".parquet":
            write_whole(target, lambda draft: frame(records).to_parquet(draft, index=False))
        elif target.suffix == ".csv":
            write_whole(target, lambda draft: harmless(frame(records)).to_csv(draft, index=False))
        else:
            write_records(target, records)
    except OSError as error:
        raise LedgerError(f"cannot write {target}: {error.strerror or error}; choose another place") from error


def _let_go(side: Path, handle: int, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child, which has the handle but not the right
        side.unlink(missing_ok=True)  # while the lock is ours, so nobody else's file goes
    os.close(handle)


def _row(record: Record) -> dict[str, Any]:
    special = {
        "accuracy": record.scores.get("accuracy"),
        "validation": record.validation.get(record.metric),
        "record": to_json(record),
    }
    return {name: special[name] if name in special else getattr(record, name) for name in COLUMNS}
