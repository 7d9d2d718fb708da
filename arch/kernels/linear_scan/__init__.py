"""The op of HGRN, and of what the gated and the selective scan come down to: every channel fades and takes in a number.

h_t = e^{g_t} h_{t-1} + x_t, channel by channel
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.linear_scan.recurrent import step as linear_scan_step
from recallmap.arch.kernels.op_interface.input_checks import check_positive, expect, full_precision, state_or_zero

__all__ = ["linear_scan", "linear_scan_step"]

OP = "linear_scan"


def linear_scan(
    x: Tensor,
    *,
    log_a: Tensor,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Every h [B, T, ...] in the dtype of `x`, and with `return_state` the last one, the state [B, ...].

    x               what channels take in [B, T, ...], any channel axes
    log_a           g, ln of the decay, finite and <= 0, shaped like x
    initial_state   [B, ...]; None: zero
    implementation  "auto", or one of `select.implementations("linear_scan")`
    chunk           tokens a chunk; None: by length

    States are fp32, fp64 where an input is. Differentiable in x, log_a and initial_state, through outputs and state. No tokens
    (T = 0) give no outputs and the initial state. Raises ValueError on shapes that do not fit and on an implementation that
    cannot serve. Martin and Cundy 2018 (arXiv:1709.04057).
    """
    if x.ndim < 3:
        raise ValueError(f"{OP}: x must be [batch, time, channels ...], got shape {list(x.shape)}")
    batch, time, *channels = x.shape
    expect(OP, "x", x, tuple(x.shape))
    expect(OP, "log_a", log_a, tuple(x.shape))
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
        return x, state_or_zero(OP, initial_state, (batch, *channels), x, log_a) if return_state else None
    with full_precision(x.device):
        result: tuple[Tensor, Tensor | None] = select.load(OP, name)(
            x, log_a=log_a, initial_state=initial_state, return_state=return_state, chunk=chunk
        )
        return result
