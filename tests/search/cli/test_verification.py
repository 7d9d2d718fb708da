"""`recallmap verify` runs the laws on a kind, an architecture or a file, and says what breaks one."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from recallmap.arch import laws
from recallmap.search import codec
from recallmap.search.cli import verification
from recallmap.search.cli.app import app
from recallmap.search.documents import built_in

PEEKS = '''"""A mixer that sees the next token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

import recallmap as rm


@dataclass(frozen=True, kw_only=True)
class Peek(rm.MixerSpec):
    kind: Literal["peek"] = "peek"
    equation: ClassVar[str] = "y_t = W (x_t + x_{t+1})"
    state_formula: ClassVar[str] = "0"
    source: ClassVar[str] = "a test"

    def check(self, width: int) -> None:
        pass

    def build(self, width: int) -> rm.MixerModule:
        return _Peek(width)

    def state_size(self, width: int, length: int) -> rm.StateSize:
        return rm.StateSize(0)

    def flops(self, width: int, length: int) -> float:
        return 2 * width * width


class _Peek(rm.MixerModule):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = nn.Linear(width, width)

    def mix(self, x, state, return_state):
        return self.out(x + torch.cat([x[:, 1:], 0 * x[:, :1]], 1)), None
'''


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["verify", *words], env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("retnet", ["mixer retnet: 9 laws hold", "architecture retnet, block 0 (retnet + swiglu): 9 laws hold"]),
        ("linear_attention", ["mixer linear_attention: 9 laws hold"]),
        ("parity", ["task parity: 6 laws hold, 1 does not apply"]),
        ("random", ["sampler random: 5 laws hold"]),
        ("swa", ["architecture swa, block 0 (attention + swiglu): 9 laws hold"]),
    ],
)
def test_a_part_of_ours_holds_all_laws(name: str, said: list[str]) -> None:
    code, told = call(name)
    assert code == 0
    assert all(line in told.splitlines() for line in said)
    assert " NO " not in told


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(built_in.builtin("arch")))
def test_each_block_of_the_zoo_holds_all_laws_at_its_own_width(name: str) -> None:
    for found in verification.of_arch(codec.read_arch(name)):
        assert [verdict.fault for verdict in found.verdicts if not verdict.holds] == []


def test_a_law_that_does_not_apply_is_said_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recallmap.synth.laws.LAWS", {"tokens in vocabulary": (lambda _: pytest.fail("was run"), True)})
    code, told = call("learnability")
    assert code == 0
    assert told.startswith("task learnability: 0 laws hold, 1 does not apply\n")
    assert " - " in told
    assert "its signal is vectors" in told


def test_a_file_of_one_s_own_is_executed_and_its_broken_laws_are_told(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PEEKS, encoding="utf-8")
    code, told = call(str(tmp_path / "mine.py"))
    assert code == 1
    assert told.startswith("mixer peek: ")
    lines = {line.split("  ")[0].strip(): line for line in told.splitlines()}
    assert " NO " in lines["causality"]
    assert "of 3 tokens, output 0 (from 0) changes by" in lines["causality"]
    assert " yes " in lines["gradients everywhere"]


LAYERS = """
from torch import nn


class Branching(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.out = nn.Linear(width, width)

    def forward(self, x):
        return self.out(x.cumsum(1) if x.sum() > -1e9 else x)


class Running(Branching):
    def forward(self, x):
        return self.out(x.cumsum(1))

    def step(self, x, state):
        state = x if state is None else state + x
        return self.out(state), state


class Needy(nn.Module):
    def __init__(self, width: int, size: int):
        super().__init__()
"""


def test_torch_modules_of_a_file_are_run_and_need_not_stack(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text(LAYERS, encoding="utf-8")
    code, told = call(str(tmp_path / "layers.py"))
    lines = told.splitlines()
    assert code == 1
    assert "torch module Running: 9 laws hold" in lines
    assert "torch module Branching: 7 laws hold, 2 do not apply" in lines
    assert "its trials train one at a time" in told
    assert "it cannot be read token by token, so that its state cannot be counted" in told
    assert "torch module Needy: 0 of 1 law hold" in lines
    assert "it cannot be made with its defaults: options lacks size" in told


def test_a_yaml_file_is_a_task_or_an_architecture(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text("{kind: mqar, vocab: 64, length: 32, pairs: 4}\n", encoding="utf-8")
    (tmp_path / "arch.yaml").write_text(
        "{name: two, width: 8, stack: [{kind: block, mixer: {kind: deltanet, heads: 2}}, {kind: block, mixer: base_conv}]}\n",
        encoding="utf-8",
    )
    assert call(str(tmp_path / "task.yaml"))[1].startswith("task mqar: 7 laws hold\n")
    code, told = call(str(tmp_path / "arch.yaml"))
    assert code == 0
    assert "architecture two, block 0 (deltanet): 9 laws hold" in told
    assert "architecture two, block 1 (base_conv): 9 laws hold" in told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1 / 0\n", "mine.py: cannot be imported: ZeroDivisionError: division by zero in mine.py:1: x = 1 / 0"),
        ("x = (\n", "mine.py: cannot be imported: SyntaxError: "),
        ("x = 1\n", "mine.py: defines nothing that recallmap can use, expected a frozen dataclass that is a MixerSpec"),
        (None, "mine.py: no such file"),
    ],
)
def test_a_file_that_has_nothing_to_check_is_refused_with_its_place(
    text: str | None, said: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    code, told = call(str(tmp_path / "mine.py"))
    assert code == 2
    assert said in told


def test_an_unknown_name_is_refused_with_what_was_meant() -> None:
    code, told = call("retnte")
    assert code == 2
    assert told.startswith(
        "retnte: no file, and no mixer, task, sampler or architecture of this name (did you mean 'retnet'?)"
    )


def test_a_kind_without_defaults_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        PEEKS.replace("    equation:", "    needed: int\n    equation:", 1), encoding="utf-8"
    )
    code, told = call(str(tmp_path / "mine.py"))
    assert code == 1
    assert "it cannot be made with its defaults: " in told
    assert "'needed'" in told


def test_what_is_counted_as_broken_is_a_fault() -> None:
    one = verification.Checked(
        "x", [laws.Verdict("a"), laws.Verdict("b", "why"), laws.Verdict("c", skipped="not here")]
    )
    assert one.summary == "x: 1 of 2 laws hold, 1 does not apply"
