"""Every verb that reads records takes a ledger, a file of records or a folder of both; and those that come with the package."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from recallmap.results import record_files
from recallmap.results.analysis.labels import counted
from recallmap.results.ledger import EXPORTED, Ledger
from recallmap.results.record import Record, read_records, write_records
from recallmap.search import codec
from recallmap.search.cli import sources
from recallmap.search.cli.app import app
from recallmap.search.documents.nodes import SpecError
from recallmap.search.training.checkpoints import CheckpointFolder, checkpoint_folder, checkpointing
from recallmap.search.training.run_cohort import follow_cohort

STUDY: dict[str, Any] = {
    "name": "story",
    "trial": {
        "task": {"kind": "mqar", "vocab": 32, "length": 16, "pairs": 2},
        "arch": {
            "name": "tiny",
            "width": 16,
            "stack": [{"kind": "block", "mixer": {"kind": "linear_attention", "heads": 1}}],
        },
        "training": {"steps": 4, "batch": 8, "evaluations": 1},
    },
    "space": {"kind": "grid", "axes": {"trial.arch.stack[0].mixer.key_dim": [4, 8], "trial.task.pairs": [2, 4]}},
}
SEARCH = STUDY | {
    "name": "hunt",
    "space": {"kind": "random", "points": 2, "dials": {"trial.training.lr": {"float": [1e-4, 1e-2]}}},
}


def call(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    as_into_a_file = CliRunner(env={"COLUMNS": None})
    result = as_into_a_file.invoke(app, list(words), catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def record(spec: dict[str, Any], key: str) -> Record:
    pairs, key_dim = spec["task"]["pairs"], spec["arch"]["stack"][0]["mixer"]["key_dim"]
    return Record(
        key=key,
        study="story",
        status="done",
        spec=spec,
        task="mqar",
        setting=f"pairs={pairs}",
        protocol="repaired",
        arch="tiny",
        seed=0,
        scores={"accuracy": 1.0 if key_dim > pairs else 0.5},
        validation={"accuracy": 0.5},
        state_bytes=64 * key_dim,
    )


@pytest.fixture
def records() -> list[Record]:
    return [record(codec.plain(trial), codec.key(trial)) for trial in codec.read_study(STUDY).trials()]


@pytest.fixture(autouse=True)
def folder(records: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where one works: a study, and its records in a ledger, in a file, and in a folder of both."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "story.yaml").write_text(json.dumps(STUDY))
    (tmp_path / "hunt.yaml").write_text(json.dumps(SEARCH))
    write_records(tmp_path / "all.jsonl", records)
    with Ledger(tmp_path / "all.sqlite") as ledger:
        ledger.merge(records)
    with Ledger(tmp_path / "parts" / "first.db") as ledger:
        ledger.merge(records[:3])
    write_records(tmp_path / "parts" / "second.jsonl", records[2:])
    shutil.copy(tmp_path / "all.sqlite", tmp_path / "named_as_one_likes")
    return tmp_path


PLACES = ("all.jsonl", "all.sqlite", "parts", "named_as_one_likes")


@pytest.mark.parametrize("place", PLACES)
def test_every_verb_takes_records_wherever_they_lie(place: str, records: list[Record], folder: Path) -> None:
    expected = call("table", "story.yaml", "--ledger", "all.sqlite")
    assert expected[0] == 0
    assert expected[1].count("| tiny key_dim=") == 2
    for words in (("table", place), ("table", "story.yaml", "--ledger", place)):
        assert call(*words) == expected
    for words in ((place,), ("story.yaml", "--ledger", place)):
        assert call("export", *words, "-o", "out.csv") == (0, "out.csv: 4 records\n", "")
        assert sorted(pd.read_csv("out.csv")["key"]) == sorted(r.key for r in records)
        assert call("dashboard", *words, "-o", "page.html", "--no-probe") == (0, "page.html: 4 records\n", "")
    code, text, said = call("best", "story.yaml", "--ledger", place)
    assert (code, said) == (0, "")
    assert "4 points" not in text
    assert "2 points" in text
    assert call("merge", place, "-o", "one.jsonl")[1] == "one.jsonl: 4 records, 4 of them new\n"
    assert {r.key for r in read_records(folder / "one.jsonl")} == {r.key for r in records}
    assert call("report", place, "-o", "out/REPORT.md")[0] == 0


def test_records_that_no_commit_explains_are_kept_out_of_the_published_ones(
    folder: Path, records: list[Record]
) -> None:
    place = "results/records/story.jsonl"
    write_records(folder / "clean.jsonl", [replace(records[0], commit="c0ffee0")])
    assert call("merge", "clean.jsonl", "-o", place)[0] == 0
    changed = [replace(record, commit="c0ffee0+") for record in records]
    write_records(folder / "changed.jsonl", changed)
    code, _, said = call("merge", "changed.jsonl", "-o", place)
    assert (code, "story.jsonl: 3 new records untraceable (no commit, or uncommitted changes)" in said) == (2, True)
    assert [r.key for r in read_records(folder / place)] == [records[0].key]
    assert call("merge", "changed.jsonl", "-o", place, "--untraceable")[0] == 0
    assert call("merge", "changed.jsonl", "-o", place)[1] == f"{place}: 4 records, 0 of them new\n"  # they are in it


def test_a_report_of_a_folder_keeps_its_files_apart(folder: Path) -> None:
    shutil.copy(folder / "parts" / "second.jsonl", folder / "parts" / "first.jsonl")
    assert call("report", "parts", "-o", "out/REPORT.md")[1] == "out/REPORT.md: from 3 files of records\n"
    assert {p.name for p in (folder / "out" / "tables").iterdir()} == {"first.db.md", "first.jsonl.md", "second.md"}
    assert "from the files of `parts`; do not edit" in (folder / "out" / "REPORT.md").read_text(encoding="utf-8")
    assert "from `parts/first.db`: 3 trials" in (folder / "out" / "tables" / "first.db.md").read_text(encoding="utf-8")


def test_a_report_of_one_file_says_which(folder: Path) -> None:
    assert call("report", "all.sqlite", "-o", "out/REPORT.md")[1] == "out/REPORT.md: from 1 file of records\n"
    assert "from `all.sqlite`; do not edit" in (folder / "out" / "REPORT.md").read_text(encoding="utf-8")
    table = (folder / "out" / "tables" / "all.md").read_text(encoding="utf-8")
    assert "from `all.sqlite`: 4 trials of 1 architecture on mqar" in table


def test_records_of_other_trials_are_not_taken_for_none_at_all(folder: Path) -> None:
    code, _, said = call("table", "story.yaml", "--ledger", "all.jsonl", "--set", "trial.seed=7")
    assert code == 2
    assert "all.jsonl: holds 4 records, none of the 4 trials of story with these options; change --set, or look" in said
    code, _, said = call("best", "hunt.yaml", "--ledger", "all.jsonl")
    assert code == 2
    assert "the journal of the search hunt says which records are its own, and there is none at all.journal" in said


def stopped(path: Path) -> None:
    """Leave what a run leaves that was stopped after its first evaluation: an empty ledger, and a cohort beside it."""
    whole = STUDY | {"trial": STUDY["trial"] | {"training": {"steps": 4, "batch": 8, "evaluations": 2}}}
    Path("begun.yaml").write_text(json.dumps(whole), encoding="utf-8")
    with Ledger(path), checkpointing(CheckpointFolder(checkpoint_folder(path), every=0)):
        steps = follow_cohort(codec.read_study("begun.yaml").trials()[:1], device="cpu")
        next(steps)
        steps.close()


def test_of_a_study_that_was_stopped_it_is_said_where_and_how_to_resume_it(folder: Path) -> None:
    stopped(Path("runs/story.sqlite"))
    said = "1 cohort is saved at step 2 of 4; resume it with: recallmap run begun.yaml"
    for words in (["table"], ["best"], ["dashboard", "-o", "page.html"]):
        code, _, errors = call(*words, "begun.yaml")
        assert code == 2
        told = f"runs/story.sqlite: no trial of story has finished, and its run was stopped; {said}"
        assert errors.splitlines()[-1] == told
    (saved,) = Path("runs/story.unfinished").iterdir()
    saved.write_bytes(b"damaged")  # the next run removes it; who looks does not
    assert call("table", "begun.yaml")[2].endswith("has finished; train it with: recallmap run begun.yaml\n")
    assert saved.exists()


def test_the_command_that_resumes_has_the_options_of_the_one_that_asked(folder: Path) -> None:
    stopped(Path("a.sqlite"))
    _, _, errors = call("table", "begun.yaml", "--ledger", "a.sqlite", "--set", "trial.seed=0")
    assert errors.endswith("resume it with: recallmap run begun.yaml --ledger a.sqlite --set trial.seed=0\n")
    _, _, errors = call("table", "begun.yaml", "--ledger", "a.sqlite", "--set", "trial.seed=7")  # other trials
    assert errors.endswith(
        "no trial of story has finished; train it with: recallmap run begun.yaml --ledger a.sqlite --set trial.seed=7\n"
    )


def test_of_a_study_that_trains_in_another_process_that_process_is_told(folder: Path) -> None:
    path = Path("runs/story.sqlite")
    stopped(path)
    with Ledger(path):
        code, _, errors = call("table", "begun.yaml")
    assert code == 2
    assert errors.startswith(
        "runs/story.sqlite: no trial of story has finished yet; 1 cohort is saved at step 2 of 4; process "
    )
    assert errors.endswith(
        " writes this ledger now: look again later, or resume when it has ended: recallmap run begun.yaml\n"
    )


def test_a_ledger_with_some_of_the_trials_says_how_many() -> None:
    code, _, said = call("table", "story.yaml", "--ledger", "parts/first.db")
    assert (code, said) == (0, "parts/first.db has 3 of the 4 trials of story\n")


# Records that come with the package. -----------------------------------------------------------------


@pytest.fixture
def packaged(records: list[Record], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that comes with the study, and with the records of three of its trials."""
    write_records(folder / "kept" / "story.jsonl", [*records[:3], replace(records[0], key="another")])
    (folder / "story.yaml").rename(folder / "story_of_the_package.yaml")
    builtin = codec.builtin
    own = {"story": folder / "story_of_the_package.yaml"}
    monkeypatch.setattr(
        "recallmap.search.documents.built_in.builtin", lambda what: own if what == "study" else builtin(what)
    )
    monkeypatch.setattr("recallmap.results.record_files.kept", lambda: folder / "kept")
    return folder / "kept"


def test_a_study_of_the_package_finds_the_records_of_the_package(packaged: Path) -> None:
    note = "no ledger at runs/story.sqlite; using 3 records kept with recallmap in results/records, of the 4 trials of story\n"
    code, text, said = call("table", "story")
    assert (code, said) == (0, note)
    assert "| tiny key_dim=4 |" in text
    assert call("export", "story", "-o", "out.jsonl") == (0, "out.jsonl: 3 records\n", note)
    assert call("best", "story")[2] == note


def test_a_ledger_of_the_study_goes_before_the_records_of_the_package(
    packaged: Path, records: list[Record], folder: Path
) -> None:
    with Ledger(folder / "runs" / "story.sqlite") as ledger:
        ledger.merge(records[3:])
    assert call("export", "story", "-o", "out.jsonl")[1:] == (
        "out.jsonl: 1 record\n",
        "runs/story.sqlite has 1 of the 4 trials of story\n",
    )


def test_kept_records_of_other_trials_are_pointed_at_and_not_used(packaged: Path) -> None:
    code, _, said = call("table", "story", "--set", "trial.seed=7")
    assert code == 2
    assert (
        "there is no ledger at runs/story.sqlite, and no trial of story with these options is kept with recallmap; train with"
        in said
    )
    assert f"recallmap table {packaged / 'story.jsonl'}" in said


def test_the_records_of_the_package_are_where_they_are_looked_for() -> None:
    assert {"mad.jsonl", "demo.jsonl"} <= {file.name for file in record_files.files(record_files.kept())}


def test_a_report_outside_a_checkout_is_of_the_records_of_the_package(packaged: Path, folder: Path) -> None:
    assert call("report")[1] == "results/REPORT.md: from 1 file of records\n"
    assert (folder / "results" / "tables" / "story.md").is_file()


# Some of the records. --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wishes", "count"),
    [
        ((), 4),
        (("arch=tiny",), 4),
        (("pairs=2",), 2),
        (("task.pairs=2",), 2),
        (("setting=pairs=4",), 2),
        (("key_dim=8", "pairs=4"), 1),
        (("arch.stack[0].mixer.key_dim=8",), 2),
        (("trial.arch.stack[0].mixer.key_dim=8",), 2),
        (("key_dim=4", "key_dim=8"), 4),
        (("lr=1e-3", "status=done", "seed=0", "study=story"), 4),
    ],
)
def test_records_are_chosen_by_what_they_say(wishes: tuple[str, ...], count: int) -> None:
    words = [word for wish in wishes for word in ("--only", wish)]
    code, text, said = call("export", "all.jsonl", "-o", "some.csv", *words)
    assert (code, text, said) == (0, f"some.csv: {counted(count, 'record')}\n", "")
    assert call("dashboard", "story.yaml", "--ledger", "parts", "--no-probe", *words)[1].endswith(
        f": {counted(count, 'record')}\n"
    )
    assert call("table", "all.sqlite", *words)[0] == 0


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ("arhc=tiny", "--only: arhc: no record has this key, expected arch, task, study"),
        ("arhc=tiny", "(did you mean 'arch'?)"),
        ("key_dm=4", "(did you mean 'key_dim'?)"),
        ("arch=tniy", "--only: arch: no record has tniy, expected tiny (did you mean 'tiny'?)"),
        ("pairs=3", "--only: pairs: no record has 3, expected 2 or 4"),
        ("fillers=1", "--only: fillers: no record has 1, expected true"),
        ("arch", "--only: got 'arch', expected KEY=VALUE such as arch=mesa"),
    ],
)
def test_what_no_record_says_is_told_with_what_they_say(wish: str, said: str) -> None:
    for verb in (("table",), ("export", "-o", "out.csv"), ("dashboard",)):
        code, text, errors = call(verb[0], "all.jsonl", *verb[1:], "--only", wish)
        assert (code, text) == (2, "")
        assert said in errors


def test_wishes_that_no_record_meets_together_are_told(records: list[Record]) -> None:
    some = [r for r in records if (r.setting, r.state_bytes) != ("pairs=4", 512)]
    with pytest.raises(SpecError, match="no record matches all of these: pairs=4, key_dim=8; leave some out"):
        sources.only(some, ["pairs=4", "key_dim=8"])


@pytest.mark.parametrize("suffix", EXPORTED)
@pytest.mark.parametrize("words", [("table",), ("extend",), ("report", "-o", "a.md"), ("merge", "-o", "a.sqlite")])
def test_an_exported_table_is_told_from_records(words: tuple[str, ...], suffix: str) -> None:
    table = f"whole{suffix}"
    assert call("export", "all.sqlite", "-o", table)[0] == 0
    code, text, said = call(words[0], table, *words[1:])
    assert (code, text) == (2, "")
    assert said == (
        f"{table} is a table, as recallmap export writes it for other programs, and no records are read from it; give what it "
        "was exported from: a ledger (.sqlite or .db), a .jsonl of records, or a folder of these\n"
    )
