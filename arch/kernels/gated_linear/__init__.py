"""The op of linear attention, RetNet, GLA, Mamba-2 and HGRN2: a matrix state that fades and takes in k^T v.

S_t = sign_t e^{g_t} S_{t-1} + beta_t k_t^T v_t,    o_t = scale q_t S_t
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.gated_linear.recurrent import step as gated_linear_step
from recallmap.arch.kernels.op_interface.input_checks import (
    check_positive,
    check_qkv,
    everywhere,
    expect,
    full_precision,
    state_or_zero,
)

__all__ = ["gated_linear", "gated_linear_step"]

OP = "gated_linear"


def gated_linear(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    sign: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Outputs [B, T, H, V] in the dtype of `v`, and with `return_state` the state [B, H, K, V] behind the last token.

    q, k            [B, T, H, K], or [B, T, 1, K] where all heads share them
    v               [B, T, H, V]
    log_decay       ln of the decay, finite and <= 0: [B, T, H], [B, T, H, K] by key channel, or a constant [H]; None: no decay
    beta            write strength [B, T, H]; None: 1
    sign            +1 or -1 [B, T, H], the sign of the decay multiplier; no gradient flows into it
    scale           of the outputs; None: K^-1/2 where log_decay goes by key channel, 1 otherwise
    initial_state   [B, H, K, V]; None: zero
    implementation  "auto", or one of `select.implementations("gated_linear")`
    chunk           tokens a chunk; None: by length and kind of gate. A power of two where log_decay goes by key channel

    States are fp32, fp64 where an input is. Differentiable in q, k, v, log_decay, beta and initial_state, through outputs and
    state. No tokens (T = 0) give no outputs and the initial state. Raises ValueError on shapes that do not fit and on an
    implementation that cannot serve. Yang et al. 2024 (arXiv:2312.06635), eq. 3 and 4.
    """
    batch, time, heads, key_width, value_width = check_qkv(OP, q, k, v)
    by_head, by_channel = (batch, time, heads), (batch, time, heads, key_width)
    log_decay = everywhere(log_decay, batch, time)
    expect(OP, "log_decay", log_decay, by_head, by_channel)
    expect(OP, "beta", beta, by_head)
    expect(OP, "sign", sign, by_head)
    expect(OP, "initial_state", initial_state, (batch, heads, key_width, value_width))
    check_positive(OP, "chunk", chunk)
    vector = log_decay is not None and log_decay.ndim == 4
    if vector and chunk is not None and chunk & (chunk - 1):
        raise ValueError(f"{OP}: chunk must be a power of two where log_decay goes by key channel, got {chunk}")
    if scale is None:
        scale = key_width**-0.5 if vector else 1.0
    sizes = {"batch": batch, "time": time, "heads": heads, "key_width": key_width, "value_width": value_width}
    name = select.choose(
        OP, device=v.device, dtype=v.dtype, wanted=implementation, differentiable=torch.is_grad_enabled(), sizes=sizes
    )
    if time == 0:
        shape = (batch, heads, key_width, value_width)
        return v, state_or_zero(OP, initial_state, shape, q, k, v) if return_state else None
    with full_precision(v.device):
        result: tuple[Tensor, Tensor | None] = select.load(OP, name)(
            q,
            k,
            v,
            log_decay=log_decay,
            beta=beta,
            sign=sign,
            scale=scale,
            initial_state=initial_state,
            return_state=return_state,
            chunk=chunk,
        )
        return result
