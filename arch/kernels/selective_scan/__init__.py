"""The op of Mamba-1 and of Longhorn as deployed: every channel has a vector for a state, and steps of its own in time.

h_t = a_t * h_{t-1} + s_t v_t k_t,   o_t = q_t . h_t   a channel each, a_t = e^{-s_t A}, A a row of its own, or 1 - s_t k_t^2
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.op_interface.input_checks import (
    check_positive,
    check_qkv,
    expect,
    full_precision,
    state_or_zero,
)
from recallmap.arch.kernels.selective_scan.recurrent import step as selective_scan_step

__all__ = ["selective_scan", "selective_scan_step"]

OP = "selective_scan"


def selective_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    step: Tensor,
    rate: Tensor | None = None,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Outputs [B, T, H, V] in the dtype of `v`, and with `return_state` the state [B, H, V, N] behind the last token.

    q, k            [B, T, H, N], or [B, T, 1, N] where all heads share them
    v               [B, T, H, V]: H heads of V channels
    step            s [B, T, H, V], >= 0: how far a channel goes in time with a token, and how strongly it takes that in
    rate            A [H, V, N], >= 0, by which entries fade: a step by e^{-s A}, and by no more than e^-30. None: an entry
                    loses s k^2 of itself, the diagonal of the delta rule, and at most all but 1e-6
    initial_state   [B, H, V, N]; None: zero
    implementation  "auto", or one of `select.implementations("selective_scan")`
    chunk           tokens a chunk; None: by length

    States are fp32, fp64 where an input is. Differentiable in q, k, v, step, rate and initial_state, through outputs and state.
    No tokens (T = 0) give no outputs and the initial state. Raises ValueError on shapes that do not fit and on an
    implementation that cannot serve. Gu and Dao 2023 (arXiv:2312.00752), algorithm 2; Liu et al. 2024 (arXiv:2407.14207).
    """
    batch, time, heads, width, channels = check_qkv(OP, q, k, v)
    expect(OP, "step", step, tuple(v.shape))
    expect(OP, "rate", rate, (heads, channels, width))
    expect(OP, "initial_state", initial_state, (batch, heads, channels, width))
    check_positive(OP, "chunk", chunk)
    name = select.choose(
        OP,
        device=v.device,
        dtype=v.dtype,
        wanted=implementation,
        differentiable=torch.is_grad_enabled(),
        sizes={"batch": batch, "time": time, "heads": heads, "key_width": width, "value_width": channels},
    )
    if time == 0:
        shape = (batch, heads, channels, width)
        return v, state_or_zero(OP, initial_state, shape, q, k, v) if return_state else None
    with full_precision(v.device):
        result: tuple[Tensor, Tensor | None] = select.load(OP, name)(
            q,
            k,
            v,
            step=step,
            rate=rate,
            initial_state=initial_state,
            return_state=return_state,
            chunk=chunk,
        )
        return result
