"""Fade: every channel keeps a share of itself that the token chooses, and adds the value of the token.

h_t = a_t h_{t-1} + (1 - a_t) v_t,   y_t = W_o (silu(x_t W_g) * h_t),   a_t = sigmoid(x_t W_a + b)

B batch, T time, D model width, E channels
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

import recallmap as rm


@dataclass(frozen=True, kw_only=True)
class Fade(rm.MixerSpec):
    """expand  channels of the state, in units of the model's width
    keep    share of itself that a channel keeps at each token, before training
    """

    kind: Literal["fade"] = "fade"
    expand: int = 1
    keep: float = 0.9

    equation: ClassVar[str] = "h_t = a_t h_{t-1} + (1 - a_t) v_t"
    state_formula: ClassVar[str] = "expand D"
    source: ClassVar[str] = "this file"

    def __post_init__(self) -> None:
        if self.expand < 1:
            raise ValueError(f"expand must be at least 1, got {self.expand}")
        if not 0 < self.keep < 1:
            raise ValueError(f"keep must lie in (0, 1), got {self.keep}")

    def check(self, width: int) -> None:
        """Raise ValueError where it does not fit a model of this width. Every width fits."""

    def build(self, width: int) -> rm.MixerModule:
        return FadeModule(self, width)

    def state_size(self, width: int, length: int) -> rm.StateSize:
        """The floats that it carries after so many tokens: what `fixed` counts, and `growing` where they grow with length."""
        return rm.StateSize(self.expand * width)

    def flops(self, width: int, length: int) -> float:
        """Operations per token: four maps, each of two operations a weight, and the recurrence."""
        return 2 * 4 * self.expand * width * width + 5 * self.expand * width


class FadeModule(rm.MixerModule):
    """Write nothing in place and branch on no data, so that many train as one. Name the last map `out`."""

    def __init__(self, spec: Fade, width: int) -> None:
        super().__init__()
        channels = spec.expand * width
        self.value = nn.Linear(width, channels, bias=False)
        self.gate = nn.Linear(width, channels, bias=False)
        self.fade = nn.Linear(width, channels)
        nn.init.constant_(self.fade.bias, math.log(spec.keep / (1 - spec.keep)))
        self.out = nn.Linear(channels, width, bias=False)

    def mix(self, x_BTD: Tensor, state: Any, return_state: bool) -> tuple[Tensor, Any]:
        """Outputs and the state after the last token. One token with a state is the decode step."""
        log_a_BTE = F.logsigmoid(self.fade(x_BTD))
        h_BTE, carried = rm.kernels.linear_scan(
            (1 - log_a_BTE.exp()) * self.value(x_BTD),
            log_a=log_a_BTE,
            initial_state=state,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(F.silu(self.gate(x_BTD)) * h_BTE), carried
