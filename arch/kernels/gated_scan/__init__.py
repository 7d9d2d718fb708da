"""The op of RG-LRU: every channel is a number that fades and takes in another, by gates of the token.

h_t = a_t h_{t-1} + sqrt(1 - a_t^2) sigmoid(i_t) x_t,   a_t = exp(-8 sigmoid(r_t) softplus(L)), channel by channel
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.gated_scan.recurrent import step as gated_scan_step
from recallmap.arch.kernels.op_interface.input_checks import check_positive, expect, full_precision, working_dtype

__all__ = ["gated_scan", "gated_scan_step"]

OP = "gated_scan"


def gated_scan(
    x: Tensor,
    *,
    r: Tensor,
    i: Tensor,
    rate: Tensor,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Every h [B, T, ...] in the dtype of `x`, and with `return_state` the last one, the state [B, ...].

    x               what channels are offered [B, T, ...], any channel axes
    r, i            recurrence gate and entry gate ahead of their sigmoid, shaped like x
    rate            L [...], any number
    initial_state   [B, ...]; None: the first of these tokens is the first of all, which is taken in whole, sigmoid(i_1) x_1
    implementation  "auto", or one of `select.implementations("gated_scan")`
    chunk           tokens a chunk; None: by length

    States are fp32, fp64 where an input is. Differentiable in x, r, i, rate and initial_state, through outputs and state; the
    root's slope is bounded by 1000, for it has none at a = 1. No tokens (T = 0) give no outputs and the initial state, None
    where there is none. Raises ValueError on shapes that do not fit and on an implementation that cannot serve. De et al. 2024
    (arXiv:2402.19427), eq. 1 to 4.
    """
    if x.ndim < 3:
        raise ValueError(f"{OP}: x must be [batch, time, channels ...], got shape {list(x.shape)}")
    batch, time, *channels = x.shape
    expect(OP, "x", x, tuple(x.shape))
    expect(OP, "r", r, tuple(x.shape))
    expect(OP, "i", i, tuple(x.shape))
    expect(OP, "rate", rate, tuple(channels))
    expect(OP, "initial_state", initial_state, (batch, *channels))
    check_positive(OP, "chunk", chunk)
    name = select.choose(
        OP,
        device=x.device,
        dtype=x.dtype,
        wanted=implementation,
        differentiable=torch.is_grad_enabled(),
        sizes={"batch": batch, "time": time},
    )
    if time == 0:
        if initial_state is None or not return_state:
            return x, None
        return x, initial_state.to(working_dtype(x, r, i, rate, initial_state))
    with full_precision(x.device):
        result: tuple[Tensor, Tensor | None] = select.load(OP, name)(
            x, r=r, i=i, rate=rate, initial_state=initial_state, return_state=return_state, chunk=chunk
        )
        return result
