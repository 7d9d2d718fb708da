"""BaseConv: a short convolution, gated by the token itself; Zoology's gated convolution.

y_t = (sum_i w_i * x_{t-i} + b) * (x_t W + c) + x_t

B batch, T time, D model width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from recallmap.arch.mixers.mixer import MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.heads import check_at_least
from recallmap.arch.parts.short_conv import ShortConv


@dataclass(frozen=True, kw_only=True)
class BaseConv(MixerSpec):
    """A gated short convolution.

    short_conv  taps of the convolution, the token's own included
    """

    kind: Literal["base_conv"] = "base_conv"
    short_conv: int = 3

    equation: ClassVar[str] = "y = conv(x) * (x W + c) + x"
    state_formula: ClassVar[str] = "(taps - 1) D"
    source: ClassVar[str] = "Arora et al. 2023 (Zoology), section 4.1"

    def __post_init__(self) -> None:
        check_at_least(1, short_conv=self.short_conv)

    def differs(self) -> tuple[str, ...]:
        return ()

    def check(self, width: int) -> None:
        """Every width fits."""

    def build(self, width: int) -> MixerModule:
        return _BaseConv(self, width)

    def parameters(self, width: int) -> int:
        return (self.short_conv + 1) * width + (width + 1) * width

    def state_size(self, width: int, length: int) -> StateSize:
        return StateSize((self.short_conv - 1) * width)

    def flops(self, width: int, length: int) -> float:
        return 2 * width * width + 2 * self.short_conv * width


class _BaseConv(MixerModule):
    def __init__(self, spec: BaseConv, width: int) -> None:
        super().__init__()
        self.conv = ShortConv(width, spec.short_conv, bias=True)
        self.gate = nn.Linear(width, width)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        convolved_BTD, cache = self.conv(x_BTD, state)
        return convolved_BTD * self.gate(x_BTD) + x_BTD, cache
