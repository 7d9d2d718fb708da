"""The layout of a ledger's file: rows, their conversion to and from records, and the detection of damage.

A row has a record in three JSON texts: the part that trials share (their spec without its seed, the architecture's size,
...), the trial's own part, and its curve. So the first is read once for many, and the last only where it is shown.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from recallmap.results.plain_data.shared_parts import FIGURES, Joined, Pool, are_floats, figures_of, text_of, unjoined
from recallmap.results.record import FIELDS, NO_CURVE, NO_TESTS, SHORT, Record, address, faults_of, sound_record

LAYOUT = 2  # raise it when a reader of the layout before could not read the file

MARK = 0x7265636D  # SQLite's application_id: the file is a ledger of ours

HEADLINE = {  # the fields of a record that SQL and an index can see
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
}

TEXTS = {"common": "TEXT", "own": "TEXT", "curve": "TEXT"}

CHECKS = {"mark": "INTEGER", "checksum": "INTEGER"}  # of key and status, which an index has; and of all of the row

COLUMNS = HEADLINE | TEXTS | CHECKS

NEW = [*TEXTS, *CHECKS]  # columns that layout 1 has not

OLD_COLUMNS = HEADLINE | {"record": "TEXT"}  # of layout 1: a record whole, and nothing to check it by but its key

COMMON = (  # fields that are in the text that trials have in common
    *("study", "task", "setting", "protocol", "arch", "metric", "chance", "ceiling", "parameters", "state_floats"),
    *("state_bytes", "state_grows", "length", "flops_per_token", "cohort", "device", "implementation", "versions"),
    "commit",
)

TABLE = f"CREATE TABLE IF NOT EXISTS records ({', '.join(f'{name} {kind}' for name, kind in COLUMNS.items())})"

INDICES = (
    *(f"CREATE INDEX IF NOT EXISTS records_{name} ON records ({name})" for name in ("study", "task", "arch")),
    "CREATE INDEX IF NOT EXISTS records_status ON records (status, key, mark)",
)

TOTALS = (  # that rows are neither lost nor counted twice where a page of the file is damaged
    "CREATE TABLE IF NOT EXISTS totals (rows INTEGER, marks INTEGER, checksums INTEGER)",
    "CREATE TRIGGER IF NOT EXISTS records_in AFTER INSERT ON records BEGIN UPDATE totals SET "
    "rows = rows + 1, marks = marks + new.mark, checksums = checksums + new.checksum; END",
    "CREATE TRIGGER IF NOT EXISTS records_out AFTER DELETE ON records BEGIN UPDATE totals SET "
    "rows = rows - 1, marks = marks - old.mark, checksums = checksums - old.checksum; END",
    "CREATE TRIGGER IF NOT EXISTS records_over AFTER UPDATE ON records BEGIN UPDATE totals SET "
    "marks = marks - old.mark + new.mark, checksums = checksums - old.checksum + new.checksum; END",
)

COUNT = "INSERT INTO totals SELECT count(*), coalesce(sum(mark), 0), coalesce(sum(checksum), 0) FROM records"

KEEP = (
    f"INSERT INTO records ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))}) "
    f"ON CONFLICT (key) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in COLUMNS if name != 'key')} "
    "WHERE records.status = 'failed' AND (excluded.status = 'done' "
    "OR excluded.created >= records.created AND excluded.checksum != records.checksum)"  # a done record stands
)

Known = dict[tuple[Any, ...], tuple[Any, str]]  # by what texts are made of: what is told by identity, and the text

MOST_KNOWN = 10_000

Row = tuple[Any, ...]  # the values of COLUMNS, or of OLD_COLUMNS, in their order; read ones have text as bytes

HEAD, ALL = len(HEADLINE), len(COLUMNS)


class Damaged(ValueError):
    """A row that differs from what was written."""

    def __init__(self, row: Row, why: str) -> None:
        super().__init__(f"the record {key_in(row)[:SHORT]}: {why}")


def key_in(row: Row) -> str:
    """The key of a row, as far as it can be read."""
    return row[0].decode(errors="backslashreplace") if isinstance(row[0], bytes) else "without a key"


def row_of(record: Record, known: Known | None = None, *, checked: bool = False) -> Row:
    """The row of a record. Raises TypeError or ValueError where the record is not sound.

    known    shared texts of earlier records, for records that are read together
    checked  `Record.from_dict` has found the record sound, so that it is not checked twice
    """
    if not checked and (faults := faults_of(record)):
        raise ValueError(faults)
    row = (*_headline(record), *_texts(record, {} if known is None else known))
    row = (*row, mark_of(record.key.encode(), record.status.encode()))
    return (*row, _checksum(tuple(value.encode() if isinstance(value, str) else value for value in row)))


def rows_of(records: Iterable[Record]) -> Iterator[Row]:
    """The rows of records that `Record.from_dict` has found sound."""
    known: Known = {}
    for record in records:
        yield row_of(record, known, checked=True)


def whole(row: Row) -> Row:
    """A row of COLUMNS, ready to be written again. Raises Damaged where it differs from what was written."""
    if _checksum(row[:-1]) != row[-1]:
        raise Damaged(row, "its checksum is another")
    return tuple(value.decode() if isinstance(value, bytes) else value for value in row)


def record_of(row: Row, pool: Pool, *, curves: bool = True) -> Record:
    """The record of a row of COLUMNS. Without `curves` it has no curve, except for a trial in phases, whose curve shows the
    start of its phases. Raises Damaged, and ValueError on a record of another version."""
    if _checksum(row[:-1]) != row[-1]:
        raise Damaged(row, "its checksum is another")
    common_text, own_text, curve_text, *_ = row[HEAD:]
    try:
        common, spec, without_scores, names = pool.read(common_text)
        own = pool.own(_read(own_text.decode())[0], names)  # its checksum says that nothing follows
        seed = own.pop("spec")
        scores, validation, published, *tests = own.pop("figures")
        own |= common
        own["spec"] = Joined(spec, "seed", seed["seed"]) if seed else spec
        own["scores"], own["validation"], own["published_choice"] = scores, validation, published
        tested = [Joined(test, "scores", figures) for test, figures in zip(without_scores, tests, strict=True)]
        curve = json.loads(curve_text.decode()) if curves or "phases" in spec else None
        own["tests"], own["curve"] = tested or NO_TESTS, curve or NO_CURVE
        return sound_record(own)
    except (KeyError, TypeError) as error:
        raise ValueError(f"a record of another version: {error}") from error


def old_record_of(row: Row, pool: Pool, address: Callable[[Mapping[str, Any]], str] = address) -> Record:
    """The record of a row of OLD_COLUMNS, which has no checksum: its key must be that of its spec (its `address`), and its
    columns must agree with the record. Raises Damaged."""
    try:
        record = Record.from_dict(json.loads(row[-1]), pool)
    except (ValueError, TypeError, RecursionError) as error:
        raise Damaged(row, f"it is not a record: {error}") from error
    if address(record.spec) != record.key:
        raise Damaged(row, "its key is not that of its spec")
    if tuple(value.encode() if isinstance(value, str) else value for value in _headline(record)) != row[:-1]:
        raise Damaged(row, "its columns do not say what it says")
    return record


def mark_of(key: bytes, status: bytes) -> int:
    """The mark by which an index shows that a key is as it was written."""
    return zlib.crc32(b"%b %b" % (status, key))


def _texts(record: Record, known: Known) -> tuple[str, str, str]:
    """The three texts of a record: the shared part, its own part, and its curve."""
    spec, seed = unjoined(record.spec, "seed")
    tests = [unjoined(test, "scores") for test in record.tests]
    figures = [getattr(record, name) for name in FIGURES] + [own.get("scores", {}) for _, own in tests]
    names = [tuple(sorted(scores)) if are_floats(scores) else None for scores in figures]
    values = [figures_of(scores, own) if own else dict(scores) for scores, own in zip(figures, names, strict=True)]
    mappings, plain = [spec, *(shared for shared, _ in tests), *_MAPPINGS(record)], _PLAIN(record)
    told = (*map(id, mappings), plain, tuple(map(type, plain)), *names)
    if told not in known:
        if len(known) >= MOST_KNOWN:
            known.clear()
        common = {name: getattr(record, name) for name in COMMON}
        common |= {"spec": spec, "tests": [shared for shared, _ in tests], "figures": names}
        known[told] = mappings, text_of(common)  # with them, so that nothing else gets their places in memory
    own = dict(zip(_APART, _PARTS(record), strict=True), spec=seed, figures=values)
    return known[told][1], text_of(own), text_of(record.curve)


_read = json.JSONDecoder().raw_decode

_APART = tuple(name for name in FIELDS if name not in (*COMMON, *FIGURES, "spec", "tests", "curve"))

_PARTS = attrgetter(*_APART)

_MAPPINGS = attrgetter("implementation", "versions")

_PLAIN = attrgetter(*(name for name in COMMON if name not in ("implementation", "versions")))


def _headline(record: Record) -> list[Any]:
    """The values of HEADLINE as SQLite gives them back."""
    special = {"accuracy": record.scores.get("accuracy"), "validation": record.validation.get(record.metric)}
    values = [(kind, special[name] if name in special else getattr(record, name)) for name, kind in _HEADLINE]
    return [value if value is None else kind(value) for kind, value in values]


_AS: dict[str, Callable[[Any], Any]] = {
    "TEXT": str,
    "INTEGER": int,
    "REAL": lambda value: float(value) + 0.0,
}  # no -0.0

_HEADLINE = [(name, _AS[kind.split()[0]]) for name, kind in HEADLINE.items()]


def _checksum(row: Row) -> int:
    """The checksum of all other columns."""
    check = zlib.crc32(repr((row[:HEAD], row[-1])).encode())
    for text in row[HEAD:-1]:
        check = zlib.crc32(text, check) if isinstance(text, bytes) else zlib.crc32(repr(text).encode(), check)
    return check
