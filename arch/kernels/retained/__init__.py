"""A matrix that adds up what it is given, and is read through what is kept of it.

A_t = e^{g_t} A_{t-1} + k_t^T v_t,    y_t = q_t retention(A_t)

With the retentions of test_time.learning_rule: softmax over rows (MIRAS, Memora), or A over its own norm (Moneta).
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
    promoted,
    state_or_zero,
)
from recallmap.arch.kernels.retained.recurrent import step as retained_step
from recallmap.arch.kernels.test_time.learning_rule import Retention

__all__ = ["retained", "retained_step"]

OP = "retained"


def retained(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    retention: Retention,
    log_decay: Tensor,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """y [B, T, H, C] in the dtype of `v`, and with `return_state` the last A [B, H, R, C].

    q, k            [B, T, H, R]
    v               [B, T, H, C]
    retention       what is read of A
    log_decay       g [B, T, H], finite and <= 0
    initial_state   [B, H, R, C]; None: zero
    implementation  "auto", or one of `select.implementations("retained")`
    chunk           tokens at once; None: 16

    States are fp32, fp64 where an input is. Differentiable in all inputs, through outputs and state. No tokens (T = 0) give no
    outputs and the initial state. Raises ValueError on shapes that do not fit and on an implementation that cannot serve.
    Behrouz et al. 2025 (MIRAS, section 5), within a chunk.
    """
    batch, time, heads, rows, columns = check_qkv(OP, q, k, v)
    expect(OP, "q", q, (batch, time, heads, rows))
    expect(OP, "log_decay", log_decay, (batch, time, heads))
    expect(OP, "initial_state", initial_state, (batch, heads, rows, columns))
    check_positive(OP, "chunk", chunk)
    name = select.choose(
        OP,
        device=v.device,
        dtype=promoted(q, k, v),
        wanted=implementation,
        differentiable=torch.is_grad_enabled(),
        sizes={"batch": batch, "time": time, "heads": heads, "key_width": rows, "value_width": columns},
    )
    if 0 in (batch, time, heads, rows, columns):
        state = state_or_zero(OP, initial_state, (batch, heads, rows, columns), q, k, v, log_decay)
        return v.new_zeros(batch, time, heads, columns), state if return_state else None
    with full_precision(v.device):
        result: tuple[Tensor, Tensor | None] = select.load(OP, name)(
            q, k, v, retention=retention, log_decay=log_decay, initial_state=initial_state, return_state=return_state,
            chunk=chunk,
        )  # fmt: skip
        return result
