"""A preconditioner of the delta rule: write keys whose channels count the less, the more was written under them.

A_t = e^{g_t} A_{t-1} + beta_t k_t * k_t,   M_t = x^(-r / (1 + |r|)),   r = ln(A_t + 1e-6) - c,   x = 1.5

It is the squashed diagonal of what turns the delta rule into ridge regression (arXiv 2604.21100).

B batch, T time, D model width, H heads, K key width, V value width
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.parts.gates import SoftplusDecay, WriteStrength
from recallmap.arch.parts.precision import widen

MOST = 1.5  # x; M lies in (1 / x, x), and the delta rule is stable with write strengths below 2 / x
CENTRE = -0.2  # c, before training
LEAST_MOMENT = 1e-6
MOMENT_FLOPS = 4  # a key channel: square, strength, decay, sum
RATES = (1e-4, 16.0)  # of the decay of A, before training


class PreconditionedState(NamedTuple):
    """The state of a delta rule that can be preconditioned: that of `HeadsState`, and A, moments [B, H, K], None where it is
    not."""

    conv: Tensor | None = None
    memory: Tensor | None = None
    moments: Tensor | None = None


class Preconditioner(nn.Module):
    """Keys k [B, T, H, K], x [B, T, D] and A [B, H, K] -> M * k and A. The decay of A and the strength with which a key enters
    it are those of Gated DeltaNet, by maps of their own."""

    @staticmethod
    def count(width: int, heads: int) -> int:
        """Its parameters."""
        return SoftplusDecay.count(width, heads) + WriteStrength.count(width, heads, bias=False) + heads

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.decay = SoftplusDecay(width, heads, rates=RATES)
        self.write = WriteStrength(width, heads, bias=False)
        self.centre = nn.Parameter(torch.full((heads, 1), CENTRE))

    def forward(
        self, k_BTHK: Tensor, x_BTD: Tensor, moments_BHK: Tensor | None, *, implementation: str
    ) -> tuple[Tensor, Tensor]:
        new_BTHK = self.write(x_BTD)[..., None] * widen(k_BTHK).square()
        moments_BTHK, last_BHK = kernels.linear_scan(
            new_BTHK,
            log_a=self.decay(x_BTD)[..., None].expand_as(new_BTHK).contiguous(),
            initial_state=moments_BHK,
            return_state=True,
            implementation=implementation,
        )
        assert last_BHK is not None
        r_BTHK = (moments_BTHK + LEAST_MOMENT).log() - self.centre
        gain_BTHK = (-math.log(MOST) * r_BTHK / (1 + r_BTHK.abs())).exp()
        return (gain_BTHK * k_BTHK).to(k_BTHK.dtype), last_BHK


def corrected(k_BTHK: Tensor, log_decay: Tensor, beta_BTH: Tensor, written_BTHK: Tensor) -> dict[str, Tensor]:
    """`k`, `a` and `b` of `kernels.delta` for a memory that fades, is read under k and is written under another key."""
    faded = (log_decay if log_decay.ndim == k_BTHK.ndim else log_decay[..., None]).exp()
    written_BTHK = (beta_BTH[..., None] * written_BTHK).to(k_BTHK.dtype)
    return {"k": written_BTHK, "a": (faded * k_BTHK).to(k_BTHK.dtype), "b": written_BTHK}
