"""The op of gated slot attention: a token reads, by softmax, a fixed number of slots that fade and take tokens in.

X_t = diag(e^{g_t}) X_{t-1} + s_t^T k_t,   Y_t = diag(e^{g_t}) Y_{t-1} + s_t^T v_t,   o_t = softmax(scale q_t X_t^T) Y_t
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.op_interface.input_checks import check_positive, check_qkv, expect, full_precision
from recallmap.arch.kernels.slots.recurrent import step as slots_step
from recallmap.arch.kernels.slots.state import SlotsState, start

__all__ = ["SlotsState", "slots", "slots_step"]

OP = "slots"


def slots(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    write: Tensor,
    log_decay: Tensor | None = None,
    scale: float | None = None,
    initial_state: SlotsState | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, SlotsState | None]:
    """Outputs [B, T, H, V] in the dtype of `v`, and with `return_state` the state behind the last token.

    q, k            [B, T, H, K], or [B, T, 1, K] where all heads share them
    v               [B, T, H, V]
    write           s, how strongly a token is written to each of M slots: [B, T, H, M]
    log_decay       g, ln of what a slot keeps, finite and <= 0: [B, T, H, M]; None: all
    scale           of the scores; None: 1
    initial_state   `SlotsState`; None: zero
    implementation  "auto", or one of `select.implementations("slots")`
    chunk           tokens a chunk; None: 16

    States and softmax are fp32, fp64 where an input is. Differentiable in q, k, v, write, log_decay and initial_state, through
    outputs and state. No tokens (T = 0) give no outputs and the initial state. Raises ValueError on shapes that do not fit and
    on an implementation that cannot serve. Zhang et al. 2024 (arXiv:2409.07146).
    """
    batch, time, heads, key_width, value_width = check_qkv(OP, q, k, v)
    many = write.shape[-1]
    expect(OP, "write", write, (batch, time, heads, many))
    expect(OP, "log_decay", log_decay, (batch, time, heads, many))
    check_positive(OP, "chunk", chunk)
    sizes = {"batch": batch, "time": time, "heads": heads, "key_width": key_width, "value_width": value_width}
    sizes["slots"] = many
    name = select.choose(
        OP, device=v.device, dtype=v.dtype, wanted=implementation, differentiable=torch.is_grad_enabled(), sizes=sizes
    )
    shapes = (batch, heads, many, key_width), (batch, heads, many, value_width)
    if time == 0:
        return v, start(initial_state, *shapes, q, k, v) if return_state else None
    begin = None if initial_state is None else start(initial_state, *shapes, q, k, v)
    with full_precision(v.device):
        result: tuple[Tensor, SlotsState | None] = select.load(OP, name)(
            q,
            k,
            v,
            write=write,
            log_decay=log_decay,
            scale=1.0 if scale is None else scale,
            initial_state=begin,
            return_state=return_state,
            chunk=chunk,
        )
        return result
