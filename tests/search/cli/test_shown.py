"""Pages and reports of kept records: the report is what the records say, and ledgers of several places become one."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from recallmap.results import record_files
from recallmap.results.ledger import Ledger
from recallmap.results.publishing.report import FOLDER, VALIDITY, report
from recallmap.results.publishing.validity_table import primary_table
from recallmap.results.record import Record, read_records, unique, write_records
from recallmap.search import codec
from recallmap.search.cli import page_context
from recallmap.search.cli.app import app
from recallmap.search.cli.page_context import Details
from recallmap.search.study.spec import StudySpec
from recallmap.search.trial import TrialSpec
from recallmap.search.trials import Trial
from recallmap.search.trials.phased import PhasedTrial

RESULTS = Path(__file__).parents[3] / "results"
STUDY = {
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


def call(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def records() -> list[Record]:
    """Of two sizes on two settings, as trials leave them."""
    study: StudySpec = codec.read_study(STUDY)
    return [record(codec.plain(trial), codec.key(trial)) for trial in study.trials()]


def record(spec: dict[str, Any], key: str, **rest: Any) -> Record:
    pairs, key_dim = spec["task"]["pairs"], spec["arch"]["stack"][0]["mixer"]["key_dim"]
    known: dict[str, Any] = {"status": "done", "scores": {"accuracy": 1.0 if key_dim > pairs else 0.5}}
    names = {"task": "mqar", "setting": f"pairs={pairs}", "protocol": "repaired", "arch": "tiny", "seed": 0}
    return Record(key=key, study="story", spec=spec, state_bytes=64 * key_dim, **{**names, **known, **rest})


# The report. -----------------------------------------------------------------------------------------


def test_what_is_committed_is_what_the_records_say() -> None:
    """Where this fails: recallmap report --fill README.md, again with results/README.md, and look at what changed. The
    page of all records says the same of language models as the report."""
    files = record_files.by_file(RESULTS / "records")
    made = report(files, codec.read_claims(), page_context.sources(), codec.read_language())
    on_the_page = page_context.agreements(unique(record for own in files.values() for record in own))
    assert made.made_whole[VALIDITY] == primary_table(on_the_page)
    assert (RESULTS / "REPORT.md").read_text(encoding="utf-8") == made.text
    committed = {path.stem: path.read_text(encoding="utf-8") for path in (RESULTS / FOLDER).glob("*.md")}
    assert committed == made.tables
    for document in (RESULTS.parent / "README.md", RESULTS / "README.md"):
        text = document.read_text(encoding="utf-8")
        assert made.fill(text, codec.read_excerpts()) == text


def test_every_table_of_a_document_names_its_files_of_records_and_these_name_commits_of_the_history() -> None:
    """Records that name none, or one with uncommitted changes, are those that the report lists as not traceable."""
    excerpts = codec.read_excerpts()
    for document in (RESULTS.parent / "README.md", RESULTS / "README.md"):
        for section in re.split(r"(?m)^(?=##+ )", document.read_text(encoding="utf-8")):
            marks = [excerpts[name] for name in re.findall(r"<!-- excerpt: (\S+) -->", section) if name in excerpts]
            drawn = {str(one.place(row, column).records) for one in marks for row in one.down for column in one.across}
            named = set(re.findall(r"(?:records|tables)/(\w+|\*)\.(?:jsonl?|csv|md)", section))
            assert named or not re.search(r"(?m)^\| ---", section), (document, section[:80])
            assert drawn <= named, (document, section[:80])
    lost = re.compile(rb'"commit":(null|"[^"]*\+")')
    counts = {path.stem: path.read_bytes() for path in (RESULTS / "records").glob("*.jsonl")}
    listed = re.findall(r"(?m)^\| (\w+) \| (\d+) \| (\d+) \|$", (RESULTS / "REPORT.md").read_text(encoding="utf-8"))
    assert {name: int(number) for name, _, number in listed} == {
        name: number for name, text in counts.items() if (number := len(lost.findall(text)))
    }
    git = ["git", "-C", str(RESULTS)]
    history = subprocess.run([*git, "log", "--format=%H"], capture_output=True, text=True, check=False).stdout.split()
    shallow = subprocess.run(
        [*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True, check=False
    )
    if shallow.stdout.strip() != "false":
        pytest.skip("needs the whole history of the repository")
    made_at = {sha.decode() for text in counts.values() for sha in re.findall(rb'"commit":"([^"+]*)"', text)}
    assert made_at <= set(history)


def test_the_verdicts_of_the_report_follow_from_the_figures_that_it_prints() -> None:
    """Without a hand-made exception: whoever reads counts and p comes to the verdict."""
    rows = re.findall(
        r"(?m)^\| .+ \| .+ \| \*\*(.+)\*\* \| (.*) \| (.*) \| (.*) \|$",
        (RESULTS / "REPORT.md").read_text(encoding="utf-8"),
    )
    assert len(rows) == len(codec.read_claims())
    for said, comparisons, _, p in rows:
        sides = {part.split(" ", 1)[1] for part in comparisons.split(", ") if part != "no records yet"}
        expected = "not reproduced" if "against" in sides else "reproduced"
        if not p or not float(p.strip("<")) < 0.05:
            expected = "not decided"
        assert said == ("cannot speak" if sides <= {"cannot speak"} else expected)
    of_comparisons = re.findall(
        r"(?m)^\| .* \| (.*) \| \[\w+\]\(tables/\w+\.md\) \| (.+) \|$",
        (RESULTS / "REPORT.md").read_text(encoding="utf-8"),
    )
    for adjusted, said in of_comparisons:
        decided = said in ("reproduced", "not reproduced")
        assert decided or said == "not decided" or re.fullmatch(r"cannot speak: .+", said)
        assert decided <= (bool(adjusted) and float(adjusted.strip("<")) < 0.05)
    assert of_comparisons


def test_what_is_committed_stands_under_the_hash_of_its_spec_as_it_reads_today() -> None:
    """A record whose spec lacks a dial that has come since would be shown with a value it did not have. What differs in its
    seed and its rates alone is read once."""
    read: dict[str, TrialSpec] = {}
    for kept in read_records(RESULTS / "records"):
        if kept.spec.get("kind") == "phased":
            spec: Trial = codec.from_plain(PhasedTrial, kept.spec)
        else:
            rates = {name: kept.spec["training"][name] for name in ("lr", "weight_decay")}
            text = json.dumps({**kept.spec, "seed": 0, "training": {**kept.spec["training"], **dict.fromkeys(rates)}})
            if text not in read:
                read[text] = codec.from_plain(TrialSpec, kept.spec)
            spec = replace(read[text], seed=kept.spec["seed"], training=replace(read[text].training, **rates))
        assert codec.key(spec) == kept.key, (kept.study, kept.arch)


def test_the_verb_writes_the_report_and_a_table_for_every_file(records: list[Record], tmp_path: Path) -> None:
    write_records(tmp_path / "records" / "mqar_capacity.jsonl", records)
    code, text, _ = call("report", str(tmp_path / "records"), "-o", str(tmp_path / "REPORT.md"))
    assert (code, text) == (0, f"{tmp_path / 'REPORT.md'}: from 1 file of records\n")
    assert "mqar_capacity" in (tmp_path / "REPORT.md").read_text()
    assert "### mqar" in (tmp_path / "tables" / "mqar_capacity.md").read_text()


def test_a_task_that_no_paper_has_a_figure_for_keeps_its_table_next_to_one_that_is_compared(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "demo.jsonl").write_bytes((RESULTS / "records" / "demo.jsonl").read_bytes())
    assert call("report", str(tmp_path / "records"), "-o", str(tmp_path / "REPORT.md"))[0] == 0
    heads = [line for line in (tmp_path / "tables" / "demo.md").read_text().splitlines() if line.startswith("### ")]
    assert (heads.count("### MAD"), heads.count("### mqar")) == (4, 1)


def test_a_text_is_filled_or_all_is_left_as_it_was(
    records: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(tmp_path / "records" / "kept.jsonl", records)
    wide = {
        "corner": "keys",
        "every": {"records": "kept", "row": "tiny key_dim={}", "column": "mean", "of": "score"},
        "across": {"recall": {}},
        "down": {"4": {"at": 4}, "8": {"at": 8}},
    }
    excerpts = {**codec.read_excerpts(), **codec.read_excerpts({"wide": wide})}
    monkeypatch.setattr(codec, "read_excerpts", lambda: excerpts)
    words, text = ["report", str(tmp_path / "records"), "-o", str(tmp_path / "REPORT.md"), "--fill"], tmp_path / "T.md"
    code, _, said = call(*words, str(text))
    assert (code, said) == (2, f"--fill: got {text}, which is no file; expected a document such as README.md\n")
    text.write_text("<!-- excerpt: mqar-widths -->\n")
    code, _, said = call(*words, str(text))
    assert (code, said) == (2, "excerpt mqar-widths: '32' has no figure in these records\n")
    assert not (tmp_path / "REPORT.md").exists()
    text.write_text("<!-- excerpt: wide -->\n\nWords.\n")
    assert call(*words, str(text))[0] == 0
    made = "| keys | recall |\n| --- | ---: |\n| 4 | 75.0 |\n| 8 | 100.0 |\n"
    assert text.read_text() == f"<!-- excerpt: wide -->\n\n{made}\nWords.\n"


def test_wrong_claims_are_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / "claims.yaml"
    wrong.write_text("claims:\n  one: {text: Good., source: a paper, rule: {kind: rises, dial: window}}\n")
    read = codec.read_claims
    monkeypatch.setattr(codec, "read_claims", lambda: read(wrong))
    code, _, said = call("report", str(RESULTS / "records"), "-o", str(tmp_path / "REPORT.md"))
    assert (code, f"{wrong}:2:59: claims.one.rule.dial: unknown key, expected parameter" in said) == (2, True)
    assert not (tmp_path / "REPORT.md").exists()


def test_records_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("{}\n")
    code, _, said = call("report", str(tmp_path), "-o", str(tmp_path / "REPORT.md"))
    assert (code, "bad.jsonl:1: not a record" in said) == (2, True)
    assert not (tmp_path / "REPORT.md").exists()


# Several ledgers. ------------------------------------------------------------------------------------


def test_ledgers_of_several_places_become_one_and_done_goes_before_failed(
    records: list[Record], tmp_path: Path
) -> None:
    first, second, third, fourth = records
    failed = record(second.spec, second.key, status="failed", scores={}, error="out of memory")
    with Ledger(tmp_path / "here.sqlite") as ledger:
        ledger.merge([first, failed])
    write_records(tmp_path / "there.jsonl", [second, third])
    write_records(tmp_path / "again.jsonl", [failed, fourth])
    parts = [str(tmp_path / name) for name in ("here.sqlite", "there.jsonl", "again.jsonl")]
    for out, kept in (("all.sqlite", lambda p: Ledger.open(p).all()), ("all.jsonl", read_records)):
        code, said, _ = call("merge", *parts, "-o", str(tmp_path / out))
        assert code == 0
        assert "4 records" in said
        found = {r.key: r.status for r in kept(tmp_path / out)}
        assert found == {r.key: "done" for r in records}
        _, said, _ = call("merge", *parts, "-o", str(tmp_path / out))
        assert said.endswith("4 records, 0 of them new\n")


def test_a_merge_says_what_it_can_write(tmp_path: Path) -> None:
    write_records(tmp_path / "a.jsonl", [])
    code, _, said = call("merge", str(tmp_path / "a.jsonl"), "-o", "all.csv")
    assert (code, said) == (2, "--output: got all.csv, expected a name that ends in .sqlite, .db or .jsonl\n")


# Tables and the page. --------------------------------------------------------------------------------


@pytest.fixture
def kept(records: list[Record], tmp_path: Path) -> Path:
    write_records(tmp_path / "story.jsonl", records)
    return tmp_path / "story.jsonl"


def test_a_table_is_cut_by_what_varies(kept: Path) -> None:
    code, text, _ = call("table", str(kept), "--by", "key_dim")
    assert (code, text.count("| key dim 4 | key dim 8 |")) == (0, 2)
    code, _, said = call("table", str(kept), "--by", "window")
    assert (code, said) == (2, "nothing here varies by 'window', expected key_dim, pairs\n")


def test_a_table_as_html(kept: Path) -> None:
    code, text, _ = call("table", str(kept), "--format", "html")
    assert (code, text.startswith('<figure class="table">')) == (0, True)


def test_the_page_probes_what_was_trained_and_shows_it_in_yaml(kept: Path) -> None:
    page = kept.with_suffix(".html")
    assert call("dashboard", str(kept), "-o", str(page))[0] == 0
    text = page.read_text(encoding="utf-8")
    assert '<section id="capacity"' in text
    assert '<details data-row="tiny key_dim=8">' in text
    assert "kind: linear_attention" in text
    assert "features = 8" in text
    assert call("dashboard", str(kept), "-o", str(page), "--no-probe")[0] == 0
    assert '<section id="capacity"' not in page.read_text(encoding="utf-8")


def test_probed_rows_carry_the_rows_of_the_tables(records: list[Record]) -> None:
    rows = page_context.probed(records)
    assert {row["arch"] for row in rows} == {"tiny key_dim=4", "tiny key_dim=8"}
    assert {row["bounds"]["features"] for row in rows} == {4, 8}
    assert page_context.probed(records, seconds=0.0) == []


def test_an_architecture_of_another_version_is_shown_as_it_was_kept(records: list[Record]) -> None:
    records[0].spec["arch"]["stack"][0]["mixer"]["flux"] = 3
    details = Details(records[:1])
    (detail,) = details.values()
    assert "cannot read it" in detail.yaml
    assert '"flux": 3' in detail.yaml
    assert page_context.probed(records[:1]) == []
