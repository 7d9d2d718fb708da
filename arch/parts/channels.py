"""The surroundings of a recurrence with a vector state per channel, as in Mamba: gate, convolution, and the maps from a
token's channels to its key, its query and its step.

    u = SiLU(conv(x W_u) + b);   [r, k, q] = u W;   step = r W_s + b;   y = W_o ((o + d * u) * SiLU(x W_g))

B batch, T time, D model width, C channels, N state width (of a channel)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch.parts.heads import check_at_least, check_expansion
from recallmap.arch.parts.precision import widen
from recallmap.arch.parts.short_conv import ShortConv


@dataclass(frozen=True, kw_only=True)
class Channels:
    """The common options of mixers with a vector state per channel.

    expand      channels over the model's width
    state_dim   N, the width of keys and queries, which all channels share
    step_rank   inner width of the low-rank map to the step; None: width / 16, rounded up
    short_conv  taps of the causal convolution; 0: none
    """

    expand: float = 2
    state_dim: int = 16
    step_rank: int | None = None
    short_conv: int = 4

    def __post_init__(self) -> None:
        check_at_least(1, state_dim=self.state_dim, step_rank=self.step_rank)
        check_at_least(0, short_conv=self.short_conv)
        check_expansion(expand=self.expand)

    def check(self, width: int) -> None:
        if self.channels(width) < 1:
            raise ValueError(f"expand {self.expand} leaves no channel of width {width}; take a larger one")

    def channels(self, width: int) -> int:
        """C in a model of `width`."""
        return round(self.expand * width)

    def rank(self, width: int) -> int:
        """The rank of the map to the step."""
        return self.step_rank or math.ceil(width / 16)

    def floats(self, width: int) -> int:
        """Floats that a state and the convolution carry."""
        return self.channels(width) * (self.state_dim + max(self.short_conv - 1, 0))

    def parameters_of_block(self, width: int) -> int:
        """Parameters of everything here and of the map back to the model's width."""
        channels, rank = self.channels(width), self.rank(width)
        conv = (self.short_conv + 1) * channels if self.short_conv else 0
        return 3 * width * channels + conv + channels * (2 * rank + 2 * self.state_dim) + 2 * channels

    def flops_of_block(self, width: int) -> float:
        """Operations per token: matrices, convolution, recurrence (9 an entry of the state) and skip."""
        channels, rank = self.channels(width), self.rank(width)
        matrices = 3 * width * channels + channels * (2 * rank + 2 * self.state_dim)
        return 2 * matrices + channels * (2 * self.short_conv + 9 * self.state_dim + 2)


class ChannelInputs(NamedTuple):
    """The inputs of the recurrence for a token, in float32 at least."""

    u: Tensor  # [B, T, C]
    k: Tensor  # [B, T, N]
    q: Tensor  # [B, T, N]
    step: Tensor  # [B, T, C], any number


class ChannelBlock(nn.Module):
    """The maps around the recurrence: `read` x [B, T, D] -> ChannelInputs, the gate [B, T, C], and the convolution's state;
    `write` o -> y."""

    def __init__(self, dials: Channels, width: int, *, bias: Tensor) -> None:
        """`bias` [C] is that of the step."""
        super().__init__()
        channels, rank = dials.channels(width), dials.rank(width)
        self.columns = [rank, dials.state_dim, dials.state_dim]
        self.linear = nn.Linear(width, 2 * channels, bias=False)
        self.conv = ShortConv(channels, dials.short_conv, bias=True) if dials.short_conv else None
        self.select = nn.Linear(channels, sum(self.columns), bias=False)
        self.step = nn.Linear(rank, channels, bias=False)
        self.step_bias = nn.Parameter(bias)
        self.skip = nn.Parameter(torch.ones(channels))

    def forward(self, x_BTD: Tensor, cache: Tensor | None) -> tuple[ChannelInputs, Tensor, Tensor | None]:
        u_BTC, gate_BTC = self.linear(x_BTD).chunk(2, dim=-1)
        if self.conv is None:
            u_BTC = F.silu(u_BTC)
        else:
            u_BTC, cache = self.conv(u_BTC, cache, activation="silu")
        r_BTR, k_BTN, q_BTN = self.select(u_BTC).split(self.columns, dim=-1)
        step_BTC = widen(self.step(r_BTR)) + self.step_bias
        return ChannelInputs(widen(u_BTC), widen(k_BTN), widen(q_BTN), step_BTC), gate_BTC, cache

    def finish(self, o_BTC: Tensor, u_BTC: Tensor, gate_BTC: Tensor) -> Tensor:
        """Skip and gate: y [B, T, C] before the map back to the model's width."""
        return (o_BTC + self.skip * u_BTC).to(gate_BTC.dtype) * F.silu(gate_BTC)
