"""The selective scan: every channel has a vector for a state, and steps of its own in time."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.kernels.benchmark.tolerance import tolerance

EVERY = ["recurrent", "chunked", "fused"]


def drawn(time: int = 23, *, groups: int = 1, rates: bool = True) -> dict[str, Any]:
    """Two heads of three channels, with four numbers each."""
    torch.manual_seed(0)
    q, k = (torch.randn(2, time, groups, 4, dtype=torch.float64) for _ in "qk")
    v, step = torch.randn(2, time, 2, 3, dtype=torch.float64), torch.rand(2, time, 2, 3, dtype=torch.float64)
    inputs = {"q": q, "k": k / k.norm(dim=-1, keepdim=True), "v": v, "step": step}
    return inputs | ({"rate": torch.rand(2, 3, 4, dtype=torch.float64)} if rates else {})


@pytest.mark.parametrize("name", ["recurrent", "chunked"])
@pytest.mark.parametrize("rates", [True, False])
def test_it_is_a_linear_scan_of_every_number_of_the_state(name: str, rates: bool) -> None:
    inputs = drawn(groups=2, rates=rates)
    q, k, v, step = (inputs[key] for key in ("q", "k", "v", "step"))
    log_a = -step[..., None] * inputs["rate"] if rates else torch.log(1 - step[..., None] * k[..., None, :] ** 2)
    first = torch.randn(2, 2, 3, 4, dtype=torch.float64)
    h, last = kernels.linear_scan(
        (step * v)[..., None] * k[..., None, :], log_a=log_a, initial_state=first, return_state=True
    )
    found = kernels.selective_scan(**inputs, initial_state=first, return_state=True, implementation=name)
    assert_close(found[0], (h * q[..., None, :]).sum(-1))
    assert_close(found[1], last)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("rates", [True, False])
def test_shared_keys_are_those_of_every_head(name: str, rates: bool) -> None:
    shared = {key: x.float() for key, x in drawn(9, rates=rates).items()}
    apart = shared | {key: shared[key].expand(-1, -1, 2, -1) for key in "qk"}
    assert_close(*(kernels.selective_scan(**x, implementation=name)[0] for x in (shared, apart)))


@pytest.mark.parametrize("name", EVERY)
def test_with_one_step_and_one_rate_a_head_it_is_gated_linear_attention(name: str) -> None:
    inputs = {key: x.float() for key, x in drawn(9).items()}
    step, rate = inputs["step"][..., :1], inputs["rate"][..., :1, :1]
    o, _ = kernels.selective_scan(
        **inputs | {"step": step.expand(-1, -1, -1, 3), "rate": rate.expand(-1, 3, 4).contiguous()}, implementation=name
    )
    step = step.squeeze(-1)
    expected, _ = kernels.gated_linear(
        inputs["q"], inputs["k"], inputs["v"], log_decay=-step * rate.flatten(), beta=step, scale=1.0
    )
    assert_close(o, expected)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("rates", [True, False])
def test_an_erased_past_leaves_nothing_and_breaks_nothing(name: str, rates: bool) -> None:
    """Steps so long that decays are bounded, or keys so long that more than all would be erased."""
    inputs = {key: x.float() for key, x in drawn(20, rates=rates).items()}
    reset = torch.arange(20) == 11
    if rates:
        inputs["step"] = torch.where(reset[:, None, None], 1e4, inputs["step"])
    else:
        inputs["step"] = torch.where(reset[:, None, None], 1.0, inputs["step"])
        inputs["k"] = torch.where(reset[:, None, None], 2.0, inputs["k"])
    leaves = {key: x.requires_grad_() for key, x in inputs.items()}
    o, _ = kernels.selective_scan(**leaves, implementation=name)
    late = {key: x[:, 11:] if x.shape[1] == 20 else x for key, x in leaves.items()}
    alone, _ = kernels.selective_scan(**late, implementation=name)
    assert_close(o[:, 11:], alone, rtol=1e-4, atol=1e-4)
    slopes = torch.autograd.grad(o.sum(), list(leaves.values()))
    assert all(slope.isfinite().all() for slope in slopes)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("parts", "warps"), [(1, 1), (1, 4), (2, 1), (3, 4)])
@pytest.mark.parametrize("rates", [True, False])
@pytest.mark.parametrize("carried", [True, False], ids=["from a state to a state", "from nothing"])
def test_channels_of_a_program_go_back_part_by_part(
    rates: bool, parts: int, warps: int, carried: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty channels of forty numbers: parts that are whole, cut short, and beyond the last."""
    torch.manual_seed(0)
    fused = import_module("recallmap.arch.kernels.selective_scan.fused")
    cut = fused._tiles_for(40, 20, 2)._replace(backward_channels=2 * warps, backward_parts=parts, backward_warps=warps)
    monkeypatch.setattr(fused, "_tiles_for", lambda *_: cut)
    q, k, first = torch.randn(2, 19, 1, 40), torch.randn(2, 19, 1, 40), torch.randn(2, 2, 10, 40)
    v, step = torch.randn(2, 19, 2, 10), torch.rand(2, 19, 2, 10)
    inputs = {"q": q, "k": k / k.norm(dim=-1, keepdim=True), "v": v, "step": step}
    inputs |= {"rate": torch.rand(2, 10, 40)} if rates else {}
    inputs |= {"initial_state": first} if carried else {}
    found, expected = (_slopes(inputs, carried, device, name) for name in ("fused", "recurrent"))
    for of, x, y in zip(["o", *inputs], found, expected, strict=True):
        allowed = tolerance("selective_scan", torch.float32, of="output" if of == "o" else "gradient")
        assert (x.double() - y).norm() <= allowed * y.norm(), of


def _slopes(inputs: dict[str, torch.Tensor], carried: bool, device: str, name: str) -> list[torch.Tensor]:
    """Outputs, and derivatives by all inputs; those of `recurrent` in fp64."""
    dtype = torch.float64 if name == "recurrent" else torch.float32
    leaves = {key: x.to(device, dtype).requires_grad_() for key, x in inputs.items()}
    o, last = kernels.selective_scan(**leaves, return_state=carried, implementation=name)
    total = (o * torch.linspace(-1, 1, o.shape[1], device=device, dtype=dtype)[:, None, None]).sum()
    if carried:
        total = total + last.square().sum()
    return [o.detach(), *torch.autograd.grad(total, list(leaves.values()))]


def test_inputs_that_do_not_fit_are_told() -> None:
    inputs = drawn()
    with pytest.raises(ValueError, match=r"selective_scan: step has shape \[2, 23, 2\], must be \[2, 23, 2, 3\]"):
        kernels.selective_scan(**inputs | {"step": inputs["step"][..., 0]})
    with pytest.raises(ValueError, match=r"selective_scan: rate has shape \[2, 3\], must be \[2, 3, 4\]"):
        kernels.selective_scan(**inputs | {"rate": inputs["rate"][..., 0]})
    with pytest.raises(
        ValueError, match=r"selective_scan: initial_state has shape \[2, 3, 4\], must be \[2, 2, 3, 4\]"
    ):
        kernels.selective_scan(**inputs, initial_state=inputs["rate"])
