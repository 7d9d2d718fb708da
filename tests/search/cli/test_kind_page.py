"""`recallmap list mixers NAME`: one kind with its options, on 80 columns, and a line of YAML that is right."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from recallmap.search import codec
from recallmap.search.cli.app import app
from recallmap.search.cli.kind_page import FAMILIES, row_of
from recallmap.search.documents import type_hints, yaml_text

KINDS = [(what, kind) for what, family in FAMILIES.items() for kind in sorted(type_hints.kinds_of(family.union()))]
TASK, ARCH = {"kind": "mqar", "vocab": 32, "length": 16, "pairs": 2}, {"name": "one", "width": 64}


def call(*words: str, columns: int = 80) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, list(words), catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def used(line: str) -> Any:
    """The spec of the kind that a line of YAML uses, as the codec reads it in a whole document."""
    said = yaml_text.parse(line.encode(), "line").plain()
    ((place, part),) = said.items()
    if place == "stack":
        (block,) = codec.read_arch(ARCH | {"stack": part}).stack
        return block.mixer
    if place == "task":
        return codec.read_task(part)
    arch = ARCH | {"stack": [{"kind": "block", "mixer": "attention"}]}
    trial = {"task": TASK, "arch": arch, "training": {"steps": 1}}
    return codec.read_study({"name": "one", "trial": trial, "space": part}).space.sampler


# Laws. --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "kind"), KINDS)
def test_the_line_of_yaml_of_every_kind_is_right_and_means_its_defaults(what: str, kind: str) -> None:
    spec = used(row_of(what, kind)["yaml"])
    assert spec.kind == kind
    assert spec == type(spec)()


@pytest.mark.parametrize(("what", "kind"), KINDS)
def test_every_kind_is_shown_on_80_columns_with_all_its_options(what: str, kind: str) -> None:
    code, text, errors = call("list", what, kind)
    assert (code, errors) == (0, "")
    lines = text.splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert lines[0] == f"{FAMILIES[what].noun} {kind}"
    assert lines[2]  # what it is
    shown = [
        line.split(" = ")[0].strip() for line in lines if line.startswith("  ") and line[2] != " " and " = " in line
    ]
    spec = type_hints.kinds_of(FAMILIES[what].union())[kind]
    assert set(shown) >= {one.name for one in type_hints.dials(spec)} - {"kind"}


@pytest.mark.parametrize(("what", "kind"), KINDS)
def test_a_range_that_is_shown_is_one_that_the_spec_holds(what: str, kind: str) -> None:
    spec: Any = type_hints.kinds_of(FAMILIES[what].union())[kind]
    for name, option in row_of(what, kind)["options"].items():
        if least := re.match(r"at least (\d+)\b", option["range"]):
            below = int(least[1]) - 1
            with pytest.raises(ValueError, match=rf"^{name} must be at least {least[1]}\b.*, got {below}"):
                spec(**{name: below})
            assert option["default"] is None or option["default"] > below


@pytest.mark.parametrize(("what", "kind"), [one for one in KINDS if one[0] != "tasks"])
def test_every_option_of_a_mixer_or_a_sampler_has_a_meaning(what: str, kind: str) -> None:
    """That of a task may stand in the paragraphs above its options."""
    assert all(option["meaning"] for option in row_of(what, kind)["options"].values())


# A story. -----------------------------------------------------------------------------------------


def test_a_mixer_is_shown_with_its_equation_and_what_its_options_mean() -> None:
    text = call("list", "mixers", "mesa")[1]
    flat = " ".join(text.split())
    assert flat.startswith("mixer mesa MesaNet's mixer. The solver is conjugate gradients, all tokens at once.")
    assert "equation: H_t = a_t H_{t-1} + b_t k_t^T k_t," in flat
    assert "source: von Oswald et al. 2025 (MesaNet)" in flat
    assert "cg_steps = 30 (a whole number, at least 0 and at most 10,000) most steps; 0 with x0" in flat
    assert "x0 = diag ('diag', 'q' or 'zero') the start of the solver" in flat
    assert "key_dim = null (a whole number or null, at least 1) channels of one head; null: width / heads" in flat
    assert text.splitlines()[-1] == "stack: [{kind: block, mixer: {kind: mesa, heads: 8, short_conv: 4}}]"


def test_a_kind_in_json_has_its_options_one_by_one() -> None:
    row = json.loads(call("list", "mixers", "mesa", "--json")[1])
    assert row["mixer"] == "mesa"
    assert row["options"]["tolerance"] == {
        "type": "a number or null",
        "range": "",
        "default": None,
        "meaning": "stop a token whose residual is below this share of its first one; null: all take all steps",
    }


def test_a_mixer_of_the_users_own_is_shown_as_ours_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("new", "mixer", "leaky")[0] == 0
    code, text, _ = call("list", "mixers", "leaky", "--use", "my_leaky.py")
    assert code == 0
    assert text.startswith("mixer leaky\n")
    assert "stack: [{kind: block, mixer: {kind: leaky" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mixers", "meza"], "no mixer is called 'meza' (did you mean 'mesa'?); all of them: recallmap list mixers"),
        (["tasks", "mqarr"], "no task is called 'mqarr' (did you mean 'mqar'?); all of them: recallmap list tasks"),
        (["samplers", "x"], "no sampler is called 'x'; all of them: recallmap list samplers"),
        (
            ["archs", "mesa"],
            "got 'mesa', but only of mixers, tasks, samplers a single one is shown; try: recallmap check mesa",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused_with_what_can(words: list[str], said: str) -> None:
    code, text, errors = call("list", *words)
    assert (code, text) == (2, "")
    assert errors == f"list {words[0]}: {said}\n"


def test_one_kind_is_no_table_of_markdown() -> None:
    code, _, errors = call("list", "mixers", "mesa", "--markdown")
    assert (code, errors) == (2, "list: got --markdown and mesa, expected one of them; leave one out\n")
