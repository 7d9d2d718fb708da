"""A causal convolution of a few taps, every channel by itself.

y_t = sum_{i=0}^{taps-1} w_i * x_{t-i} (+ b)

B batch, T time, C channels
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ShortConv(nn.Module):
    """x [B, T, C] -> y [B, T, C]. What it carries on is its last taps - 1 inputs, [B, taps - 1, C]; before the first
    token they are zero. weight[:, i] belongs to the input i tokens ago."""

    def __init__(self, channels: int, taps: int, *, bias: bool = False) -> None:
        super().__init__()
        bound = taps**-0.5
        self.weight = nn.Parameter(torch.empty(channels, taps).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if bias else None

    def forward(self, x_BTC: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        length, taps = x_BTC.shape[1], self.weight.shape[-1]
        past = taps - 1
        seen = F.pad(x_BTC, (0, 0, past, 0)) if cache is None else torch.cat([cache.to(x_BTC.dtype), x_BTC], dim=1)
        # A sum of shifted products: as fast as a grouped convolution under vmap, and one kernel when compiled.
        y_BTC = seen[:, past:] * self.weight[:, 0]
        for ago in range(1, taps):
            y_BTC = y_BTC + seen[:, past - ago : past - ago + length] * self.weight[:, ago]
        if self.bias is not None:
            y_BTC = y_BTC + self.bias
        return y_BTC.to(x_BTC.dtype), seen[:, length:]
