"""The norm of every head and its gate, all tokens at once: one kernel when compiled."""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.norm_gate.recurrent import shaped


def chunked(
    x: Tensor, *, weight: Tensor, gate: Tensor | None, activation: str, eps: float, output: torch.dtype
) -> Tensor:
    """The whole sequence."""
    return shaped(x, weight, gate, activation, eps, output)
