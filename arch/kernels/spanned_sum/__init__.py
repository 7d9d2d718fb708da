"""Weights that take steps within the span of a few vectors: they are kept, and read, by their coefficients.

W_t = e^{g_t} W_{t-1} + diag(x_t) D F_t,    y_t = q_t W_t

Of the vectors U what is read is h U W_t, with h U = q, and what is added U diag(x_t) D F_t: the steps P_t Q_t of
spanned_newton_schulz.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.op_interface.input_checks import (
    check_positive,
    expect,
    full_precision,
    promoted,
    state_or_zero,
)
from recallmap.arch.kernels.spanned_sum.recurrent import step as spanned_sum_step

__all__ = ["spanned_sum", "spanned_sum_step"]

OP = "spanned_sum"


def spanned_sum(
    q: Tensor,
    x: Tensor,
    factor: Tensor,
    d: Tensor,
    *,
    log_decay: Tensor,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """y [B, T, H, C] in the dtype of `x`, and with `return_state` the last W [B, H, S, C].

    q               [B, T, H, S]: what is read, in terms of the vectors
    x               [B, T, H, S]: how much of each vector is in a token's step
    factor          F [B, T, H, C, C]
    d               D [B, H, S, C], of all tokens
    log_decay       g [B, T, H], finite and <= 0
    initial_state   [B, H, S, C]; None: zero
    implementation  "auto", or one of `select.implementations("spanned_sum")`
    chunk           tokens at once; None: 16

    States are fp32, fp64 where an input is. Differentiable in all inputs, through outputs and state. No tokens (T = 0) give no
    outputs and the initial state. Raises ValueError on shapes that do not fit and on an implementation that cannot serve.
    Behrouz et al. 2025 (ATLAS, section 5), within a chunk.
    """
    if x.ndim != 4 or d.ndim != 4:
        raise ValueError(f"{OP}: x must be [B, T, H, S] and d [B, H, S, C], got {list(x.shape)} and {list(d.shape)}")
    batch, time, heads, vectors = x.shape
    columns = d.shape[-1]
    expect(OP, "x", x, tuple(x.shape))
    expect(OP, "q", q, tuple(x.shape))
    expect(OP, "factor", factor, (batch, time, heads, columns, columns))
    expect(OP, "d", d, (batch, heads, vectors, columns))
    expect(OP, "log_decay", log_decay, (batch, time, heads))
    expect(OP, "initial_state", initial_state, (batch, heads, vectors, columns))
    check_positive(OP, "chunk", chunk)
    name = select.choose(
        OP,
        device=x.device,
        dtype=promoted(q, x, factor, d),
        wanted=implementation,
        differentiable=torch.is_grad_enabled(),
        sizes={"batch": batch, "time": time, "key_width": vectors, "value_width": columns},
    )
    if 0 in (batch, time, heads, vectors, columns):
        state = state_or_zero(OP, initial_state, (batch, heads, vectors, columns), x, d)
        return x.new_zeros(batch, time, heads, columns), state if return_state else None
    with full_precision(x.device):
        result: tuple[Tensor, Tensor | None] = select.load(OP, name)(
            q, x, factor, d, log_decay=log_decay, initial_state=initial_state, return_state=return_state, chunk=chunk
        )
        return result
