"""A causal convolution of a few taps, every channel by itself, with activation and norm (see `arch.kernels.short_conv`).

z_t = sum_{i=0}^{taps-1} w_i * x_{t-i} (+ b)

B batch, T time, C channels
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recallmap.arch.kernels.short_conv import Activation, short_conv


class ShortConv(nn.Module):
    """A convolution x [B, T, C] -> y [B, T, C]. Its state is its last taps - 1 inputs, [B, taps - 1, C], zero before the
    first token. weight[:, i] belongs to the input i tokens ago."""

    def __init__(self, channels: int, taps: int, *, bias: bool = False) -> None:
        super().__init__()
        bound = taps**-0.5
        self.weight = nn.Parameter(torch.empty(channels, taps).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if bias else None

    def forward(
        self,
        x_BTC: Tensor,
        cache: Tensor | None = None,
        *,
        activation: Activation = "identity",
        unit: int | None = None,
        first: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Convolve the channels from `first` on, as many as x has; with `unit`, scale every so many of them to length 1."""
        channels = x_BTC.shape[-1]
        heads, own = channels // (unit or channels), slice(first, first + channels)
        y_BTHK, cache_BPHK = short_conv(
            x_BTC.unflatten(-1, (heads, -1)),
            weight=self.weight[own].unflatten(0, (heads, -1)),
            bias=None if self.bias is None else self.bias[own].unflatten(0, (heads, -1)),
            activation=activation,
            unit=unit is not None,
            initial_state=None if cache is None else cache.unflatten(-1, (heads, -1)),
            return_state=True,
        )
        assert cache_BPHK is not None
        return y_BTHK.flatten(-2), cache_BPHK.flatten(-2)
