"""A value of the base that an axis replaces away, and that nothing says anew, is told of once; any other is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from recallmap.search import codec
from recallmap.search.cli.app import app
from recallmap.search.study.dropped import dropped

MIXER = {"kind": "gla", "heads": 2}
STACK = [{"kind": "block", "mixer": MIXER}]
TRIAL = {
    "task": {"kind": "mqar", "vocab": 32, "length": 16, "pairs": 2},
    "arch": {"name": "a", "width": 32, "stack": STACK},
    "training": {"steps": 1, "schedule": {"kind": "cosine", "warmup": 0.25}},
}
B, C = {"name": "b", "stack": STACK}, {"name": "c", "stack": STACK}
WIDTH = "trial.arch.width: 32 is written, and no trial has it: "
DROPPED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "an architecture": (
        {"trial.arch": [B]},
        [f"{WIDTH}{{name: b}} replaces the whole architecture, whose width is 128"],
    ),
    "several": (
        {"trial.arch": [B, C]},
        [f"{WIDTH}{{name: b}} and 1 other replace the whole architecture, whose width is 128"],
    ),
    "one of the zoo": (
        {"trial.arch": ["mesa"]},
        [f"{WIDTH}{{name: mesa}} replaces the whole architecture, whose width is 128"],
    ),
    "a mixer": (
        {"trial.arch.stack[0].mixer": ["mesa", {"kind": "deltanet"}]},
        [
            "trial.arch.stack[0].mixer.heads: 2 is written, and no trial has it: {kind: mesa} and 1 other replace the whole "
            "mixer, whose heads is "
        ],
    ),
    "a schedule": (
        {"trial": [{"training": {"schedule": {"kind": "linear"}}}]},
        [
            "trial.training.schedule.warmup: 0.25 is written, and no trial has it: {kind: linear} replaces the whole schedule, "
            "whose warmup is 0.05"
        ],
    ),
    "a task by its kind alone": (
        {"trial.task": ["parity"]},
        [
            "trial.task.length: 16 is written, and no trial has it: {kind: parity} replaces the whole task, whose length is "
        ],
    ),
    "one that another writes": ({"trial.arch": [B, C | {"width": 64}]}, [f"{WIDTH}{{name: b}} replaces the whole"]),
}
KEPT: dict[str, dict[str, Any]] = {
    "no axis": {},
    "the base among others": {"trial.arch": [B, {"name": "a"}]},
    "a width that is said anew": {"trial.arch": [B | {"width": 64}]},
    "the same width": {"trial.arch": [B], "trial.arch.width": [32]},
    "a width that varies": {"trial.arch": [B, "mesa"], "trial.arch.width": [64, 128]},
    "another name alone": {"trial.arch.name": ["b"]},
    "an option that the other kind has not": {"trial.task": [{"kind": "parity", "length": 16}]},
    "an option that varies": {"trial.training.lr": [1e-3], "trial.task.length": [32]},
    "another stack": {"trial.arch.stack": [[{"kind": "block", "mixer": "mesa"}]]},
}


def study(axes: dict[str, Any], trial: dict[str, Any] = TRIAL) -> dict[str, Any]:
    return {"name": "story", "trial": trial, "space": {"kind": "grid", "axes": axes}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(folder: Path, written: dict[str, Any]) -> list[str]:
    (folder / "story.yaml").write_text(json.dumps(written))
    return dropped(codec.read_study("story.yaml"))


@pytest.mark.parametrize("case", DROPPED)
def test_a_value_that_no_trial_has_is_told_with_what_is_used_instead(case: str, folder: Path) -> None:
    axes, said = DROPPED[case]
    found = told(folder, study(axes))
    assert len(found) == len(said)
    assert all(line.startswith(beginning) for line, beginning in zip(found, said, strict=True))


@pytest.mark.parametrize("case", KEPT)
def test_of_a_value_that_is_used_or_said_anew_nothing_is_told(case: str, folder: Path) -> None:
    assert told(folder, study(KEPT[case])) == []


def test_what_a_named_base_says_in_its_own_file_is_nobodys_loss(folder: Path) -> None:
    (folder / "own.yaml").write_text(json.dumps(TRIAL["arch"]))
    for named in ("mesa", "own.yaml"):
        assert told(folder, study({"trial.arch": [B]}, TRIAL | {"arch": named})) == []


def test_the_corners_of_a_search_are_looked_at(folder: Path) -> None:
    dials = {"trial.arch": {"choice": [B]}}
    search = study({}) | {"space": {"kind": "random", "points": 2, "dials": dials}}
    assert told(folder, search) == [DROPPED["an architecture"][1][0]]


@pytest.mark.parametrize("verb", [("check",), ("run", "--dry-run")])
def test_check_and_a_dry_run_say_so_in_one_line(verb: tuple[str, ...], folder: Path) -> None:
    budgets = {"budgets": {"one": {"trial.seed": 1}}}
    (folder / "story.yaml").write_text(json.dumps(study({"trial.arch": [B]}) | budgets))
    result = CliRunner(env={"COLUMNS": None}).invoke(app, [verb[0], "story.yaml", *verb[1:]])
    assert result.exit_code == 0
    assert result.output.splitlines().count(DROPPED["an architecture"][1][0]) == 1
