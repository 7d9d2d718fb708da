"""Tables on a terminal: whatever its width, no word or number is broken, and nothing is left out."""

from __future__ import annotations

import copy
import functools
from pathlib import Path

import pytest
from rich.table import Table
from typer.testing import CliRunner

from recallmap.search.cli.app import app
from recallmap.search.cli.listings import LISTINGS, capacities_of, timings
from recallmap.search.cli.streams import width
from recallmap.search.cli.terminal import Terminal

ROWS = [
    {"arch": f"deltanet_{n}", "mixer": "gated_deltanet", "keys": "gaussian", "pairs": 2**n, "load": 0.001 * n}
    | {"error": 1e-7 * n, "recall": 1.0, "chance": 0.25, "bounds": {"d_k": 16, "a longer name of a bound": 123456}}
    for n in range(15)
]


@functools.cache
def made(what: str) -> Table:
    listed = {name: one.table for name, one in LISTINGS.items()}
    return {"capacities": lambda: capacities_of(ROWS), "timings": lambda: timings(ROWS), **listed}[what]()


def shown(table: Table, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    capsys.readouterr()
    Terminal().print(table)
    return capsys.readouterr().out


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
@pytest.mark.parametrize("what", ["tasks", "mixers", "archs", "suites", "capacities", "timings"])
def test_no_table_breaks_a_word(
    what: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = made(what)
    text = shown(copy.deepcopy(table), columns, monkeypatch, capsys)
    assert max(map(len, text.splitlines())) <= columns
    said = text.replace(":", " ").split()
    words = [word for column in table.columns for cell in column.cells for word in str(cell).replace(":", " ").split()]
    assert sorted(word for word in set(words) if word not in said) == []


def test_a_row_that_does_not_fit_says_under_its_name_what_its_columns_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table("arch", "state bytes", "grows", "about", caption="of a test")
    table.add_row("mesa", "38,912", "", "a solver " * 20)
    table.add_row("attention", "262,144", "yes", "short")
    lines = shown(table, 40, monkeypatch, capsys).splitlines()
    assert lines[:3] == ["mesa", "  state bytes: 38,912", "  about: a solver a solver a solver a"]
    assert lines[-4:] == ["attention", "  state bytes: 262,144   grows: yes", "  about: short", "", "of a test"][-4:]


def test_a_caption_is_as_wide_as_the_terminal_and_a_long_line_goes_on_two_columns_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table("arch", caption="of a table that is narrower than this")
    table.add_row("mesa")
    assert shown(table, 40, monkeypatch, capsys).splitlines()[-1] == "of a table that is narrower than this"
    Terminal().say("importance of parameters: stack[0] 0.30, stack[1] 0.11")
    assert capsys.readouterr().out == "importance of parameters: stack[0] 0.30,\n  stack[1] 0.11\n"


@pytest.mark.parametrize(("said", "columns"), [("80", 80), ("5", 20), ("0", 80), ("words", 80), ("9" * 5000, 80)])
def test_columns_are_as_many_as_are_said_and_enough(said: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", said)
    assert width() == columns
    assert Terminal().width == columns
    monkeypatch.delenv("COLUMNS")
    assert width() is None


def test_the_verbs_keep_to_the_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    kept = Path(__file__).parents[3] / "results" / "records" / "mad_rates_cpu.jsonl"
    for words in (("table", str(kept)), ("list", "mixers"), ("preview", "mqar")):
        result = CliRunner().invoke(app, [*words])
        assert result.exit_code == 0
        assert max(map(len, result.stdout.splitlines())) <= 80
