"""The gated scan: a linear scan whose gates are made where they are needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.kernels.gated_scan.recurrent import STEEPEST, bounded_root

EVERY = ["recurrent", "chunked", "fused"]


def drawn(time: int = 23) -> dict[str, Any]:
    torch.manual_seed(0)
    x, r, i = (torch.randn(2, time, 3, dtype=torch.float64) for _ in "xri")
    return {"x": x, "r": r, "i": i, "rate": torch.randn(3, dtype=torch.float64)}


def parts(inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """(a, what a token that comes whole brings)"""
    a = torch.exp(-8 * torch.sigmoid(inputs["r"]) * softplus(inputs["rate"]))
    return a, torch.sigmoid(inputs["i"]) * inputs["x"]


@pytest.mark.parametrize("name", ["recurrent", "chunked"])
@pytest.mark.parametrize("begun", [False, True])
def test_it_is_the_linear_scan_of_what_gates_let_in(name: str, begun: bool) -> None:
    inputs = drawn()
    (a, taken), first = parts(inputs), torch.randn(2, 3, dtype=torch.float64) if begun else None
    let_in = torch.sqrt(1 - a**2)
    if not begun:
        let_in[:, 0] = 1
    expected = kernels.linear_scan(let_in * taken, log_a=a.log(), initial_state=first, return_state=True)
    found = kernels.gated_scan(**inputs, initial_state=first, return_state=True, implementation=name)
    for x, y in zip(found, expected, strict=True):
        assert_close(x, y)


def test_the_root_is_exact_and_never_steep() -> None:
    x = torch.tensor([0.0, 1e-12, 1e-6, 0.25, 1.0], dtype=torch.float64, requires_grad=True)
    root = bounded_root(x)
    assert torch.equal(root, x.sqrt())
    root.sum().backward()
    assert_close(x.grad, torch.tensor([STEEPEST, STEEPEST, STEEPEST / 2, 1.0, 0.5], dtype=torch.float64))


@pytest.mark.parametrize("name", EVERY)
def test_a_channel_that_keeps_all_still_learns_to_let_go(name: str) -> None:
    """At a = 1 the root has no slope: the bound gives it one."""
    r = torch.full((1, 4, 2), -40.0, requires_grad=True)
    x, rate = torch.ones(1, 4, 2), torch.tensor([-30.0, 3.0])
    h, _ = kernels.gated_scan(x, r=r, i=x, rate=rate, initial_state=torch.ones(1, 2), implementation=name)
    assert_close(h, torch.ones(1, 4, 2))
    (slope,) = torch.autograd.grad(h.sum(), r)
    assert slope.isfinite().all()
    assert (slope[..., 1] > 0).all()


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("rate", [-12.0, -3.0, 4.0, 30.0])
@pytest.mark.parametrize("gate", [-12.0, 0.0, 12.0])
def test_digits_of_slow_and_of_fast_channels_are_kept(name: str, rate: float, gate: float) -> None:
    inputs = drawn(6) | {"r": torch.full((2, 6, 3), gate), "rate": torch.full((3,), rate)}
    inputs["x"] = inputs["x"].abs()  # no sum cancels
    single = {key: x.float() for key, x in inputs.items()}
    exact = {key: x.double() for key, x in single.items()}
    first = torch.ones(2, 3)
    h, _ = kernels.gated_scan(**single, initial_state=0 * first, implementation=name)
    expected, _ = kernels.gated_scan(**exact, initial_state=0 * first.double(), implementation="recurrent")
    assert_close(h.double(), expected, rtol=5e-6, atol=0)


def test_before_the_first_token_there_is_no_state() -> None:
    empty = {key: x[:, :0] if x.ndim == 3 else x for key, x in drawn().items()}
    assert kernels.gated_scan(**empty, return_state=True)[1] is None


def test_inputs_that_do_not_fit_are_told() -> None:
    inputs = drawn()
    with pytest.raises(ValueError, match=r"gated_scan: r has shape \[2, 23, 1\], must be \[2, 23, 3\]"):
        kernels.gated_scan(**inputs | {"r": inputs["r"][..., :1]})
    with pytest.raises(ValueError, match=r"gated_scan: rate has shape \[1\], must be \[3\]"):
        kernels.gated_scan(**inputs | {"rate": inputs["rate"][:1]})
    with pytest.raises(ValueError, match=r"gated_scan: initial_state has shape \[3\], must be \[2, 3\]"):
        kernels.gated_scan(**inputs, initial_state=inputs["x"][0, 0])
    with pytest.raises(ValueError, match=r"gated_scan: x must be \[batch, time, channels \.\.\.\]"):
        kernels.gated_scan(**inputs | {"x": inputs["x"][0]})
