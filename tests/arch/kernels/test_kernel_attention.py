"""Kernel attention on chip: the memory that it serves, and those that it leaves to others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.kernels.benchmark.tolerance import error, tolerance
from recallmap.arch.kernels.test_time.implicit_features import Anchors, Exponential, Polynomial


def drawn(time: int = 40, window: int = 1) -> dict[str, Any]:
    torch.manual_seed(0)
    q, k = (normalize(torch.randn(1, time, 2, 6), dim=-1) for _ in "qk")
    eta, alpha = torch.rand(1, time, 2), 1 - 0.1 * torch.rand(1, time, 2)
    inputs = {"q": q, "k": k, "v": torch.randn(1, time, 2, 5), "alpha": alpha, "eta": eta}
    return inputs | {"gamma": torch.rand(1, time, 2, window), "window": window}


def precise(inputs: dict[str, Any]) -> dict[str, Any]:
    return {key: x.double() if isinstance(x, Tensor) else x for key, x in inputs.items()}


def slopes(inputs: dict[str, Any], name: str, **more: Any) -> tuple[Tensor, ...]:
    leaves = {key: x.detach().requires_grad_() for key, x in inputs.items() if isinstance(x, Tensor)}
    o, _ = kernels.kernel_attention(**inputs | leaves, implementation=name, **more)
    return o, *torch.autograd.grad(o.sin().sum(), list(leaves.values()))


@pytest.mark.parametrize("window", [1, 3, 8])
@pytest.mark.parametrize("time", [2, 40])
def test_windows_of_every_length_are_the_recurrence(window: int, time: int) -> None:
    inputs = drawn(time, window)
    exact = precise(inputs)
    for x, y in zip(slopes(inputs, "fused"), slopes(exact, "recurrent"), strict=True):
        assert error(x, y, (0, 2)) <= tolerance("kernel_attention", torch.float32)


def test_what_is_forgotten_at_once_leaves_all_else_its_digits() -> None:
    inputs = drawn(90, 2)
    inputs["alpha"] = torch.where(torch.rand(1, 90, 2) < 0.3, 0.0, 1 - 1e-3 * inputs["alpha"])
    exact = precise(inputs)
    o, _ = kernels.kernel_attention(**inputs, implementation="fused")
    expected, _ = kernels.kernel_attention(**exact, implementation="recurrent")
    assert_close(o.double(), expected, rtol=1e-5, atol=1e-6)


def test_divided_by_its_weights_it_is_softmax_attention() -> None:
    q, k, v = (drawn()[key] for key in "qkv")
    o, _ = kernels.kernel_attention(q, k, v, kernel=Exponential(0.7), normalize=True, implementation="fused")
    assert_close(o, kernels.attention(q, k, v, scale=0.7)[0])


def test_it_goes_on_from_the_middle_of_a_window() -> None:
    inputs = drawn(30, 4)
    whole, last = kernels.kernel_attention(**inputs, implementation="recurrent", return_state=True)
    first: dict[str, Any] = {key: x[:, :2] if isinstance(x, Tensor) else x for key, x in inputs.items()}
    then: dict[str, Any] = {key: x[:, 2:] if isinstance(x, Tensor) else x for key, x in inputs.items()}
    _, state = kernels.kernel_attention(**first, implementation="fused", return_state=True)
    o, end = kernels.kernel_attention(**then, initial_state=state, implementation="fused", return_state=True)
    assert_close(o, whole[:, 2:], rtol=1e-4, atol=1e-5)
    assert end is not None
    assert last is not None
    assert_close(end.coefficients, last.coefficients)


def test_other_memories_are_refused() -> None:
    inputs = drawn()
    with pytest.raises(ValueError, match="'fused' knows the exponential kernel alone; use 'chunked' or 'auto'"):
        kernels.kernel_attention(**inputs, kernel=Polynomial(torch.ones(3)), implementation="fused")
    with pytest.raises(ValueError, match="'fused' sums up windows of at most 8 tokens, got 9"):
        kernels.kernel_attention(**drawn(window=9), implementation="fused")
    anchors = Anchors(torch.randn(2, 3, 6), torch.randn(2, 3, 4), (torch.randn(2, 4, 5),))
    with pytest.raises(ValueError, match="'fused' serves linear memories, without anchors"):
        kernels.kernel_attention(**inputs, anchors=anchors, implementation="fused")
