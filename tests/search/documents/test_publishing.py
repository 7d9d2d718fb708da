"""Claims and excerpts are data: what is wrong with an entry is told with its place and what may stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from recallmap.results.publishing.claim_rules import Above, Average, OnAverage, Which
from recallmap.results.publishing.report import STANDING, VALIDITY, VALIDITY_BY_TASK
from recallmap.search import codec
from recallmap.search.documents.nodes import SpecError

PILLARS = ("synth", "arch", "arch/kernels", "results", "search")
ROOT = Path(__file__).parents[3]
DOCUMENTS = [path for folder in (".", "docs", *PILLARS) for path in sorted((ROOT / folder).glob("*.md"))]
CLAIMS = """\
models:
  gated: {has: [gla]}
averages:
  both: {columns: [[mqar], [parity]]}
claims:
  first:
    text: Gates help.
    source: a paper, table 1
    tasks: [mqar]
    rule: {kind: above, better: gated, worse: {has: [linear_attention], parameters: {heads: [2]}}}
  second:
    text: Gates help everywhere.
    source: a paper, table 2
    rule: {kind: average, over: both, rule: {better: gated, worse: {grown: false}}}
"""
EXCERPTS = """\
wide:
  every: {records: demo, column: mean, of: score}
  across:
    GLA: {row: 'gla width={}'}
  down:
    32: {at: 32}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "own.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_rule_names_what_several_rules_share(tmp_path: Path) -> None:
    found = codec.read_claims(written(tmp_path, CLAIMS))
    gated = Which(has=("gla",))
    assert list(found) == ["first", "second"]
    assert found["first"].rule == Above(
        better=gated, worse=Which(has=("linear_attention",), parameters={"heads": (2,)})
    )
    assert found["second"].rule == OnAverage(
        over=Average(columns=(("mqar",), ("parity",))), rule=Above(better=gated, worse=Which(grown=False))
    )


@pytest.mark.parametrize(
    ("right", "wrong", "place", "said"),
    [
        ("  second:", "  first:", "11:3", "claims.first: got this key twice, first at line 6, column 3; leave one out"),
        (
            "source: a paper, table 1",
            "sauce: a paper",
            "8:5",
            "unknown key, expected text, source, rule, tasks, seeds, regime, remark",
        ),
        ("source: a paper, table 1", "sauce: a paper", "8:5", "(did you mean 'source'?)"),
        ("kind: above", "kind: abov", "10:18", "unknown kind 'abov', expected 'above', 'rises', 'each' or 'average'"),
        ("kind: above", "kind: abov", "10:18", "(did you mean 'above'?)"),
        ("parameters: {heads: [2]}", "parameter: {heads: [2]}", "10:73", "(did you mean 'parameters'?)"),
        ("heads: [2]", "heads: 2", "10:93", "got the number 2, expected a list (write [2])"),
        (
            "better: gated, worse: {h",
            "better: 3, worse: {h",
            "10:33",
            "got the number 3, expected a name or a mapping",
        ),
        (
            "better: gated, worse: {h",
            "better: gate, worse: {h",
            "10:33",
            "no 'gate' in models, expected gated or a mapp",
        ),
        ("better: gated, worse: {h", "better: gate, worse: {h", "10:33", "(did you mean 'gated'?)"),
        ("over: both", "over: mine", "14:33", "no 'mine' in averages, expected both or a mapping"),
        ("tasks: [mqar]", "tasks: [mqr]", "9:13", "claims.first.tasks[0]: unknown task 'mqr', expected mqar, "),
        ("tasks: [mqar]", "tasks: [mqr]", "9:13", "(did you mean 'mqar'?)"),
        (
            "[[mqar], [parity]]",
            "[[mqar], [party]]",
            "4:29",
            "averages.both.columns[1][0]: unknown task 'party', expected ",
        ),
        ("has: [linear_attention]", "has: [linear]", "10:54", "unknown mixer 'linear', expected "),
        ("text: Gates help.", "text: Gates help", "7:11", "text must be a sentence that ends with a full stop"),
        ("kind: above, ", "kind: above, margin: -1, ", "10:33", "rule.margin: margin must be at least 0, got -1"),
        (
            "gated: {has: [gla]}",
            "gated: {is: [gla]}",
            "2:11",
            "unknown key, expected archs, has, lacks, parameters, at",
        ),
        ("gated: {has: [gla]}", "gated: gated", "2:10", "no 'gated' in models, expected a mapping"),
    ],
)
def test_a_wrong_claim_is_told_with_its_place(tmp_path: Path, right: str, wrong: str, place: str, said: str) -> None:
    path = written(tmp_path, CLAIMS.replace(right, wrong, 1))
    with pytest.raises(SpecError) as told:
        codec.read_claims(path)
    lines = str(told.value).splitlines()
    assert [line for line in lines if line.startswith(f"{path}:{place}: ") and said in line], lines


def test_a_fault_of_a_shared_part_is_told_once_and_all_faults_at_once(tmp_path: Path) -> None:
    text = CLAIMS.replace("gated: {has: [gla]}", "gated: {has: [gla], grown: 1}").replace("tasks: [mqar]", "tasks: [a]")
    with pytest.raises(SpecError) as told:
        codec.read_claims(written(tmp_path, text))
    assert [fault.path for fault in told.value.faults] == ["models.gated.grown", "claims.first.tasks[0]"]


@pytest.mark.parametrize(
    ("right", "wrong", "place", "said"),
    [
        (
            "of: score",
            "of: scores",
            "2:44",
            "wide.every.of: got text 'scores', expected 'score', 'spread', 'published', 'differe",
        ),
        ("column: mean, ", "", "2:10", "every must give column where neither head does, got none for row '32' and"),
        ("down:", "dwon:", "5:3", "unknown key, expected corner, every, across, down (did you mean 'down'?)"),
        (
            "at: 32",
            "att: 32",
            "6:10",
            "unknown key, expected records, row, at, column, of, source, title, cell (did you mean 'at'?)",
        ),
    ],
)
def test_a_wrong_excerpt_is_told_with_its_place(tmp_path: Path, right: str, wrong: str, place: str, said: str) -> None:
    path = written(tmp_path, EXCERPTS.replace(right, wrong, 1))
    with pytest.raises(SpecError) as told:
        codec.read_excerpts(path)
    lines = str(told.value).splitlines()
    assert [line for line in lines if line.startswith(f"{path}:{place}: ") and said in line], lines


def test_a_file_that_there_is_not_is_told() -> None:
    with pytest.raises(SpecError, match=r"no built-in claims or excerpts and no file, .* \(did you mean 'claims'\?\)"):
        codec.read_claims("clams")


def test_every_excerpt_of_the_package_stands_in_one_document_once() -> None:
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    asked = [name for text in texts for name in re.findall("^<!-- excerpt: (.*) -->$", text, re.M)]
    assert sorted(asked) == sorted([*codec.read_excerpts(), STANDING, VALIDITY, VALIDITY_BY_TASK])
