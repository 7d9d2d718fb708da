"""Every verb answers odd words with a sentence: names and numbers that are longer than these may be, and none at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recallmap.results.record import Record, write_records
from recallmap.search import codec
from recallmap.search.cli.app import app

STUDY = {
    "name": "story",
    "trial": {
        "task": {"kind": "mqar", "vocab": 32, "length": 16, "pairs": 2},
        "arch": {"name": "tiny", "width": 16, "stack": [{"kind": "block", "mixer": {"kind": "linear_attention"}}]},
        "training": {"steps": 1, "batch": 4, "evaluations": 1},
        "data": {"validation": 8, "test": 8},
    },
}
OWN = ("story.yaml", "--ledger", "all.jsonl")
NAMES = {"a name of 300 letters": "n" * 300, "5,000 digits": "9" * 5000, "nothing": ""}
NUMBERS = {
    "5,000 digits": "9" * 5000,
    "20 digits": "9" * 20,
    "digits of another sort": "²",
    "half a character": "\udcff",
}
WITH_NAMES = [
    ("run", "{}"),
    ("run", "story.yaml", "--dry-run", "--ledger", "{}"),
    ("run", "story.yaml", "--dry-run", "--set", "{}=1"),
    ("run", "story.yaml", "--dry-run", "--set", "budget={}"),
    ("run", "story.yaml", "--dry-run", "--device", "{}"),
    ("run", "story.yaml", "--engine", "{}"),
    ("run", "story.yaml", "--dry-run", "--for", "{}"),
    ("run", "story.yaml", "--dry-run", "--known", "{}"),
    ("table", "{}"),
    ("table", "{}.jsonl"),
    ("table", "{}.sqlite"),
    ("table", "story.yaml", "--ledger", "{}"),
    ("table", "all.jsonl", "--by", "{}"),
    ("table", "all.jsonl", "--beside", "{}"),
    ("table", "all.jsonl", "--only", "{}=1"),
    ("table", "all.jsonl", "--format", "{}"),
    ("best", "{}"),
    ("best", *OWN, "--point", "{}"),
    ("best", *OWN, "-o", "{}"),
    ("dashboard", "all.jsonl", "--no-probe", "-o", "{}"),
    ("dashboard", "all.jsonl", "--no-probe", "-o", "out/{}/page.html"),
    ("export", "all.jsonl", "-o", "{}"),
    ("export", "all.jsonl", "-o", "{}.csv"),
    ("export", "all.jsonl", "-o", "{}.parquet"),
    ("export", "all.jsonl", "-o", "{}.jsonl"),
    ("merge", "all.jsonl", "-o", "{}.sqlite"),
    ("merge", "all.jsonl", "-o", "{}.jsonl"),
    ("merge", "{}", "-o", "out.jsonl"),
    ("report", "{}"),
    ("report", "all.jsonl", "-o", "{}"),
    ("report", "all.jsonl", "-o", "out.md", "--fill", "{}"),
    ("check", "{}"),
    ("check", "--schema", "{}"),
    ("list", "{}"),
    ("preview", "{}"),
    ("preview", "mqar", "{}=1"),
    ("cost", "{}"),
    ("bench", "{}"),
    ("bench", "attention", "--variant", "x{}"),
    ("bench", "step", "--task", "{}"),
    ("probe", "{}"),
    ("probe", "mesa", "-o", "{}"),
]
WITH_NUMBERS = [
    ("run", "story.yaml", "--dry-run", "--part", "1/{}"),
    ("run", "story.yaml", "--dry-run", "--part", "{}/1"),
    ("run", "story.yaml", "--dry-run", "--set", "trial.arch.stack[{}].mixer=1"),
    ("run", "story.yaml", "--dry-run", "--set", "trial.seed={}"),
    ("run", "story.yaml", "--dry-run", "--cohort-size", "{}"),
    ("run", "story.yaml", "--dry-run", "--device", "cuda:{}"),
    ("run", "story.yaml", "--seeds", "-{}"),
    ("run", "story.yaml", "--dry-run", "--for", "{}m"),
    ("table", "all.jsonl", "--only", "seed={}"),
    ("preview", "mqar", "length={}"),
    ("preview", "mqar", "pairs={}"),
    ("preview", "mqar", "--count", "{}"),
    ("preview", "mqar", "--seed", "{}"),
    ("cost", "mesa", "--length", "{}"),
    ("cost", "mesa", "--vocab", "{}"),
    ("bench", "attention", "--shape", "{},1,1,1,1"),
    ("bench", "step", "--members", "{}"),
    ("probe", "mesa", "--pairs", "{}"),
    ("probe", "mesa", "--passes", "{}"),
    ("probe", "mesa", "--seed", "{}"),
]
CASES = {
    f"{' '.join(words)} with {case}": [word.replace("{}", text) for word in words]
    for verbs, odd in ((WITH_NAMES, NAMES), (WITH_NUMBERS, NUMBERS))
    for words in verbs
    for case, text in odd.items()
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where one works, with a study and a record of it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "story.yaml").write_text(json.dumps(STUDY))
    (trial,) = codec.read_study(STUDY).trials()
    record = Record(
        key=codec.key(trial),
        study="story",
        status="done",
        spec=codec.plain(trial),
        task="mqar",
        setting="",
        protocol="repaired",
        arch="tiny",
        seed=0,
        scores={"accuracy": 0.5},
        validation={"accuracy": 0.5},
    )
    write_records(tmp_path / "all.jsonl", [record, replace(record, key="other", arch="other")])
    return tmp_path


@pytest.mark.parametrize("case", CASES)
def test_every_verb_answers_odd_words_with_a_sentence(case: str) -> None:
    result = CliRunner().invoke(app, CASES[case])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 2)
    assert bool(result.stderr) >= (result.exit_code == 2)
    assert [c for c in result.output if not c.isprintable() and c != "\n"] == []


@pytest.mark.parametrize("verb", ["export", "dashboard", "merge", "report", "best"])
def test_a_file_may_have_as_long_a_name_as_names_may_be(verb: str, folder: Path) -> None:
    suffix = {"export": ".csv", "merge": ".jsonl", "dashboard": ".html", "report": ".md", "best": ".yaml"}[verb]
    name = "n" * (255 - len(suffix)) + suffix
    source = OWN if verb == "best" else ("all.jsonl",)
    rest = ("--no-probe",) if verb == "dashboard" else ()
    assert CliRunner().invoke(app, [verb, *source, *rest, "-o", name]).exit_code == 0
    assert (folder / name).stat().st_size > 0
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
