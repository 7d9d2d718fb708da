"""Hawk: a gated linear recurrent unit, where every channel is one number that fades by gates of the token.

h_t = a_t h_{t-1} + sqrt(1 - a_t^2) i_t u_t,   a_t = exp(-8 r_t softplus(L)),   r_t, i_t = sigmoid(u_t W + b)
y = W_o (h * GeLU(x W_y + b)),   u = conv(x W_u + b)

B batch, T time, D model width, R channels of the recurrence
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.heads import HeadsState, check_at_least, check_expansion
from recallmap.arch.parts.precision import widen
from recallmap.arch.parts.short_conv import ShortConv

FIRST_DECAYS = (0.9, 0.999)  # of a channel under a gate of 1 / 8, before training


@dataclass(frozen=True, kw_only=True)
class Hawk(MixerSpec):
    """A gated linear recurrent unit.

    short_conv   taps of the causal convolution, the token's own included; 0: none
    expand       channels of the recurrence over the model's width (RecurrentGemma: 1)
    gate_blocks  the matrices of both gates are block-diagonal with that many blocks
    """

    kind: Literal["hawk"] = "hawk"
    expand: float = 1.25
    gate_blocks: int = 4
    short_conv: int = 4

    equation: ClassVar[str] = "h_t = a_t h_{t-1} + sqrt(1 - a_t^2) i_t u_t,  a_t = exp(-8 r_t softplus(L))"
    state_formula: ClassVar[str] = "R + (taps - 1) R,  R = expand D"
    source: ClassVar[str] = "De et al. 2024 (Griffin), eq. 1 to 4; expand 1.25: von Oswald et al. 2025"

    def __post_init__(self) -> None:
        check_at_least(1, gate_blocks=self.gate_blocks)
        check_at_least(0, short_conv=self.short_conv)
        check_expansion(expand=self.expand)

    def differs(self) -> tuple[str, ...]:
        wider = f"{self.expand:g} channels a channel of the model, as in MesaNet, theirs 1"
        return ("the GELU is exact, theirs its tanh form", *((wider,) if self.expand != 1 else ()))

    def check(self, width: int) -> None:
        if self.channels(width) < 1 or self.channels(width) % self.gate_blocks:
            raise ValueError(
                f"{self.gate_blocks} gate_blocks do not share out {self.channels(width)} channels "
                f"(expand {self.expand} times width {width}); change expand or gate_blocks"
            )

    def channels(self, width: int) -> int:
        """The number R of channels in a model of `width`."""
        return round(self.expand * width)

    def build(self, width: int) -> MixerModule:
        return _Hawk(self, width)

    def parameters(self, width: int) -> int:
        channels = self.channels(width)
        conv = (self.short_conv + 1) * channels if self.short_conv else 0
        unit = 2 * channels * (channels // self.gate_blocks) + 3 * channels
        return 2 * (width + 1) * channels + conv + unit + (channels + 1) * width

    def state_size(self, width: int, length: int) -> StateSize:
        return StateSize(self.channels(width) * (1 + max(self.short_conv - 1, 0)))

    def flops(self, width: int, length: int) -> float:
        channels = self.channels(width)
        gates = 4 * channels**2 / self.gate_blocks
        return 6 * width * channels + gates + (2 * self.short_conv + 12) * channels


class _Hawk(MixerModule):
    def __init__(self, spec: Hawk, width: int) -> None:
        super().__init__()
        channels = spec.channels(width)
        self.gate = nn.Linear(width, channels)
        self.linear = nn.Linear(width, channels)
        self.conv = ShortConv(channels, spec.short_conv, bias=True) if spec.short_conv else None
        self.unit = _GatedUnit(channels, spec.gate_blocks)
        self.out = nn.Linear(channels, width)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        conv, memory = state or HeadsState()
        u_BTR = self.linear(x_BTD)
        if self.conv is not None:
            u_BTR, conv = self.conv(u_BTR, conv)
        recurrence_BTR, entry_BTR = self.unit(u_BTR)
        h_BTR, memory = kernels.gated_scan(
            widen(u_BTR),
            r=recurrence_BTR,
            i=entry_BTR,
            rate=self.unit.rate,
            initial_state=memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(h_BTR.to(x_BTD.dtype) * F.gelu(self.gate(x_BTD))), HeadsState(conv, memory)


class _GatedUnit(nn.Module):
    """The gates: u [B, T, R] -> recurrence gate and entry gate before their sigmoid, [B, T, R] each."""

    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        size = channels // blocks
        self.weight = nn.Parameter(torch.randn(blocks, size, 2 * size) * size**-0.5)
        self.bias = nn.Parameter(torch.zeros(2, channels))
        least, most = FIRST_DECAYS
        rate = -0.5 * torch.empty(channels).uniform_(least**2, most**2).log()
        self.rate = nn.Parameter(torch.log(torch.expm1(rate)))

    def forward(self, u_BTR: Tensor) -> tuple[Tensor, Tensor]:
        blocks = self.weight.shape[0]
        both = torch.einsum("btni,nij->btnj", u_BTR.unflatten(-1, (blocks, -1)), self.weight.to(u_BTR.dtype))
        recurrence, entry = (
            widen(half.flatten(-2)) + bias for half, bias in zip(both.chunk(2, dim=-1), self.bias, strict=True)
        )
        return recurrence, entry
