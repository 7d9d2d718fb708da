"""A damaged ledger says so: it never gives other records than were kept, and what is whole can be saved."""

from __future__ import annotations

import errno
import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recallmap.results.ledger import Ledger, LedgerError, LeftOut
from recallmap.results.plain_data.shared_parts import Pool
from recallmap.results.record import Record, read_records, to_json
from recallmap.results.storage.layout import HEADLINE, MARK
from recallmap.search.cli.app import app

Make = Callable[..., Record]
KEPT = Path(__file__).parents[3] / "results" / "records"


def kept() -> list[Record]:
    """Records of several tasks, some in phases, some failed, with curves and without."""
    names = ("statex_cpu", "parity_cpu", "regbench_cpu", "mqar_precision_cpu")
    return [record for name in names for record in read_records(KEPT / f"{name}.jsonl")[:12]]


def old_ledger(path: Path, records: list[Record]) -> None:
    """A ledger as recallmap 1 left it: the record whole in one column, and nothing to check it by."""
    db = sqlite3.connect(path)
    columns = ", ".join([*(f"{name} {kind}" for name, kind in HEADLINE.items()), "record TEXT"])
    db.executescript(f"PRAGMA application_id = {MARK}; PRAGMA user_version = 1; CREATE TABLE records ({columns});")
    for name in ("study", "task", "arch"):
        db.execute(f"CREATE INDEX records_{name} ON records ({name})")
    for r in records:
        special = {"accuracy": r.scores.get("accuracy"), "validation": r.validation.get(r.metric)}
        row = [special[name] if name in special else getattr(r, name) for name in HEADLINE]
        db.execute(f"INSERT INTO records VALUES ({', '.join('?' * (len(row) + 1))})", (*row, to_json(r)))
    db.commit()
    db.close()


def flipped(content: bytes, count: int) -> Iterator[bytes]:
    """The same with a byte or a few of it changed, so many times."""
    rng = random.Random(5)
    for _ in range(count):
        damaged = bytearray(content)
        for _ in range(rng.choice((1, 1, 2, 8))):
            damaged[rng.randrange(len(damaged))] ^= rng.randrange(1, 256)
        yield bytes(damaged)


def test_flipped_bytes_give_the_same_records_or_an_error(tmp_path: Path) -> None:
    records, path = kept(), tmp_path / "whole.sqlite"
    with Ledger(path) as ledger:
        ledger.merge(records)
    some = {record.key for record in records[5:9]}
    reads: dict[str, Callable[[Ledger], object]] = {
        "all": Ledger.all,
        "light": lambda ledger: ledger.all(curves=False),
        "keys": Ledger.keys,
        "some": lambda ledger: ledger.of(some),
        "ordered": lambda ledger: list(ledger.each(ordered="study, key")),
    }
    with Ledger.open(path) as ledger:
        whole = {name: read(ledger) for name, read in reads.items()}
    assert whole["all"] == records
    told = 0
    for content in flipped(path.read_bytes(), 60):
        (tmp_path / "damaged.sqlite").write_bytes(content)
        for name, read in reads.items():
            try:
                with Ledger.open(tmp_path / "damaged.sqlite") as ledger:
                    assert read(ledger) == whole[name], name
            except LedgerError:
                told += name == "all"
    assert told > 30


def test_flipped_bytes_of_an_old_ledger_give_no_other_spec_or_score_in_silence(tmp_path: Path) -> None:
    records, path = kept(), tmp_path / "old.sqlite"
    old_ledger(path, records)

    told = 0
    for content in flipped(path.read_bytes(), 40):
        (tmp_path / "damaged.sqlite").write_bytes(content)
        try:
            with Ledger.open(tmp_path / "damaged.sqlite") as ledger:
                found = ledger.all()
        except LedgerError:
            told += 1
        else:
            names = [n for n in HEADLINE if n not in ("accuracy", "validation")]
            assert [[getattr(r, n) for n in names] for r in found] == [[getattr(r, n) for n in names] for r in records]
            assert [r.spec for r in found] == [r.spec for r in records]
    assert told > 10


def test_what_is_whole_is_saved_and_the_rest_is_counted(tmp_path: Path) -> None:
    records, path = kept(), tmp_path / "whole.sqlite"
    with Ledger(path) as ledger:
        ledger.merge(records)
    own = {record.key: record for record in records}
    saved = lost = 0
    for content in flipped(path.read_bytes(), 40):
        (tmp_path / "damaged.sqlite").write_bytes(content)
        left_out = LeftOut()
        try:
            with Ledger.open(tmp_path / "damaged.sqlite") as ledger:
                found = {record.key: record for record in ledger.each(left_out=left_out)}
        except LedgerError:
            continue  # not even how the file is laid out can be read
        assert all(own[key] == record for key, record in found.items())
        assert len(found) + len(left_out) >= len(records)
        saved, lost = saved + len(found), lost + len(left_out)
    assert saved > 10 * lost > 0


def test_an_old_ledger_reads_and_becomes_a_new_one_when_it_is_written(tmp_path: Path, make: Make) -> None:
    records, path = kept(), tmp_path / "old.sqlite"
    old_ledger(path, records)
    before = path.read_bytes()
    with Ledger.open(path) as ledger:
        assert ledger.all() == records
        assert ledger.keys() == {r.key for r in records if r.status == "done"}
        assert ledger.of({records[3].key}) == [records[3]]
        assert ledger.get(records[3].key[:20]) == records[3]
    assert path.read_bytes() == before
    with Ledger(path) as ledger:
        assert ledger.add(make())
        assert not ledger.add(records[0])
        assert ledger.all() == [*records, make()]
    with Ledger.open(path) as ledger:
        assert ledger.all() == [*records, make()]
        assert list(ledger.rows()) == list(Ledger.open(path).rows())


@pytest.mark.parametrize("version", [0, 1])
def test_a_ledger_that_says_another_layout_is_not_read_as_an_empty_one(
    version: int, tmp_path: Path, make: Make
) -> None:
    with Ledger(tmp_path / "a.sqlite") as ledger:
        ledger.add(make())
    db = sqlite3.connect(tmp_path / "a.sqlite")
    db.execute(f"PRAGMA user_version = {version}")
    db.close()
    with pytest.raises(LedgerError, match=f"is damaged .it says that it has layout {version}, which it has not"):
        Ledger(tmp_path / "a.sqlite")


def test_an_old_record_under_another_key_is_no_record(tmp_path: Path, make: Make) -> None:
    old_ledger(tmp_path / "old.sqlite", [make(), Record(**{**make(seed=1).to_dict(), "key": "0" * 64})])
    for use in (Ledger.all, Ledger.__enter__):
        with pytest.raises(
            LedgerError, match=r"the record 000000000000: its key is not that of its spec.*merge --skip-bad"
        ):
            use(Ledger(tmp_path / "old.sqlite"))


def test_a_row_that_was_taken_out_by_hand_is_not_missed(tmp_path: Path) -> None:
    with Ledger(tmp_path / "a.sqlite") as ledger:
        ledger.merge(kept())
    db = sqlite3.connect(tmp_path / "a.sqlite")
    db.execute("DELETE FROM records WHERE seed = 1")
    db.commit()
    db.close()
    with Ledger.open(tmp_path / "a.sqlite") as ledger:
        assert ledger.all() == [record for record in kept() if record.seed != 1]


FULL = {  # verbs that write a file
    "csv": ("export", "a.sqlite", "-o", "out.csv"),
    "parquet": ("export", "a.sqlite", "-o", "out.parquet"),
    "jsonl": ("export", "a.sqlite", "-o", "out.jsonl"),
    "merge": ("merge", "a.sqlite", "-o", "out.jsonl"),
    "page": ("dashboard", "a.sqlite", "-o", "out.html", "--no-probe"),
}


@pytest.mark.parametrize("verb", FULL)
def test_a_full_disk_is_told_by_every_verb_that_writes(
    verb: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(draft: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.chdir(tmp_path)
    with Ledger("a.sqlite") as ledger:
        ledger.add(make())
    monkeypatch.setattr("recallmap.results.atomic_write.begin", full)
    ended = CliRunner().invoke(app, list(FULL[verb]))
    assert ended.exit_code == 2
    assert "the disk is full; free some space and run the same command again" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.sqlite"]


def test_a_damaged_ledger_is_merged_only_where_one_says_so(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Ledger("a.sqlite") as ledger:
        ledger.merge(make(seed=seed) for seed in range(5))
    db = sqlite3.connect("a.sqlite")
    db.execute("UPDATE records SET own = replace(own, '12.5', '13.5') WHERE seed = 2")
    db.commit()
    db.close()
    key = make(seed=2).key[:12]
    for words in (
        ("table", "a.sqlite"),
        ("export", "a.sqlite", "-o", "a.csv"),
        ("merge", "a.sqlite", "-o", "b.sqlite"),
    ):
        ended = CliRunner().invoke(app, list(words))
        assert ended.exit_code == 2
        assert f"is damaged (the record {key}: its checksum is another)" in ended.stderr
        assert "save what is whole with: recallmap merge --skip-bad a.sqlite -o rescued.sqlite" in ended.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["a.sqlite"]
    ended = CliRunner().invoke(app, ["merge", "--skip-bad", "a.sqlite", "-o", "rescued.sqlite"])
    assert (ended.exit_code, ended.stdout) == (0, "rescued.sqlite: 4 records, 4 of them new\n")
    assert ended.stderr == f"a.sqlite: left out 1 damaged record: {key}\n"
    with Ledger.open("rescued.sqlite") as ledger:
        assert ledger.all() == [make(seed=seed) for seed in (0, 1, 3, 4)]


def test_records_that_are_read_together_share_what_they_have_in_common(tmp_path: Path, make: Make) -> None:
    path = tmp_path / "a.sqlite"
    with Ledger(path) as ledger:
        ledger.merge(make(seed=seed) for seed in range(3))
        found = ledger.all()
    assert len({id(record.spec["arch"]) for record in found}) == 1
    assert [record.spec["seed"] for record in found] == [0, 1, 2]
    pool = Pool()
    again = [Record.from_dict(record.to_dict(), pool) for record in found]
    assert again == found
    assert len({id(record.spec["arch"]) for record in again}) == 1
