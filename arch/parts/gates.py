"""Data-dependent gates: the share of the state that is kept (always as log decay <= 0), and the strength of a write.

B batch, T time, D model width, H heads, C channels, K key width
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch.kernels.select import fuses
from recallmap.arch.parts.precision import widen

RETENTION = 0.98  # of a token, before training; no source fixes it, and the 0.5 of a zero bias forgets within a token
STEPS = (1e-3, 1e-1)  # of time, before training
LEAST_BOUNDED = -5.0  # log decay of a gate that is bounded, so that 16 tokens fade by no more than fp32 can tell
WIDEST_SIGNED = 6.0  # of a signed decay's bias, before training: it keeps 0.995 of a token
LEAST_LOG_DECAY = -30.0  # erases to 1e-13; lower would absorb the decays that a chunk sums up after it


def inverse_softplus(x: Tensor) -> Tensor:
    """The inverse of softplus, for x > 0."""
    return x + torch.log(-torch.expm1(-x))


def _bias_of_steps(*shape: int) -> Tensor:
    """Biases whose softplus is log-uniform in STEPS."""
    return inverse_softplus(torch.empty(shape).uniform_(math.log(STEPS[0]), math.log(STEPS[1])).exp())


class LinearGate(nn.Module, ABC):
    """A gate that is a function of one linear map of its input."""

    linear: nn.Linear

    def forward(self, x_BTD: Tensor) -> Any:
        return self.of(widen(self.linear(x_BTD)))

    @abstractmethod
    def of(self, raw_BTH: Tensor) -> Any:
        """The gate where the map gives `raw`, in fp32 at least."""


def gates_of(x_BTD: Tensor, *gates: LinearGate) -> tuple[Any, ...]:
    """What each gate gives for x. On a GPU, and not under the compiler, their maps are one product: x is read once, and written
    once backward."""
    if not fuses(x_BTD):
        return tuple(gate(x_BTD) for gate in gates)
    maps = [gate.linear for gate in gates]
    raw = F.linear(x_BTD, torch.cat([own.weight for own in maps])).split([own.out_features for own in maps], dim=-1)
    wide = (widen(part) if own.bias is None else widen(part) + own.bias for own, part in zip(maps, raw, strict=True))
    return tuple(gate.of(part) for gate, part in zip(gates, wide, strict=True))


class WriteStrength(LinearGate):
    """beta = most * sigmoid(x W + b): [B, T, D] -> [B, T, H] in (0, most)."""

    @staticmethod
    def count(width: int, heads: int, *, bias: bool) -> int:
        """Its parameters."""
        return (width + bias) * heads

    def __init__(self, width: int, heads: int, *, bias: bool, most: float = 1.0) -> None:
        super().__init__()
        self.most = most
        self.linear = nn.Linear(width, heads, bias=bias)
        if bias:
            nn.init.zeros_(self.linear.bias)

    def of(self, raw_BTH: Tensor) -> Tensor:
        return self.most * torch.sigmoid(raw_BTH)


class SigmoidDecay(LinearGate):
    """log decay = log sigmoid(x W + b): [B, T, D] -> [B, T, H] (Mesa, and MesaNet's baselines; FoX).

    first  the share that a token keeps before training
    """

    @staticmethod
    def count(width: int, heads: int) -> int:
        """Its parameters."""
        return (width + 1) * heads

    def __init__(self, width: int, heads: int, *, first: float = RETENTION) -> None:
        super().__init__()
        self.linear = nn.Linear(width, heads)
        nn.init.constant_(self.linear.bias, math.log(first / (1 - first)))

    def of(self, raw_BTH: Tensor) -> Tensor:
        return F.logsigmoid(raw_BTH).clamp(min=LEAST_LOG_DECAY)


class SignedDecay(LinearGate):
    """decay = tanh((x W + b) / 2) in (-1, 1), as its log size and its sign +1 or -1: [B, T, D] -> [B, T, H] each.

    A negative decay turns the whole memory over, which counts parity.
    """

    @staticmethod
    def count(width: int, heads: int) -> int:
        """Its parameters."""
        return (width + 1) * heads

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, heads)
        nn.init.zeros_(
            self.linear.bias
        )  # from RETENTION no token turns over: the way leads through 0, where all is lost

    def of(self, raw_BTH: Tensor) -> tuple[Tensor, Tensor]:
        return _size_and_sign(raw_BTH)


class LowRankDecay(nn.Module):
    """log decay = log sigmoid(x W_1 W_2 + b) / temperature: [B, T, D] -> [B, T, C] (GLA, Yang et al. 2024)."""

    @staticmethod
    def count(width: int, channels: int, *, rank: int) -> int:
        """Its parameters."""
        return width * rank + (rank + 1) * channels

    def __init__(self, width: int, channels: int, *, rank: int = 16, temperature: float = 16.0) -> None:
        super().__init__()
        self.temperature = temperature
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, channels)

    def forward(self, x_BTD: Tensor) -> Tensor:
        log_decay_BTC = F.logsigmoid(widen(self.up(self.down(x_BTD)))) / self.temperature
        return log_decay_BTC.clamp(min=LEAST_LOG_DECAY)


class SoftplusDecay(LinearGate):
    """step = softplus(x W + b), log decay = -exp(log_rate) * step: [B, T, D] -> [B, T, H] (Mamba-2, Gated DeltaNet).

    First values: exp(log_rate) uniform in `rates`, softplus(b) log-uniform in [1e-3, 1e-1].
    """

    @staticmethod
    def count(width: int, heads: int) -> int:
        """Its parameters."""
        return (width + 2) * heads

    def __init__(self, width: int, heads: int, *, rates: tuple[float, float]) -> None:
        super().__init__()
        self.linear = nn.Linear(width, heads, bias=False)
        self.bias = nn.Parameter(_bias_of_steps(heads))
        self.log_rate = nn.Parameter(torch.empty(heads).uniform_(*rates).log())

    def of(self, raw_BTH: Tensor) -> Tensor:
        return self.fade(F.softplus(raw_BTH + self.bias))

    def step(self, x_BTD: Tensor) -> Tensor:
        return F.softplus(widen(self.linear(x_BTD)) + self.bias)

    def fade(self, step_BTH: Tensor) -> Tensor:
        """The log decay over a step."""
        return (-self.log_rate.exp() * step_BTH).clamp(min=LEAST_LOG_DECAY)


class ChannelDecay(nn.Module):
    """A decay by key channel, of z = x W_1 W_2 + b, as its log size and, for "signed", its sign +1 or -1: [B, T, D] ->
    [B, T, H, K] each, None for a decay without signs (Kimi Linear, 2510.26692; signed: 2609.24797).

    softplus  log decay = -exp(log_rate) softplus(z); exp(log_rate) begins uniform in (1, 16), softplus(b) log-uniform in
              [1e-3, 1e-1]
    bounded   log decay = -5 sigmoid(exp(log_rate) z); log_rate begins at 0, b as above
    signed    decay = 2 sigmoid(z) - 1. A sign has no gradient. No source fixes b, which begins uniform in (-6, 6): channels
              that keep and that turn over, and some that can become either
    """

    @staticmethod
    def count(width: int, heads: int, key_dim: int, *, rank: int, form: str) -> int:
        """Its parameters."""
        return rank * (width + heads * key_dim) + heads * key_dim + (0 if form == "signed" else heads)

    def __init__(
        self, width: int, heads: int, key_dim: int, *, rank: int, form: Literal["softplus", "bounded", "signed"]
    ) -> None:
        super().__init__()
        self.form = form
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, heads * key_dim, bias=False)
        shape = heads, key_dim
        if form == "signed":
            self.bias = nn.Parameter(torch.empty(shape).uniform_(-WIDEST_SIGNED, WIDEST_SIGNED))
        else:
            self.bias = nn.Parameter(_bias_of_steps(*shape))
        if form != "signed":
            rate = torch.empty(heads, 1).uniform_(1.0, 16.0).log()
            self.log_rate = nn.Parameter(rate if form == "softplus" else torch.zeros(heads, 1))

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Tensor | None]:
        z_BTHK = widen(self.up(self.down(x_BTD))).unflatten(-1, self.bias.shape) + self.bias
        if self.form == "signed":
            return _size_and_sign(z_BTHK)
        if self.form == "bounded":
            return LEAST_BOUNDED * torch.sigmoid(self.log_rate.exp() * z_BTHK), None
        return (-self.log_rate.exp() * F.softplus(z_BTHK)).clamp(min=LEAST_LOG_DECAY), None


def _size_and_sign(raw: Tensor) -> tuple[Tensor, Tensor]:
    """The log size and the sign of tanh(raw / 2) = 2 sigmoid(raw) - 1."""
    size = torch.tanh(raw / 2).abs().clamp(min=math.exp(LEAST_LOG_DECAY))  # log 0 would have no gradient
    return size.log(), 1 - 2 * (raw < 0).to(raw.dtype)
