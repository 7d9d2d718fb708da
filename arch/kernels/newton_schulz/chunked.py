"""Newton-Schulz whose backward pass goes through the steps again, for what they leave is thirty times as large as x."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from arch.kernels.inputs import working_dtype
from arch.kernels.newton_schulz.recurrent import orthogonal


def chunked(x: Tensor, *, steps: int) -> Tensor:
    """All matrices [..., rows, columns]."""
    result: Tensor = _Recomputed.apply(x.to(working_dtype(x)), steps)
    return result.to(x.dtype)


class _Recomputed(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, steps: int) -> Tensor:
        return orthogonal(x, steps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        x, ctx.steps = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        pull = torch.func.vjp(lambda given: orthogonal(given, ctx.steps), x)[1]
        (signal,) = pull(*signals)
        return signal, None
