"""Kinds from outside are held to the laws before they train."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from recallmap.arch import block, laws
from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.mixers.linear_attention import LinearAttention
from recallmap.arch.mixers.mixer import MixerModule, MixerSpec, State, StateSize
from recallmap.arch.mlp import MlpSpec, SwiGLU
from recallmap.results.ledger import Ledger
from recallmap.search import codec
from recallmap.search.documents import type_hints
from recallmap.search.documents.nodes import SpecError
from recallmap.search.engines import inline
from recallmap.search.training import foreign
from recallmap.search.trial import Data, Training, TrialSpec, run_trial
from recallmap.synth.tasks.parity import Parity

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Shift(MixerSpec):
    """Adds the token before; the fields say what is wrong with it."""

    kind: Literal["shift"] = "shift"
    declares: int | None = None  # floats; None: as many as it carries
    sees: int = 0  # tokens ahead
    gate: float = 1.0  # of what is ahead, as it begins
    hides: bool = False  # the token before is kept in the module
    counts: bool = False  # outputs are divided by the number of tokens
    carries: bool = True
    looks_back: bool = True

    def check(self, width: int) -> None:
        return

    def build(self, width: int) -> MixerModule:
        return _Shift(self, width)

    def state_size(self, width: int, length: int) -> StateSize:
        return StateSize(width if self.declares is None else self.declares)

    def parameters(self, width: int) -> int:
        return width * width

    def flops(self, width: int, length: int) -> float:
        return 2.0 * width * width


class _Shift(MixerModule):
    def __init__(self, spec: Shift, width: int) -> None:
        super().__init__()
        self.spec, self.out = spec, nn.Linear(width, width)
        self.gate = nn.Parameter(torch.tensor(spec.gate))
        self.kept: Tensor | None = None

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        first = torch.zeros_like(x_BTD[:, :1]) if state is None else state
        if self.spec.hides:
            first = self.kept if state is not None and self.kept is not None else torch.zeros_like(x_BTD[:, :1])
            self.kept = x_BTD[:, -1:].detach()
        y_BTD = x_BTD + torch.cat([first, x_BTD[:, :-1]], 1) if self.spec.looks_back else x_BTD
        if self.spec.sees:
            ahead_BTD = torch.cat([x_BTD[:, self.spec.sees :], torch.zeros_like(x_BTD[:, : self.spec.sees])], 1)
            y_BTD = y_BTD + self.gate * ahead_BTD
        if self.spec.counts:
            y_BTD = y_BTD / x_BTD.shape[1]
        return self.out(y_BTD), x_BTD[:, -1:] if self.spec.carries else None


@dataclass(frozen=True, kw_only=True)
class Average(MlpSpec):
    """An mlp that mixes tokens, the later ones too."""

    kind: Literal["average"] = "average"

    def build(self, width: int) -> nn.Module:
        return _Average()

    def flops(self, width: int) -> float:
        return float(width)


class _Average(nn.Module):
    def forward(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.mean(1, keepdim=True).expand_as(x_BTD)


def trial(mixer: Any, mlp: Any = None) -> TrialSpec:
    return TrialSpec(
        task=Parity(length=16),
        arch=BackboneSpec(
            name="mine", width=8, stack=(Block(mixer=LinearAttention(heads=2)), Block(mixer=mixer, mlp=mlp))
        ),
        training=Training(steps=2, batch=4, evaluations=1),
        data=Data(validation=8, test=8),
    )


def test_an_honest_kind_from_outside_trains() -> None:
    record = run_trial(trial(Shift()))
    assert record.status == "done"
    assert record.state_floats == 8 + LinearAttention(heads=2).state_size(8, 16).total


def test_a_kind_that_looks_at_no_other_token_may_declare_nothing() -> None:
    foreign.check([trial(Shift(declares=0, carries=False, looks_back=False))], CPU)


@pytest.mark.parametrize(
    ("mixer", "said"),
    [
        (
            Shift(sees=1),
            "causality: of 3 tokens, output 0 .* when those after 0 change; expected outputs 0 to 0 as they",
        ),
        (Shift(sees=5), "causality: of 7 tokens, output 0 .* when those after 0 change"),
        (Shift(sees=1, gate=0.0), "causality: of 3 tokens, output 0 "),
        (Shift(sees=12), "causality: of 15 tokens, output 0 "),
        (Shift(counts=True), "causality: of 3 tokens, output 0 .* when those after 0 are left out"),
        (
            Shift(declares=0, carries=False),
            "state: it declares a state of 0 floats, but of 3 tokens, output 1 .* depends on those before",
        ),
        (Shift(declares=0), "state: after 1 token it declares a state of 0 floats and holds 8; expected as many"),
        (Shift(declares=7), "state: after 1 token it declares a state of 7 floats and holds 8; expected as many"),
        (Shift(hides=True), "state: of 3 tokens read in 3 parts, output 1 .* expected those of the whole"),
    ],
    ids=[
        "next",
        "five ahead",
        "behind a closed gate",
        "far ahead",
        "length",
        "0",
        "0 and carried",
        "too few",
        "hidden",
    ],
)
def test_a_kind_that_breaks_a_law_is_refused_with_the_smallest_case(mixer: Shift, said: str) -> None:
    with pytest.raises(
        SpecError, match=rf"^architecture mine: block 1 \(shift\): breaks the law of .*{said}"
    ) as refused:
        run_trial(trial(mixer))
    assert str(refused.value).endswith("it does not train and no record is made")


def test_an_mlp_from_outside_may_not_mix_tokens() -> None:
    with pytest.raises(SpecError, match=r"block 1 \(average\): breaks the law of causality"):
        run_trial(trial(LinearAttention(heads=2), Average()))


def test_a_kind_from_outside_that_cannot_be_run_is_refused_with_its_own_words() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Broken(Shift):
        def build(self, width: int) -> MixerModule:
            raise RuntimeError("no such kernel here")

    with pytest.raises(SpecError, match=r"RuntimeError: no such kernel here in test_foreign\.py:\d+; expected outputs"):
        run_trial(trial(Broken()))


def test_all_that_is_refused_is_said_at_once() -> None:
    both = [trial(Shift(sees=1)), trial(Shift(declares=0)), trial(Shift())]
    named = [replace(t, arch=replace(t.arch, name=name)) for t, name in zip(both, "abc", strict=True)]
    with pytest.raises(SpecError) as refused:
        foreign.check(named, CPU)
    assert [f.place.source for f in refused.value.faults] == ["architecture a", "architecture b"]


def test_a_kind_from_outside_is_run_once_and_ours_never(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    for law in ("is_causal", "counted_state"):
        monkeypatch.setattr(laws, law, lambda *args, **kept: runs.append(args) or laws.Verdict("any"))
    own = trial(Shift(gate=0.5))
    foreign.check([own, replace(own, seed=1), replace(own, training=replace(own.training, lr=1e-2))], CPU)
    foreign.check([own], CPU)
    assert len(runs) == 4  # two laws in two precisions
    foreign.check([trial(LinearAttention(heads=2), SwiGLU())], CPU)
    assert len(runs) == 4


def test_the_check_leaves_random_numbers_as_they_were() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    foreign.check([trial(Shift(gate=0.25))], CPU)
    assert torch.equal(torch.rand(2), expected)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`shift` stands among the kinds, as one adds it from outside today."""
    monkeypatch.setattr(block, "Mixer", block.Mixer | Shift)
    type_hints.hints_of.cache_clear()
    yield
    monkeypatch.undo()
    type_hints.hints_of.cache_clear()


@pytest.mark.usefixtures("registered")
def test_a_study_with_a_kind_that_breaks_a_law_trains_nothing(tmp_path: Path) -> None:
    base = codec.plain(trial(Shift()))
    peeking = codec.plain(trial(Shift(sees=1)).arch) | {"name": "peeking"}
    study = codec.read_study(
        {"name": "two", "trial": base, "space": {"kind": "grid", "axes": {"trial.arch": [base["arch"], peeking]}}}
    )
    with pytest.raises(SpecError, match=r"architecture peeking: block 1 \(shift\): breaks the law of causality"):
        inline.run(study, tmp_path / "two.sqlite", device="cpu")
    with Ledger(tmp_path / "two.sqlite") as ledger:
        assert not ledger.keys()


# Cohorts. -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Odd(Shift):
    """What vmap does not take, or takes otherwise."""

    drops: bool = False
    branches: bool = False

    def build(self, width: int) -> MixerModule:
        return _Odd(self, width)


class _Odd(_Shift):
    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        y_BTD, state = super().mix(x_BTD, state, return_state)
        if self.spec.drops:  # type: ignore[attr-defined]
            y_BTD = nn.functional.dropout(y_BTD, 0.5)
        if self.spec.branches and y_BTD.sum() > 0:  # type: ignore[attr-defined]
            y_BTD = 2 * y_BTD
        return y_BTD, state


def test_members_run_as_one_where_a_kind_from_outside_survives_vmap() -> None:
    assert foreign.why_alone([trial(Shift()), trial(LinearAttention(heads=2))], CPU) == ""


@pytest.mark.parametrize("mixer", [Odd(drops=True), Odd(branches=True)], ids=["random", "branch"])
def test_members_run_one_at_a_time_where_it_does_not_and_the_reason_is_said(mixer: Odd) -> None:
    why = foreign.why_alone([trial(LinearAttention(heads=2)), trial(mixer)], CPU)
    assert why.startswith("block 1 (shift) breaks the law of vmap = alone: it does not run under torch.vmap (")
    assert "\n" not in why
