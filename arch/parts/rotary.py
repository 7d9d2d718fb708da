"""Rotary positions, Llama's halves: channel i turns with channel i + K/2 (Su et al. 2021).

B batch, T time, H heads, K key width
"""

from __future__ import annotations

import torch
from torch import Tensor

from arch.parts.precision import widen


def rotate(x_BTHK: Tensor, position_T: Tensor, base: float = 10_000.0) -> Tensor:
    """x with its channel pairs turned by position * base^(-2i/K)."""
    wide = widen(x_BTHK)
    half = wide.shape[-1] // 2
    power = torch.arange(half, device=wide.device, dtype=wide.dtype) / half
    angle_T1K = (position_T.to(wide.dtype)[:, None] * base**-power)[:, None]
    cos, sin = angle_T1K.cos(), angle_T1K.sin()
    first, second = wide.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x_BTHK.dtype)
