"""Log-linear attention: levels above a tile of the kernels, and what a state holds as tokens are counted on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recallmap.arch.kernels import LogLinearState, log_linear
from recallmap.arch.kernels.benchmark.tolerance import error, tolerance

LEVELS = 8  # the last one is 128 tokens back, and more; a tile has 32


def run(implementation: str, position: int, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    """Outputs, buckets and gradients of 70 tokens behind `position` of them, where all buckets are full."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 70, 1, 4, generator=generator).to(device, dtype).requires_grad_() for _ in range(3))
    levels = torch.rand(1, 70, 1, LEVELS, generator=generator).to(device, dtype).requires_grad_()
    held = torch.randn(1, 1, LEVELS - 1, 4, 4, generator=generator).to(device, dtype).requires_grad_()
    begin = LogLinearState(held, position)
    o, state = log_linear(q, k, v, levels=levels, initial_state=begin, return_state=True, implementation=implementation)
    assert state is not None
    assert state.time == position + 70
    total = sum((x * torch.linspace(-1, 1, x.numel(), device=device).view(x.shape)).sum() for x in (o, state.buckets))
    return [x.cpu() for x in (o, state.buckets, *torch.autograd.grad(total, (q, k, v, levels, held)))]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("position", [0, 93])
def test_tiles_are_as_many_levels_apart_as_their_tokens(position: int, device: str) -> None:
    fused, definition = run("fused", position, torch.float32, device), run("recurrent", position, torch.float64)
    for x, y in zip(fused, definition, strict=True):
        assert error(x, y, (0,)) <= tolerance("log_linear", torch.float32)
