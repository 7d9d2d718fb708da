"""Rotary positions, token by token: what every other implementation must agree with.

y_i = x_i cos(a_i) - x_(i+K/2) sin(a_i),   y_(i+K/2) = x_(i+K/2) cos(a_i) + x_i sin(a_i),   i < K/2
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import working_dtype
from recallmap.arch.kernels.recurrence.token_loop import loop


def step(state: tuple[()] | None, x: Tensor, *, angle: Tensor) -> tuple[Tensor, tuple[()]]:
    """One token x [B, H, K] and its angle [B, H or 1, K/2]: y [B, H, K] in the dtype of x, and the state that there is not."""
    return turned(x, angle), ()


def recurrent(x: Tensor, *, angle: Tensor, learned: bool) -> Tensor:
    """`step` over time."""
    y, _ = loop(step, (), {"x": x, "angle": angle.expand(len(x), -1, -1, -1)})
    return y


def turned(x: Tensor, angle: Tensor) -> Tensor:
    """y of x [..., H, K]."""
    first, second = x.to(working_dtype(x, angle)).chunk(2, dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
