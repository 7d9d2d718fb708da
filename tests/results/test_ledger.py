"""The ledger forgets nothing, has one writer, and says in a sentence what is wrong with a file."""

from __future__ import annotations

import dataclasses
import errno
import gc
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from recallmap.results.atomic_write import write_whole
from recallmap.results.exports import pieces
from recallmap.results.ledger import LAYOUT, Ledger, LedgerError
from recallmap.results.record import Record, read_records
from recallmap.results.storage.lock import writer_of

Make = Callable[..., Record]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "study.sqlite"


@pytest.fixture
def filled(path: Path, make: Make) -> Path:
    with Ledger(path) as ledger:
        for seed in range(3):
            ledger.add(make(seed=seed, score=0.5 + seed / 10))
        ledger.add(make(seed=3, error="out of memory"))
    return path


# What it keeps


def test_what_was_added_is_there_for_the_next_to_open_it(filled: Path, make: Make) -> None:
    with Ledger.open(filled) as ledger:
        assert len(ledger) == 4
        assert ledger.all() == [
            *(make(seed=s, score=0.5 + s / 10) for s in range(3)),
            make(seed=3, error="out of memory"),
        ]


def test_only_finished_trials_need_no_training(filled: Path, make: Make) -> None:
    assert Ledger(filled).keys() == {make(seed=s, score=0.5 + s / 10).key for s in range(3)}


def test_a_ledger_not_begun_has_no_keys_and_is_not_made_by_asking(path: Path) -> None:
    assert Ledger(path).keys() == set()
    assert len(Ledger(path)) == 0
    assert not path.parent.exists()


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("failed", "done", "done"),
        ("done", "failed", "done"),
        ("failed", "failed again", "failed again"),
        ("failed", "failed before", "failed"),
        ("failed", "failed", "failed"),
        ("done", "done again", "done"),
    ],
)
def test_a_finished_record_stands_and_a_failed_one_gives_way(
    first: str, second: str, kept: str, make: Make, path: Path
) -> None:
    def version(name: str) -> Record:
        status = "failed" if "failed" in name else "done"
        created = "2025-01-01T00:00:00+00:00" if "before" in name else make().created
        return Record.from_dict({**make().to_dict(), "status": status, "study": name, "created": created})

    with Ledger(path) as ledger:
        assert ledger.add(version(first))
        assert ledger.add(version(second)) == (kept == second != first)
        assert [r.study for r in ledger.all()] == [kept]


def test_a_ledger_that_nobody_closed_may_be_swept_up_by_any_thread(filled: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        kept: list[object] = [Ledger(filled)]
        kept.append(kept)
        del kept
        with ThreadPoolExecutor(1) as other:
            assert other.submit(gc.collect).result() > 0
    finally:
        gc.enable()


def test_a_record_is_found_by_its_key_or_the_beginning_of_it(filled: Path, make: Make) -> None:
    record = make(seed=1, score=0.6)
    ledger = Ledger.open(filled)
    assert ledger.get(record.key) == record
    assert ledger.get(record.key[:12]) == record
    assert ledger.get("") is None  # begins all of them
    assert ledger.get("no such key") is None
    assert ledger.get("%") is None


def test_plain_sql_reads_the_headline(filled: Path) -> None:
    db = sqlite3.connect(filled)
    rows = db.execute("SELECT arch, seed, status, accuracy FROM records ORDER BY seed").fetchall()
    db.close()
    assert rows == [
        ("mesa", 0, "done", 0.5),
        ("mesa", 1, "done", 0.6),
        ("mesa", 2, "done", 0.7),
        ("mesa", 3, "failed", None),
    ]


def test_merging_takes_what_is_new_or_better(filled: Path, make: Make, tmp_path: Path) -> None:
    with Ledger(tmp_path / "other.sqlite") as other:
        other.add(make(seed=0, score=0.5))
        other.add(make(seed=3, score=0.8))
        other.add(make(seed=4))
        with Ledger(filled) as ledger:
            assert ledger.merge(other) == 2
            assert ledger.merge(other) == 0
            assert len(ledger) == 5
            assert ledger.all()[3].score == 0.8


def test_a_merge_that_fails_half_way_leaves_nothing_behind(filled: Path, make: Make) -> None:
    def broken() -> Iterator[Record]:
        yield make(seed=7)
        raise RuntimeError("lost")

    with Ledger(filled) as ledger:
        with pytest.raises(RuntimeError, match="lost"):
            ledger.merge(broken())
        assert len(ledger) == 4


# For people


def test_the_frame_has_a_column_a_score_and_a_dial(filled: Path) -> None:
    table = Ledger(filled).records()
    assert isinstance(table, pd.DataFrame)
    assert table["accuracy"].tolist()[:3] == [0.5, 0.6, 0.7]
    assert table["validation_accuracy"].tolist()[:3] == [0.5, 0.6, 0.7]
    assert pd.isna(table["accuracy"][3])
    assert table["error"][3] == "out of memory"
    assert set(table["training.lr"]) == {1e-3}
    assert set(table["task.pairs"]) == {4}


def test_a_file_that_nothing_was_written_to_has_no_records(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    assert len(Ledger.open(path)) == 0


def test_what_has_no_name_is_no_file() -> None:
    with pytest.raises(IsADirectoryError):
        write_whole(Path(), "text")


def test_a_ledger_without_records_is_a_frame_without_rows(path: Path) -> None:
    with Ledger(path) as ledger:
        table = ledger.records()
    assert len(table) == 0
    assert {"arch", "seed", "status"} <= set(table.columns)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_an_export_holds_every_record(suffix: str, filled: Path, make: Make, tmp_path: Path) -> None:
    with Ledger(filled) as ledger:
        ledger.add(make(task="parity", dials={"vocab": "words"}))  # a dial that is a number elsewhere
        ledger.export(tmp_path / f"out{suffix}")
    read = {
        ".parquet": pd.read_parquet,
        ".csv": pd.read_csv,
        ".jsonl": lambda p: pd.DataFrame([r.to_dict() for r in read_records(p)]),
    }
    assert sorted(read[suffix](tmp_path / f"out{suffix}")["seed"]) == [0, 0, 1, 2, 3]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("use", ["walk", "merge", "csv", "parquet", "jsonl"])
def test_memory_does_not_grow_with_the_ledger(
    use: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recallmap.results.exports.pieces.AT_ONCE", 50)

    def peak(count: int) -> int:
        with Ledger(tmp_path / f"{count}.sqlite") as ledger:
            ledger.merge(make(seed=seed, arch=f"arch {seed % 9}") for seed in range(count))
            for turn in range(2):  # the first brings modules and caches
                tracemalloc.start()
                if use == "walk":
                    assert sum(record.seed >= 0 for record in ledger.each()) == count
                elif use == "merge":
                    with Ledger(tmp_path / f"{count} {turn}.sqlite") as other:
                        assert other.merge(ledger) == count
                else:
                    ledger.export(tmp_path / f"out.{use}")
                found = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
        return found

    assert peak(600) - peak(100) < 100_000  # 500 records are more than 500 kB


def test_an_export_in_pieces_is_that_of_the_whole(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recallmap.results.exports.pieces.AT_ONCE", 3)
    with Ledger(tmp_path / "a.sqlite") as ledger:
        ledger.merge(make(seed=seed, peak_bytes=2**33 if seed == 7 else None) for seed in range(8))
        ledger.add(make(task="parity", dials={"vocab": "words"}, error="lost, or not"))
        ledger.add(make(data={"train": 64}))
        for suffix, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet)):
            ledger.export(tmp_path / f"a.{suffix}")
            getattr(ledger.records(), f"to_{suffix}")(tmp_path / f"b.{suffix}", index=False)
            pd.testing.assert_frame_equal(read(tmp_path / f"a.{suffix}"), read(tmp_path / f"b.{suffix}"))
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_an_export_is_of_one_moment_whatever_a_driver_adds_between_its_readings(
    suffix: str, filled: Path, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = pieces.parted_columns

    def found_before_more_comes(*args: Any) -> Any:
        found = find(*args)
        with Ledger(filled) as driver:
            driver.add(make(seed=9, arch_dials={"novel": 1}))  # a column of its own
        return found

    monkeypatch.setattr(pieces, "parted_columns", found_before_more_comes)
    with Ledger.open(filled) as ledger:
        count = len(ledger)
        ledger.export(tmp_path / f"out{suffix}")
        assert len(ledger) == count + 1
    found = {".parquet": pd.read_parquet, ".csv": pd.read_csv}[suffix](tmp_path / f"out{suffix}")
    assert (len(found), "arch.novel" in found) == (count, False)


def test_an_export_to_an_unknown_kind_says_the_known_ones(filled: Path, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"\.parquet, \.csv or \.jsonl"):
        Ledger(filled).export(tmp_path / "out.xlsx")


def test_an_export_that_cannot_be_written_says_so(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="choose another place"):
        Ledger(filled).export(tmp_path / "file" / "out.csv")


# Faults of the file, each with its remedy


def test_a_missing_ledger_is_not_made_by_reading(path: Path) -> None:
    for read in (Ledger.open, lambda p: Ledger(p).all(), lambda p: Ledger(p).records(), lambda p: Ledger(p).get("k")):
        with pytest.raises(LedgerError, match=r"there is no ledger at .*recallmap run"):
            read(path)
    assert not path.parent.exists()


def test_a_folder_is_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"is a folder.*give .*NAME\.sqlite"):
        Ledger(tmp_path)


def test_a_file_of_something_else_is_no_ledger(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database at all, but long enough to be looked into\n" * 40)
    with pytest.raises(LedgerError, match="is not an SQLite file; give the path of a ledger"):
        Ledger(path)


def test_a_database_of_somebody_else_is_no_ledger(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "theirs.db")
    db.execute("CREATE TABLE records (key TEXT)")
    db.close()
    with pytest.raises(LedgerError, match="an SQLite file, but not a ledger"):
        Ledger(tmp_path / "theirs.db")


def test_a_ledger_of_a_newer_version_is_left_alone(filled: Path) -> None:
    db = sqlite3.connect(filled)
    db.execute(f"PRAGMA user_version = {LAYOUT + 1}")
    db.close()
    before = filled.read_bytes()
    with pytest.raises(LedgerError, match=f"layout {LAYOUT + 1}, of a newer recallmap.*upgrade"):
        Ledger(filled)
    assert filled.read_bytes() == before


def test_a_damaged_ledger_is_noticed_when_it_is_read(path: Path, make: Make) -> None:
    with Ledger(path) as ledger:
        for seed in range(200):
            ledger.add(make(seed=seed))
    content = bytearray(path.read_bytes())
    content[8192:40960] = b"\xff" * 32768
    path.write_bytes(content)
    for read in (Ledger.all, Ledger.records, lambda ledger: ledger.of({make(seed=1).key})):
        with pytest.raises(
            LedgerError, match=r"is damaged.*restore a copy, or save what is whole with: recallmap merge"
        ):
            read(Ledger(path))


def test_a_ledger_cut_short_is_noticed_when_it_is_opened(path: Path, make: Make) -> None:
    with Ledger(path) as ledger:
        for seed in range(200):
            ledger.add(make(seed=seed))
    path.write_bytes(path.read_bytes()[:20000])
    with pytest.raises(LedgerError, match="damaged"):
        Ledger(path)


def test_a_row_that_is_not_what_was_written_is_an_error_not_a_gap(filled: Path, make: Make) -> None:
    db = sqlite3.connect(filled)
    db.execute("UPDATE records SET score = 0.9 WHERE seed = 1")
    db.commit()
    db.close()
    key = make(seed=1, score=0.6).key
    for read in (Ledger.all, lambda ledger: ledger.get(key), lambda ledger: ledger.of({key})):
        with pytest.raises(LedgerError, match=f"is damaged .the record {key[:12]}: its checksum is another"):
            read(Ledger(filled))


def test_a_record_that_is_not_sound_is_refused(path: Path, make: Make) -> None:
    with Ledger(path) as ledger:
        with pytest.raises(LedgerError, match=r"mesa on mqar: spec.task is missing; spec.lr must be .* got <object"):
            ledger.add(dataclasses.replace(make(), spec={"lr": object()}))
        with pytest.raises(LedgerError, match=r"seed must be a whole number of at least 0 and at most 9"):
            ledger.add(dataclasses.replace(make(), seed=2**63))
        assert ledger.all() == []


def test_a_place_that_cannot_be_a_folder_is_named(tmp_path: Path, make: Make) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="choose another place"):
        Ledger(tmp_path / "file" / "study.sqlite").add(make())


def as_nobody(code: str, path: Path) -> str:
    """What a process that may not write prints."""
    start = (
        "import os, sys, fcntl\n"
        "from recallmap.results.ledger import Ledger, LedgerError\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "path = sys.argv[1]\n"
    )
    call = [sys.executable, "-c", start + code, str(path)]
    return subprocess.run(call, capture_output=True, text=True, cwd=ROOT, check=True).stdout


@pytest.fixture
def closed(make: Make) -> Iterator[Path]:
    """A finished ledger that may be read, in a folder that may not be written."""
    folder = Path(tempfile.mkdtemp())
    with Ledger(folder / "study.sqlite") as ledger:
        ledger.add(make())
    (folder / "study.sqlite").chmod(0o444)
    folder.chmod(0o555)
    yield folder / "study.sqlite"
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_ledger_in_a_folder_that_cannot_be_written_can_be_read(closed: Path) -> None:
    assert as_nobody("print(len(Ledger.open(path).all()))", closed) == "1\n"


@pytest.mark.parametrize("name", ["study.sqlite", "new.sqlite", "folder/new.sqlite"])
def test_a_ledger_that_cannot_be_written_says_so(closed: Path, name: str) -> None:
    said = as_nobody("try: Ledger(path).__enter__()\nexcept LedgerError as error: print(error)", closed.parent / name)
    assert "Permission denied" in said
    assert "make its folder writable" in said or "choose another place" in said


def test_anybody_may_ask_who_writes_a_ledger(filled: Path) -> None:
    assert writer_of(filled) == ""
    with Ledger(filled) as ledger:
        assert writer_of(filled).startswith(f"process {os.getpid()} on ")
        assert ledger.keys()
    assert writer_of(filled) == ""
    side = filled.with_name(f"{filled.name}.lock")
    side.write_text("process 7 on host since long ago")  # of a driver that was killed
    assert writer_of(filled) == ""
    with Ledger(filled):
        assert writer_of(filled) != ""


@pytest.mark.parametrize("make_it", [os.mkfifo, lambda path: path.symlink_to(path.parent / "theirs")])
def test_what_lies_where_the_lock_should_is_neither_followed_nor_written(
    make_it: Callable[[Path], None], filled: Path, make: Make
) -> None:
    side, theirs = filled.parent / "study.sqlite.lock", filled.parent / "theirs"
    theirs.write_text("theirs")
    make_it(side)
    with pytest.raises(LedgerError, match=r"study\.sqlite\.lock is (a symbolic link|no plain file).*remove"):
        Ledger(filled).add(make(seed=9))
    assert theirs.read_text() == "theirs"
    assert os.path.lexists(side)


def test_what_lies_where_a_draft_should_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / f".a.{os.getpid()}.txt").symlink_to(tmp_path / "theirs")
    write_whole(tmp_path / "a.txt", "ours")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert (tmp_path / "a.txt").read_text() == "ours"
    assert not (tmp_path / "a.txt").is_symlink()


@pytest.mark.parametrize("pages", [0, 1, 3])
def test_a_full_disk_is_told_with_a_remedy_and_what_was_kept_stays(pages: int, filled: Path, make: Make) -> None:
    with Ledger(filled) as ledger:
        before = ledger.all()
        (count,) = ledger._ask("PRAGMA page_count")[0]
        ledger._ask(f"PRAGMA max_page_count = {count + pages}")
        added: list[Record] = []
        with pytest.raises(LedgerError, match=r"the disk is full; free some space and run the same command again"):
            added.extend(record for seed in range(10, 60) if ledger.add(record := make(seed=seed)))
        with pytest.raises(LedgerError, match="the disk is full"):
            ledger.merge(make(seed=seed) for seed in range(60, 90))
    with Ledger.open(filled) as ledger:
        assert ledger.all() == [*before, *added]


def test_a_disk_that_is_full_when_the_lock_is_taken_is_told(
    filled: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(LedgerError, match=r"cannot write beside .*the disk is full; free some space"):
        Ledger(filled).add(make(seed=9))
    assert [path.name for path in filled.parent.iterdir()] == ["study.sqlite"]


# One writer, many readers


def test_a_second_name_of_a_ledger_lets_no_second_driver_in(filled: Path, make: Make) -> None:
    other = filled.parent / "other.sqlite"
    with Ledger(filled):
        os.link(filled, other)
        with pytest.raises(LedgerError, match=r"one of 2 names \(hard links\) of the same file.*cp .*COPY"):
            Ledger(other).add(make(seed=9))
    assert Ledger.open(filled).get(make(seed=9).key) is None
    other.unlink()
    assert Ledger(filled).add(make(seed=9))


def test_a_key_is_looked_up_and_not_searched_for(filled: Path, make: Make) -> None:
    ledger = Ledger.open(filled)
    asked: list[str] = []
    assert ledger._db is not None
    ledger._db.set_trace_callback(asked.append)
    for seed in range(3):
        assert ledger.get(make(seed=seed, score=0.5 + seed / 10).key[:30]) is not None
    ledger._db.set_trace_callback(None)
    on_records = [question for question in asked if "FROM records" in question]
    assert len(on_records) == 3
    for question in on_records:
        plan = [step[3].decode() for step in ledger._ask(f"EXPLAIN QUERY PLAN {question}")]
        assert all(step.startswith("SEARCH records USING INDEX") for step in plan), plan


def test_a_second_driver_is_refused_before_it_trains(filled: Path) -> None:
    with Ledger(filled), pytest.raises(LedgerError, match=rf"being written by process {os.getpid()} .*wait for it"):
        Ledger(filled).__enter__()


def test_readers_read_while_a_driver_writes(path: Path, make: Make) -> None:
    with Ledger(path) as ledger:
        reader = Ledger.open(path)
        assert len(reader.all()) == 0
        ledger.add(make())
        assert len(reader.all()) == 1
        reader.close()
        ledger.add(make(seed=1))
        assert len(ledger) == 2


def test_a_reader_does_not_write(filled: Path, make: Make) -> None:
    with Ledger.open(filled) as ledger, pytest.raises(LedgerError, match="opened for reading"):
        ledger.add(make(seed=9))


def test_the_ledger_is_free_and_one_file_when_the_driver_is_done(filled: Path) -> None:
    assert [p.name for p in filled.parent.iterdir()] == ["study.sqlite"]
    with Ledger(filled) as ledger:
        assert len(ledger) == 4


def test_a_ledger_that_nobody_closed_is_free_once_it_is_gone(path: Path, make: Make) -> None:
    Ledger(path).add(make())
    with Ledger(path) as ledger:
        assert len(ledger) == 1


def test_a_driver_that_is_killed_loses_nothing_and_holds_nothing(path: Path, make: Make) -> None:
    code = (
        "import os, sys, signal, pickle\n"
        "from recallmap.results.ledger import Ledger\n"
        "ledger = Ledger(sys.argv[1]).__enter__()\n"
        "from recallmap.results.record import read_records\n"
        "from pathlib import Path\n"
        "for record in read_records(Path(sys.argv[2])): ledger.add(record)\n"
        "ledger._db.execute('BEGIN'); ledger._db.execute('DELETE FROM records')\n"  # under way when the end comes
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    from recallmap.results.record import write_records

    records = [make(seed=s) for s in range(5)]
    write_records(path.parent / "records.jsonl", records)
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(path.parent / "records.jsonl")], cwd=ROOT, check=False
    )
    assert done.returncode == -signal.SIGKILL
    with Ledger(path) as ledger:
        assert ledger.keys() == {r.key for r in records}
