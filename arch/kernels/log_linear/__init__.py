"""The op of log-linear attention: linear attention that weighs what it reads by how far back it lies, in powers of two.

o_t = scale sum_{s <= t} c_{t, |t xor s|} e^{G_t - G_s} (q_t . k_s) beta_s v_s,   |x| the number of binary digits of x
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.log_linear.recurrent import step as log_linear_step
from recallmap.arch.kernels.log_linear.state import LogLinearState, start
from recallmap.arch.kernels.op_interface.input_checks import check_positive, check_qkv, expect, full_precision

__all__ = ["LogLinearState", "log_linear", "log_linear_step"]

OP = "log_linear"


def log_linear(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    levels: Tensor,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: LogLinearState | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, LogLinearState | None]:
    """Outputs [B, T, H, V] in the dtype of `v`, and with `return_state` the state behind the last token.

    q, k            [B, T, H, K], or [B, T, 1, K] where all heads share them
    v               [B, T, H, V]
    levels          c, the weights of what is read at L levels, at least 2: [B, T, H, L]. Level 0 is the token itself, l has
                    2^(l-1) tokens, the nearer ones the lower; the last has all that is older, too
    log_decay       ln of the decay, finite and <= 0: [B, T, H]; None: no decay
    beta            write strength [B, T, H]; None: 1
    scale           of the outputs; None: 1
    initial_state   `LogLinearState`; None: empty
    implementation  "auto", or one of `select.implementations("log_linear")`
    chunk           tokens a chunk, of which the power of two below is taken; None: 16

    States are fp32, fp64 where an input is. Differentiable in q, k, v, levels, log_decay, beta and the buckets, through outputs
    and state. No tokens (T = 0) give no outputs and the initial state. Raises ValueError on shapes that do not fit, and on an
    implementation that cannot serve. Guo et al. 2025 (arXiv:2506.04761).
    """
    batch, time, heads, key_width, value_width = check_qkv(OP, q, k, v)
    many = levels.shape[-1]
    expect(OP, "levels", levels, (batch, time, heads, many))
    if many < 2:
        raise ValueError(f"{OP}: levels must be at least 2, the token itself and what is behind, got {many}")
    expect(OP, "log_decay", log_decay, (batch, time, heads))
    expect(OP, "beta", beta, (batch, time, heads))
    check_positive(OP, "chunk", chunk)
    sizes = {"batch": batch, "time": time, "heads": heads, "key_width": key_width, "value_width": value_width}
    name = select.choose(
        OP, device=v.device, dtype=v.dtype, wanted=implementation, differentiable=torch.is_grad_enabled(), sizes=sizes
    )
    shape = (batch, heads, many - 1, key_width, value_width)
    if time == 0:
        return v, start(initial_state, shape, q, k, v) if return_state else None
    begin = None if initial_state is None else start(initial_state, shape, q, k, v)
    with full_precision(v.device):
        result: tuple[Tensor, LogLinearState | None] = select.load(OP, name)(
            q,
            k,
            v,
            levels=levels,
            log_decay=log_decay,
            beta=beta,
            scale=1.0 if scale is None else scale,
            initial_state=begin,
            return_state=return_state,
            chunk=chunk,
        )
        return result
