"""Records from elsewhere count as trained: what has one is not trained again, and the ledger gets a copy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from recallmap.results.ledger import Ledger
from recallmap.results.record import Record, to_json, write_records
from recallmap.search import codec
from recallmap.search.cli.app import app
from recallmap.search.engines import inline
from recallmap.search.proposers.generations import told_points
from recallmap.search.proposers.journal import Journal, journal_of

COMMIT = "0123456789" * 4
STUDY: dict[str, Any] = {
    "name": "story",
    "trial": {
        "task": {"kind": "mqar", "vocab": 16, "length": 12, "pairs": 2},
        "arch": {
            "name": "tiny",
            "width": 16,
            "stack": [{"kind": "block", "mixer": {"kind": "gated_deltanet", "heads": 2}}],
        },
        "training": {"steps": 4, "batch": 4, "evaluations": 2, "lr": 3e-3},
        "data": {"validation": 16, "test": 16},
    },
    "space": {"kind": "grid", "axes": {"trial.training.lr": [1e-3, 1e-2], "trial.seed": [0, 1]}},
}
SEARCH: dict[str, Any] = STUDY | {
    "name": "seek",
    "space": {
        "kind": "tpe",
        "points": 4,
        "generation": 2,
        "over": {"trial.seed": [0, 1]},
        "dials": {"trial.training.lr": {"float": [1e-4, 1e-2], "log": True}},
    },
    "goals": [{"score": "accuracy", "direction": "maximise"}],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for plain in (STUDY, SEARCH):
        (tmp_path / f"{plain['name']}.yaml").write_text(json.dumps(plain), encoding="utf-8")
    return tmp_path


def trained(plain: dict[str, Any], path: str, **rest: Any) -> list[Record]:
    """The records of a study that was trained, as from a clean commit."""
    inline.run(codec.read_study(plain), Path(path), device="cpu", **rest)
    with Ledger.open(path) as ledger:
        return [replace(record, commit=COMMIT) for record in ledger.all()]


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def run(study: str, *words: str) -> str:
    code, said, errors = call("run", f"{study}.yaml", "--device", "cpu", *words)
    assert (code, errors) == (0, "")
    return said


def held(path: str) -> dict[str, Record]:
    with Ledger.open(path) as ledger:
        return {record.key: record for record in ledger.all()}


def as_lines(records: list[Record]) -> str:
    write_records(Path("known.jsonl"), records)
    return "known.jsonl"


def as_ledger(records: list[Record]) -> str:
    with Ledger("known.sqlite") as ledger:
        ledger.merge(records)
    return "known.sqlite"


def as_folder(records: list[Record]) -> str:
    Path("known").mkdir()
    write_records(Path("known/one.jsonl"), records[:1])
    write_records(Path("known/rest.jsonl"), records[1:])
    return "known"


@pytest.mark.parametrize("kept", [as_lines, as_ledger, as_folder])
def test_a_grid_that_is_known_trains_nothing_and_its_ledger_has_it(
    kept: Callable[[list[Record]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = trained(STUDY, "elsewhere.sqlite")
    place = kept(records)
    plan = call("run", "story.yaml", "--device", "cpu", "--known", place, "--dry-run")[1]
    assert plan.endswith("4 trials, 4 known in runs/story.sqlite and --known, 0 to train in 0 cohorts\n")
    monkeypatch.setattr(inline, "train", None)
    said = run("story", "--known", place)
    assert said.splitlines()[0] == "4 trials, 4 known, 0 to train in 0 cohorts"
    assert held("runs/story.sqlite") == {record.key: record for record in records}
    assert "4 known, 0 done, 0 failed" in run("story")  # without them, too
    assert "| tiny |" in call("table", "story.yaml")[1]


def test_only_what_is_missing_is_trained_and_only_what_is_asked_for_is_copied() -> None:
    records = trained(STUDY, "elsewhere.sqlite")
    others = trained(STUDY | {"space": {"kind": "grid", "axes": {"trial.seed": [7]}}}, "others.sqlite")
    said = run("story", "--known", as_lines([*records[:1], *others]), "--known", as_ledger(records[1:2]))
    assert said.splitlines()[0] == "4 trials, 2 known, 2 to train in 1 cohort"
    found = held("runs/story.sqlite")
    assert set(found) == {record.key for record in records}
    assert [found[record.key].commit for record in records[:2]] == [COMMIT, COMMIT]


def test_the_seeds_of_a_winner_are_chosen_by_what_is_known_and_may_be_known_themselves() -> None:
    records = trained(STUDY, "elsewhere.sqlite", seeds=4)
    assert len(records) == 6
    place = as_lines(records[:-1])
    plan = call("run", "story.yaml", "--device", "cpu", "--seeds", "4", "--known", place, "--dry-run")[1]
    assert plan.splitlines()[-1] == "then at most 1 further trial: seeds 0..3 of the best settings"
    said = run("story", "--seeds", "4", "--known", place)
    assert "1 further trial: seeds 0..3 of the best settings" in said
    assert "5 known, 1 done, 0 failed" in said
    assert set(held("runs/story.sqlite")) == {record.key for record in records}


def points(path: str) -> dict[str, Any]:
    return told_points(codec.read_study(SEARCH), Journal(journal_of(Path(path))))


@pytest.mark.parametrize("many", [3, 8])
def test_a_search_asks_the_same_points_and_trains_only_what_is_not_known(many: int) -> None:
    records = trained(SEARCH, "elsewhere.sqlite")
    assert len(records) == 8
    said = run("seek", "--known", as_lines(records[:many]))
    assert f"{many} known, {8 - many} done, 0 failed" in said
    assert points("runs/seek.sqlite") == points("elsewhere.sqlite")
    found = held("runs/seek.sqlite")
    assert set(found) == {record.key for record in records}
    assert sum(record.commit == COMMIT for record in found.values()) >= many
    assert "8 known, 0 done, 0 failed" in run("seek")
    assert "| tiny |" in call("table", "seek.yaml")[1]


def test_a_search_that_was_killed_before_the_copy_copies_it_next_time() -> None:
    records = trained(SEARCH, "elsewhere.sqlite")
    Path("runs").mkdir()
    shutil.copy(journal_of(Path("elsewhere.sqlite")), journal_of(Path("runs/seek.sqlite")))
    assert "8 known, 0 done, 0 failed" in run("seek", "--known", as_lines(records))
    assert len(held("runs/seek.sqlite")) == 8


def test_a_failed_trial_is_not_known() -> None:
    first, *rest = trained(STUDY, "elsewhere.sqlite")
    failed = replace(first, status="failed", error="no memory")
    assert "4 trials, 3 known, 1 to train" in run("story", "--known", as_lines([failed, *rest]))


def test_what_failed_here_and_is_known_from_elsewhere_is_not_tried_again() -> None:
    first, *rest = trained(STUDY, "elsewhere.sqlite")
    with Ledger("runs/story.sqlite") as ledger:
        ledger.merge([replace(first, status="failed", error="no memory", scores={}), *rest])
    assert "4 trials, 4 known, 0 to train" in run("story", "--known", as_lines([first]))
    assert held("runs/story.sqlite")[first.key] == first


# What is refused. -------------------------------------------------------------------------------------


def refused(*words: str) -> str:
    code, said, errors = call("run", "story.yaml", "--device", "cpu", *words)
    assert (code, said) == (2, "")
    assert not Path("runs").exists()
    return errors


@pytest.mark.parametrize("commit", [None, f"{COMMIT}+"])
def test_untraceable_records_are_refused_or_counted(commit: str | None) -> None:
    records = trained(STUDY, "elsewhere.sqlite")
    place = as_lines([*records[:3], replace(records[3], commit=commit)])
    assert refused("--known", place) == (
        "known.jsonl: 1 of 4 records untraceable (no commit, or uncommitted changes); accept them with "
        "--known-untraceable, or train these trials again from a clean commit\n"
    )
    code, said, errors = call("run", "story.yaml", "--device", "cpu", "--known", place, "--known-untraceable")
    assert (code, said.splitlines()[0]) == (0, "4 trials, 4 known, 0 to train in 0 cohorts")
    assert errors == (
        "known.jsonl: 1 of 4 records untraceable (no commit, or uncommitted changes), counted as trained\n"
    )


def test_a_record_of_another_schema_is_refused_with_its_file_and_line() -> None:
    first, second, *_ = trained(STUDY, "elsewhere.sqlite")
    later = json.loads(to_json(second)) | {"new": 1}
    Path("known.jsonl").write_text(f"{to_json(first)}\n{json.dumps(later)}\n", encoding="utf-8")
    said = refused("--known", "known.jsonl")
    assert said == "known.jsonl:2: not a record: a record of another version: unknown fields new\n"


def test_a_record_under_the_key_of_another_trial_is_refused() -> None:
    first, second, *_ = trained(STUDY, "elsewhere.sqlite")
    said = refused("--known", as_lines([replace(first, key=second.key)]))
    assert said.startswith(f"known.jsonl: the record {second.key[:12]} of tiny has the key of another trial, expected ")


@pytest.mark.parametrize("place", ["nosuch.sqlite", "nosuch.jsonl", "empty", "story.yaml"])
def test_a_place_without_records_is_refused(place: str) -> None:
    Path("empty").mkdir()
    assert place in refused("--known", place)
