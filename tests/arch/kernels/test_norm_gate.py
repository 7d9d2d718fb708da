"""The norm and the gate of an output: what they are, in which precision, and that they stay one piece in a compiled cohort."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch.kernels import select
from recallmap.arch.kernels.benchmark.tolerance import error, tolerance
from recallmap.arch.kernels.norm_gate import norm_gate
from recallmap.arch.parts.norm import RMSNorm

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
EVERY = select.implementations("norm_gate")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def results(x: Tensor, name: str, **dials: Any) -> list[Tensor]:
    """Outputs, and the gradients of a random function of them."""
    leaves = {"x": x} | {key: value for key, value in dials.items() if isinstance(value, Tensor)}
    leaves = {key: value.detach().requires_grad_() for key, value in leaves.items()}
    y, _ = norm_gate(**dials | leaves, implementation=name)
    signal = drawn(*y.shape, seed=9).bfloat16().to(y.device, y.dtype)
    return [x.cpu() for x in (y.detach(), *torch.autograd.grad(y, list(leaves.values()), signal))]


@pytest.mark.parametrize("name", ["recurrent", "chunked"])
def test_it_is_the_norm_of_every_head_times_the_gate(name: str) -> None:
    x, weight, gate = drawn(2, 5, 3, 4), drawn(3, 4, seed=1), drawn(2, 5, 3, 4, seed=2)
    norm = RMSNorm(3, 4)
    norm.weight = torch.nn.Parameter(weight)
    for activation, bent in (("silu", F.silu(gate)), ("sigmoid", gate.sigmoid())):
        found, _ = norm_gate(x, weight=weight, gate=gate, activation=activation, implementation=name)  # type: ignore[arg-type]
        assert_close(found, norm(x) * bent)
    assert_close(norm_gate(x, weight=weight, implementation=name)[0], norm(x))


@pytest.mark.parametrize("name", ["recurrent", "chunked"])
def test_one_set_of_weights_may_serve_all_heads(name: str) -> None:
    x, weight = drawn(2, 5, 3, 4), drawn(4, seed=1)
    expected = norm_gate(x, weight=weight.expand(3, 4), implementation=name)
    assert_close(norm_gate(x, weight=weight, implementation=name), expected)
    assert_close(norm_gate(x, weight=weight[None], implementation=name), expected)


@pytest.mark.parametrize("name", ["recurrent", "chunked"])
def test_nothing_is_rounded_but_the_result(name: str) -> None:
    x, weight, gate = drawn(2, 5, 3, 4).bfloat16(), drawn(3, 4, seed=1).float(), drawn(2, 5, 3, 4, seed=2).bfloat16()
    found, _ = norm_gate(x, weight=weight, gate=gate, implementation=name)
    wide, _ = norm_gate(x.float(), weight=weight, gate=gate.float(), implementation=name)
    assert torch.equal(found, wide.bfloat16())


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize(
    ("heads", "width"), [(1, 300), (3, 5), (9, 16), (2, 1)], ids=["one wide", "odd", "two blocks", "one channel"]
)
def test_fused_takes_all_heads(heads: int, width: int, device: str) -> None:
    """In 16 bits whatever came in 16 bits, and as it lies."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float16
    x, gate = (drawn(2, heads, 21, 2 * width, seed=s).to(dtype).transpose(1, 2)[..., :width] for s in (0, 1))
    weight = drawn(heads, width, seed=2).float()
    expected = results(x.double(), "recurrent", weight=weight.double(), gate=gate.double())
    found = results(x.to(device), "fused", weight=weight.to(device), gate=gate.to(device))
    for a, b, of in zip(found, expected, ("output", "gradient", "gate_gradient", "gradient"), strict=True):
        axes = (0, 2) if a.ndim == 4 else (0,)
        assert error(a, b, axes) <= tolerance("norm_gate", dtype, of=of)  # type: ignore[arg-type]


@pytest.mark.parametrize("pieces", [1, 3])
def test_fused_sums_pieces_of_a_sequence(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from recallmap.arch.kernels.norm_gate import fused

    monkeypatch.setattr(fused, "PROGRAMS", pieces)
    monkeypatch.setattr(fused, "BACKWARD_TILE", 64)
    x, weight = drawn(1, 37, 1, 16).float(), drawn(1, 16, seed=1).float()
    expected = results(x.double(), "recurrent", weight=weight.double())
    for a, b in zip(results(x, "fused", weight=weight), expected, strict=True):
        assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", ["chunked", "fused"])
def test_compiled_members_keep_their_gradients(name: str, gated: bool) -> None:
    stacked = [drawn(3, 2, 7, 2, 16), drawn(3, 2, 16, seed=1), drawn(3, 2, 7, 2, 16, seed=2)][: 2 + gated]
    stacked = [x.float().requires_grad_() for x in stacked]

    def member(x: Tensor, weight: Tensor, gate: Tensor | None = None) -> Tensor:
        return norm_gate(x, weight=weight, gate=gate, implementation=name)[0]

    def cohort(*xs: Tensor) -> Tensor:
        return torch.vmap(member)(*xs)

    expected = cohort(*stacked)
    found = torch.compile(cohort, backend="aot_eager", fullgraph=True)(*stacked)
    assert_close(found, expected)
    for x, y in zip(*(torch.autograd.grad(o.sin().sum(), stacked) for o in (found, expected)), strict=True):
        assert_close(x, y)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"x": torch.zeros(2, 3, 4)}, r"x must be \[batch, time, heads, width\], got shape \[2, 3, 4\]"),
        ({"weight": torch.zeros(2, 4)}, r"weight has shape \[2, 4\], must be \[3, 4\] or \[1, 4\] or \[4\]"),
        ({"gate": torch.zeros(1, 2, 3)}, r"gate has shape \[1, 2, 3\], must be \[1, 2, 3, 4\]"),
        ({"activation": "relu"}, "activation must be one of silu, sigmoid; got 'relu'"),
        (
            {"x": torch.zeros(1, 1, 1, 2000), "weight": torch.zeros(2000), "implementation": "fused"},
            "holds heads up to",
        ),
    ],
)
def test_what_cannot_be_is_told(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        norm_gate(**{"x": torch.zeros(1, 2, 3, 4), "weight": torch.zeros(3, 4)} | wrong)
