"""The op of DeltaNet, Gated DeltaNet, RWKV-7 and exact Longhorn: a matrix state that fades, forgets what it holds under a
key, and takes in k^T v.

with beta      S_t = (I - beta_t k_t^T k_t) D_t S_{t-1} + beta_t k_t^T v_t       first decay, then correct
with a and b   S_t = D_t S_{t-1} - b_t^T (a_t S_{t-1}) + k_t^T v_t               diagonal plus low rank
o_t = scale q_t S_t,   D_t = sign_t e^{g_t}
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.delta.recurrent import step as delta_step
from recallmap.arch.kernels.op_interface.input_checks import (
    check_positive,
    check_qkv,
    everywhere,
    expect,
    full_precision,
    state_or_zero,
)

__all__ = ["delta", "delta_step"]

OP = "delta"


def delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    a: Tensor | None = None,
    b: Tensor | None = None,
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
    log_decay       ln of the decay, finite and <= 0: [B, T, H], [B, T, H, K] by key channel, or a constant [H]; None: none
    beta            write strength [B, T, H], within [0, 2] for keys of norm 1; None: 1
    a, b            instead of beta: what is read from the state before it fades, and where the reading is taken off; shaped
                    like k, or [B, T, H, K]. k then writes as it is
    sign            +1 or -1 [B, T, H], the sign of the decay multiplier; no gradient flows into it
    scale           of the outputs; None: 1
    initial_state   [B, H, K, V]; None: zero
    implementation  "auto", or one of `select.implementations("delta")`
    chunk           tokens a chunk; None: by length and kind of gate. A power of two where log_decay goes by key channel

    States are fp32, fp64 where an input is. Differentiable in q, k, v, log_decay, beta, a, b and initial_state, through
    outputs and state. No tokens (T = 0) give no outputs and the initial state. Raises ValueError on shapes that do not fit,
    on beta together with a and b, and on an implementation that cannot serve. Yang et al. 2025 (arXiv:2412.06464), eq. 10.
    """
    batch, time, heads, key_width, value_width = check_qkv(OP, q, k, v)
    by_head, by_channel = (batch, time, heads), (batch, time, heads, key_width)
    log_decay = everywhere(log_decay, batch, time)
    expect(OP, "log_decay", log_decay, by_head, by_channel)
    expect(OP, "beta", beta, by_head)
    expect(OP, "sign", sign, by_head)
    expect(OP, "a", a, by_channel, tuple(k.shape))
    expect(OP, "b", b, by_channel, tuple(k.shape))
    expect(OP, "initial_state", initial_state, (batch, heads, key_width, value_width))
    if (a is None) != (b is None) or (a is not None and beta is not None):
        given = ", ".join(name for name, x in (("beta", beta), ("a", a), ("b", b)) if x is not None)
        raise ValueError(f"{OP}: takes beta, or a and b together, or none of them; got {given}")
    check_positive(OP, "chunk", chunk)
    if log_decay is not None and log_decay.ndim == 4 and chunk is not None and chunk & (chunk - 1):
        raise ValueError(f"{OP}: chunk must be a power of two where log_decay goes by key channel, got {chunk}")
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
            a=a,
            b=b,
            sign=sign,
            scale=1.0 if scale is None else scale,
            initial_state=initial_state,
            return_state=return_state,
            chunk=chunk,
        )
        return result
