"""Records and files come from anybody: whatever they say, no verb lets it act on a terminal or add lines to what it says."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from recallmap.results.escape import cell, latex, markdown, one_line, visible
from recallmap.results.record import Record, address
from recallmap.search import codec
from recallmap.search.cli.app import app

ESCAPES = "\x1b[31m\x1b]0;title\x07\x9b2J\r\b\x00\x7f\u202e\u2066\u200f\u200b\u2028"
EVIL = f"evil{ESCAPES}=\nforged line"
STUDY: dict[str, Any] = {
    "name": "story",
    "trial": {
        "task": {"kind": "mqar", "vocab": 32, "length": 16, "pairs": 2},
        "arch": {
            "name": "tiny",
            "width": 16,
            "stack": [{"kind": "block", "mixer": {"kind": "linear_attention", "heads": 1}}],
        },
        "training": {"steps": 1, "batch": 4, "evaluations": 1},
        "data": {"validation": 8, "test": 8},
    },
    "space": {"kind": "grid", "axes": {"trial.arch.stack[0].mixer.key_dim": [4, 8], "trial.seed": [0, 1]}},
}


def call(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def acts(text: str) -> list[str]:
    """The characters of a text that do something, and the lines that a name has added."""
    lines = [line for line in text.splitlines() if line.removeprefix("| ").startswith("forged")]
    return [c for c in text if not c.isprintable() and c != "\n"] + lines


def evil_records() -> list[Record]:
    """Of trials whose every word is hostile, some failed; the specs are of real trials, so that a study finds them."""
    found = []
    for number, trial in enumerate(codec.read_study(STUDY).trials()):
        spec = codec.plain(trial)
        record = Record(
            key=codec.key(trial),
            study=EVIL,
            status="failed" if number == 3 else "done",
            error=EVIL if number == 3 else None,
            spec=spec,
            task="mqar",
            setting=EVIL,
            protocol=trial.task.protocol,
            arch=EVIL,
            seed=spec["seed"],
            scores={} if number == 3 else {"accuracy": 0.5, f"accuracy/{EVIL}=1": 0.5, EVIL: 1.0},
            validation={} if number == 3 else {"accuracy": 0.5},
            tests=[
                {"task": EVIL, "setting": EVIL, "length": 8, "chance": 0, "ceiling": 1, "scores": {"accuracy": 0.5}}
            ],
            device=EVIL,
            implementation={"halved": EVIL, "compiled step": f"no: {EVIL}"},
            commit=EVIL,
            created=EVIL,
            seconds=1.0,
            steps=3,
        )
        worse = {**spec, "task": {**spec["task"], "kind": EVIL}, EVIL: {EVIL: EVIL}}
        found += [record, replace(record, key=address(worse), task=EVIL, spec=worse)]
    return found


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study, and records of it that mean harm, in a file and in a ledger."""
    place = tmp_path_factory.mktemp("evil")
    (place / "story.yaml").write_text(json.dumps(STUDY))
    (place / "evil.jsonl").write_text("".join(f"{json.dumps(record.to_dict())}\n" for record in evil_records()))
    assert call("merge", str(place / "evil.jsonl"), "-o", str(place / "evil.sqlite"))[0] == 0
    return place


@pytest.fixture(autouse=True)
def folder(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where one works, with the template in it."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


# Records. --------------------------------------------------------------------------------------------

ON_RECORDS = {
    "markdown": ("table", "evil.jsonl"),
    "csv": ("table", "evil.jsonl", "--format", "csv"),
    "latex": ("table", "evil.jsonl", "--format", "latex"),
    "html": ("table", "evil.jsonl", "--format", "html"),
    "a ledger": ("table", "evil.sqlite"),
    "a cut": ("table", "evil.jsonl", "--by", "key_dim"),
    "a cut by a slip": ("table", "evil.jsonl", "--by", EVIL),
    "of a study": ("table", "story.yaml", "--ledger", "evil.jsonl"),
    "of a front": ("best", "story.yaml", "--ledger", "evil.jsonl", "-o", "winner.yaml"),
    "chosen": ("table", "evil.jsonl", "--only", "key_dim=4"),
    "chosen by a slip": ("table", "evil.jsonl", "--only", "arch=nobody"),
    "chosen by harm": ("table", "evil.jsonl", "--only", f"{EVIL}=1"),
    "the page": ("dashboard", "evil.jsonl", "--no-probe"),
    "merged": ("merge", "evil.jsonl", "evil.sqlite", "-o", "both.jsonl"),
    "exported": ("export", "evil.jsonl", "-o", "out.csv"),
    "exported whole": ("export", "evil.sqlite", "-o", "out.parquet"),
    "reported": ("report", "evil.jsonl", "-o", "out/REPORT.md"),
    "trained already": ("run", "story.yaml", "--ledger", "evil.sqlite"),
    "to be trained": ("run", "story.yaml", "--ledger", "evil.sqlite", "--dry-run"),
}


@pytest.mark.parametrize("case", ON_RECORDS)
def test_no_verb_lets_records_act(case: str, folder: Path) -> None:
    code, text, errors = call(*ON_RECORDS[case])
    assert (acts(text), acts(errors)) == ([], [])
    assert code in (0, 2) if "slip" in case or "harm" in case else code == 0
    written = [p for p in folder.rglob("*") if p.suffix in (".md", ".csv", ".yaml") and p.name != "story.yaml"]
    assert [acts(path.read_text(encoding="utf-8")) for path in written] == [[] for _ in written]


def test_latex_and_csv_keep_what_a_record_says_in_its_cell(folder: Path) -> None:
    rows = list(csv.reader(io.StringIO(call("table", "evil.jsonl", "--format", "csv")[1])))
    assert len({len(row) for row in rows}) == 1
    text = call("table", "evil.jsonl", "--format", "latex")[1]
    tables = [part.split("\\end{tabular}")[0] for part in text.split("\\begin{tabular}")[1:]]
    for table in tables:
        cells = {line.count(" & ") for line in table.splitlines() if line.endswith("\\\\")}
        assert len(cells) == 1


@pytest.mark.parametrize("output", ["out.csv", "out.parquet", "out.jsonl", "out.sqlite", "page.html"])
def test_half_a_character_is_told_where_no_file_can_hold_it(output: str, folder: Path) -> None:
    record = {**evil_records()[0].to_dict(), "arch": "half \ud800", "study": "story"}
    (folder / "half.jsonl").write_text(f"{json.dumps(record)}\n")
    verb = {".sqlite": ("merge",), ".html": ("dashboard", "--no-probe")}.get(Path(output).suffix, ("export",))
    code, text, errors = call(*verb, "half.jsonl", "-o", output)
    assert acts(text + errors) == []
    assert (code, "half \\ud800" in errors) == (2, True) or (code, output) == (0, "out.csv")
    assert not (folder / output).exists() or output in ("out.csv", "out.sqlite")


# Files. ----------------------------------------------------------------------------------------------


def yaml_of(part: Any) -> str:
    return json.dumps(part)  # JSON is YAML, its escapes too


def evil_study(**parts: Any) -> str:
    return yaml_of({**STUDY, **parts})


FILES = {
    "an unknown key": evil_study(**{EVIL: 1}),
    "an unknown value": evil_study(trial={**STUDY["trial"], "seed": EVIL}),
    "an unknown kind": evil_study(trial={**STUDY["trial"], "task": {"kind": EVIL}}),
    "an architecture that is not there": evil_study(trial={**STUDY["trial"], "arch": EVIL}),
    "a file that is not there": evil_study(trial={**STUDY["trial"], "arch": f"{EVIL}.yaml"}),
    "a name": evil_study(trial={**STUDY["trial"], "arch": {**STUDY["trial"]["arch"], "name": EVIL}}),
    "a name of the study": evil_study(name=EVIL),
    "a description": evil_study(description=EVIL),
    "a budget": evil_study(budgets={EVIL: {"trial.seed": 3}}),
    "a goal": evil_study(goals=[{"score": EVIL, "direction": "maximise"}]),
    "an axis": evil_study(space={"kind": "grid", "axes": {f"trial.{EVIL}": [1]}}),
    "only some": evil_study(only={EVIL: EVIL}),
    "no document": yaml_of([EVIL]),
    "raw bytes": f"a: {EVIL}",
    "a tag": '!<tag:\u202e> "x"',
    "an alias": "a: *\u202ex",
}
ON_FILES = {
    "check": ("check", "evil.yaml"),
    "run": ("run", "evil.yaml", "--dry-run"),
    "table": ("table", "evil.yaml", "--ledger", "evil.jsonl"),
    "best": ("best", "evil.yaml", "--ledger", "evil.jsonl"),
    "export": ("export", "evil.yaml", "--ledger", "evil.jsonl", "-o", "out.csv"),
    "dashboard": ("dashboard", "evil.yaml", "--ledger", "evil.jsonl", "--no-probe"),
    "cost": ("cost", "evil.yaml"),
    "probe": ("probe", "evil.yaml"),
    "preview": ("preview", "evil.yaml"),
    "bench": ("bench", "step", "--arch", "evil.yaml"),
}


@pytest.mark.parametrize("verb", ON_FILES)
@pytest.mark.parametrize("case", FILES)
def test_no_verb_lets_a_file_act(case: str, verb: str, folder: Path) -> None:
    (folder / "evil.yaml").write_text(FILES[case])
    code, text, errors = call(*ON_FILES[verb])
    assert (acts(text), acts(errors)) == ([], [])
    assert code in (0, 2)


@pytest.mark.parametrize("verb", ["check", "cost", "probe", "preview", "run", "table", "best", "report", "merge"])
def test_no_verb_lets_a_name_of_a_file_act(verb: str, folder: Path) -> None:
    name = f"{EVIL}.yaml".replace("\0", "")
    (folder / name).write_text("a: 1\n")
    rest = ("-o", "out.jsonl") if verb == "merge" else ()
    code, text, errors = call(verb, name, *rest)
    assert code == 2
    assert (acts(text), acts(errors)) == ([], [])


def test_a_name_that_is_not_seen_is_refused(folder: Path) -> None:
    (folder / "evil.yaml").write_text(FILES["a name"])
    code, _, errors = call("check", "evil.yaml")
    assert code == 2
    assert "name must be one line of characters that can be seen, got 'evil\\x1b[31m" in errors


# The functions, one a format. ------------------------------------------------------------------------


def test_what_acts_is_seen_and_all_else_is_as_it_was() -> None:
    assert visible("a ±é日本\n\tb") == "a ±é日本\n\tb"
    assert visible("\x1b[1m\u202e\ud800\x9b") == "\\x1b[1m\\u202e\\ud800\\x9b"
    assert one_line("a\r\nb\nc\td") == "a b c d"
    for harmless in (visible, one_line, markdown, latex, cell):
        assert not [c for c in str(harmless(EVIL)) if not c.isprintable() and c not in "\n\t"]


def test_latex_reads_nothing_into_names() -> None:
    assert latex("a_b & 5% of $x^2$ #1 {y} \\z ~") == (
        r"a\_b \& 5\% of \$x\textasciicircum{}2\$ \#1 \{y\} \textbackslash{}z \textasciitilde{}"
    )
    assert latex("[1cm] * < > |") == r"{[}1cm{]} {*} \textless{} \textgreater{} \textbar{}"
