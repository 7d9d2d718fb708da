"""Gradient checkpointing: recompute in backward, because intermediates are many times larger than inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def recomputed(function: Callable[[Tensor, int], Tensor], x: Tensor, steps: int) -> Tensor:
    """function(x, steps), of which x alone is kept."""
    result: Tensor = _Recomputed.apply(x, function, steps)
    return result


class _Recomputed(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, function: Callable[[Tensor, int], Tensor], steps: int) -> Tensor:
        return function(x, steps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Callable[[Tensor, int], Tensor], int], output: Tensor) -> None:
        x, ctx.function, ctx.steps = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        pull = torch.func.vjp(lambda given: ctx.function(given, ctx.steps), x)[1]
        (signal,) = pull(*signals)
        return signal, None, None
