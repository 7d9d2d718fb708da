"""The laws find what breaks them, say where and by how much, and what to do."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recallmap.arch import laws
from recallmap.arch.laws import Verdict
from recallmap.arch.mixers.gated_deltanet import GatedDeltaNet
from recallmap.arch.mixers.mixer import MixerModule, State, StateSize

WIDTH = 8


class Fade(MixerModule):
    """An average that fades, and what may be wrong with it by name."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self.v, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        if wrong in ("unused", "0", "root"):
            self.more = nn.Parameter(torch.zeros(WIDTH))
        if wrong == "buffer":
            self.register_buffer("table", torch.rand(WIDTH))

    def forward(self, x_BTD: Tensor, state: State = None, *, return_state: bool = False) -> tuple[Tensor, State]:
        if self.wrong in ("none", "other"):
            if self.wrong == "other" and not x_BTD.shape[1]:
                raise ValueError("too short")
            return self.mix(x_BTD, state, return_state)
        return super().forward(x_BTD, state, return_state=return_state)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        v_BTD = self.v(x_BTD)
        h_BD = torch.zeros_like(v_BTD[:, 0]) if state is None or self.wrong == "forgets" else state
        outputs = []
        for v_BD in v_BTD.unbind(1):
            h_BD = 0.9 * h_BD + v_BD
            outputs.append(h_BD)
        h_BTD = torch.stack(outputs, 1) if outputs else v_BTD
        match self.wrong:
            case "peeks":
                h_BTD = h_BTD + v_BTD.roll(-1, 1)
            case "scales" if x_BTD.shape[1] > 1:
                h_BTD = 2 * h_BTD
            case "stale":
                h_BD = h_BD + x_BTD.shape[1]
            case "branches" if x_BTD.sum() > 0:
                h_BTD = -h_BTD
            case "0":
                h_BTD = h_BTD + self.more.detach() * self.more * 0
            case "root":
                h_BTD = h_BTD + self.more.sqrt() * 0
            case "wide":
                h_BTD = h_BTD.float()
            case "coarse":
                h_BTD = (h_BTD * 4).round() / 4 if x_BTD.dtype == torch.bfloat16 else h_BTD
            case "huge":
                h_BD = h_BD * math.inf
            case "broken":
                raise RuntimeError("no such kernel\nsecond line")
        return self.out(h_BTD) if self.wrong != "wide" else self.out(h_BTD.to(x_BTD.dtype)).float(), h_BD


def stacked(module: nn.Module, width: int) -> Verdict:
    return laws.stacking([module, Fade(getattr(module, "wrong", ""))], width)


def counted(module: nn.Module, width: int) -> Verdict:
    return laws.counted_state(module, width, lambda _: StateSize(WIDTH + 1))


@pytest.mark.parametrize(
    ("wrong", "law", "said"),
    [
        ("peeks", laws.is_causal, "^of 3 tokens, output 0 .* changes by .* when those after 0 change; expected outputs"),
        ("forgets", laws.cuts, r"^of 3 tokens cut after 1, output 1 \(from 0\) is another by .*: carry in the state all"),
        ("stale", laws.cuts, "^of 3 tokens cut after 1, (output 1|the last state)"),
        ("scales", laws.decoding, "^of 3 tokens read one by one, output 0 .*: one token with a state is the decode step"),
        ("", counted, "^after 1 token it declares a state of 9 floats and holds 8; expected as many"),
        ("unused", laws.gradients, r"^of 33 tokens, more gets none \(use it in every output, or leave it out\); expected"),
        ("0", laws.gradients, r"^of 33 tokens, more gets 0 \(is it cut off, or multiplied by 0\?\); expected"),
        ("root", laws.gradients, r"^of 33 tokens, more gets one that is not finite \("),
        ("branches", stacked, "^it does not run under torch.vmap .*; write nothing in place and branch on no data$"),
        ("buffer", stacked, r"^its members differ in buffers \(table\), and a cohort has those of its first member; expected"),
        ("wide", laws.rounding, r"^of inputs in bfloat16, outputs are torch.float32; expected bfloat16"),
        ("coarse", laws.rounding, "^in bfloat16, outputs differ from those of .* in float64 by .*: sum and decay"),
        ("huge", laws.rounding, "^in bfloat16 its state is not finite; expected finite numbers: compute it in float32"),
        ("none", laws.shortest, "^it reads a sequence of 0 tokens; expected a ValueError|^of 0 tokens it raises IndexError"),
        ("other", laws.shortest, "^of 0 tokens it says 'too short'; expected a ValueError that says 'at least one token'"),
    ],
)  # fmt: skip
def test_a_law_finds_what_breaks_it(wrong: str, law: Callable[[nn.Module, int], Verdict], said: str) -> None:
    torch.manual_seed(0)
    verdict = law(Fade(wrong), WIDTH)
    assert not verdict.holds
    assert re.search(said, verdict.fault), verdict.fault
    if law is not counted:
        assert law(Fade(), WIDTH).holds


def test_a_constant_table_may_be_a_buffer() -> None:
    members = [Fade(), Fade()]
    for member in members:
        member.register_buffer("table", torch.arange(WIDTH))
    assert laws.stacking(members, WIDTH).holds


def test_a_map_back_that_begins_at_zero_breaks_no_law_once_nudged() -> None:
    module = Fade()
    nn.init.zeros_(module.out.weight)
    assert "v.weight gets 0" in laws.gradients(module, WIDTH).fault
    assert laws.gradients(module, WIDTH, nudged=True).holds
    nn.init.zeros_(module.out.bias)
    assert laws.rounding(module, WIDTH).holds


def test_parameters_are_counted() -> None:
    assert laws.counted_parameters(Fade(), 144).holds
    assert laws.counted_parameters(Fade(), 143).fault == "it declares 143 parameters and has 144; expected as many"


def test_a_stack_of_other_weights_is_compared_member_by_member() -> None:
    """A module that knows under which number it was built is another in a stack than alone."""

    class Numbered(Fade):
        def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
            y_BTD, state = super().mix(x_BTD, state, return_state)
            return y_BTD * self.number, state

    members = [Numbered(), Numbered()]
    for number, member in enumerate(members, start=1):
        vars(member)["number"] = number
    verdict = laws.stacking(members, WIDTH)
    assert verdict.fault.startswith("of 2 members, output 0 (from 0) of member 1 is another by ")


def every(build: Callable[[], nn.Module], size: Any, parameters: int | None = None) -> dict[str, Verdict]:
    return {verdict.law: verdict for verdict in laws.verdicts(build, WIDTH, size, parameters)}


def test_all_laws_run_on_a_mixer_and_leave_random_numbers_as_they_were() -> None:
    spec = GatedDeltaNet(heads=2)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    found = every(lambda: spec.build(WIDTH), lambda length: spec.state_size(WIDTH, length), spec.parameters(WIDTH))
    assert torch.equal(torch.rand(2), expected)
    assert all(verdict.holds for verdict in found.values()), found
    assert len(found) == 9


def test_a_state_that_cannot_be_counted_is_said_to_be_so() -> None:
    (verdict,) = (one for one in laws.verdicts(Fade, WIDTH, None) if one.skipped)
    assert verdict.law == "counted state"
    assert verdict.skipped == "it cannot be read token by token, so that its state cannot be counted"


def test_a_module_that_cannot_be_run_breaks_each_law_with_its_own_words() -> None:
    found = every(lambda: Fade("broken"), lambda _: StateSize(WIDTH))
    assert len(found) == 8
    for verdict in found.values():
        assert "RuntimeError: no such kernel in test_laws.py:" in verdict.fault or "(no such kernel)" in verdict.fault
