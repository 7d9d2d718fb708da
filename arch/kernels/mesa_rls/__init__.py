"""The op of the first Mesa layer: recursive least squares, whose regulariser fades with the past.

P_t = (P_{t-1} - beta_t P_{t-1} k_t^T k_t P_{t-1} / (a_t + beta_t k_t P_{t-1} k_t^T)) / a_t,    P_0 = diag(lam)^{-1}
kv_t = a_t kv_{t-1} + beta_t k_t^T v_t,    o_t = scale q_t P_t kv_t,    a_t = e^{g_t}
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.mesa_rls.recurrent import step as mesa_rls_step
from recallmap.arch.kernels.mesa_rls.state import MesaRlsState, start
from recallmap.arch.kernels.op_interface.input_checks import (
    check_positive,
    check_qkv,
    everywhere,
    expect,
    full_precision,
)

__all__ = ["MesaRlsState", "mesa_rls", "mesa_rls_step"]

OP = "mesa_rls"


def mesa_rls(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lam: Tensor,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: MesaRlsState | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, MesaRlsState | None]:
    """Outputs [B, T, H, V] in the dtype of `v`, and with `return_state` the state behind the last token.

    q, k            [B, T, H, K], or [B, T, 1, K] where all heads share them
    v               [B, T, H, V]
    lam             the regulariser before the first token, > 0: [H, K]; an initial state has taken its place
    log_decay       ln of the decay, <= 0: [B, T, H], or a constant [H]; None: no decay. P grows by e^-log_decay a token
                    wherever no key points, and overflows once that is too much
    beta            write strength, >= 0: [B, T, H]; None: 1
    scale           of the outputs; None: 1
    initial_state   `MesaRlsState`; None: before the first token
    implementation  "auto", or one of `select.implementations("mesa_rls")`
    chunk           tokens a chunk; None: 16

    States are fp32, fp64 where an input is. Differentiable in q, k, v, lam, log_decay, beta and initial_state, through outputs
    and state. No tokens (T = 0) give no outputs and the initial state. Raises ValueError on shapes that do not fit and on an
    implementation that cannot serve. von Oswald et al. 2023 (arXiv:2309.05858).
    """
    batch, time, heads, key_width, value_width = check_qkv(OP, q, k, v)
    by_head = (batch, time, heads)
    log_decay = everywhere(log_decay, batch, time)
    expect(OP, "lam", lam, (heads, key_width))
    expect(OP, "log_decay", log_decay, by_head)
    expect(OP, "beta", beta, by_head)
    check_positive(OP, "chunk", chunk)
    sizes = {"batch": batch, "time": time, "heads": heads, "key_width": key_width, "value_width": value_width}
    name = select.choose(
        OP, device=v.device, dtype=v.dtype, wanted=implementation, differentiable=torch.is_grad_enabled(), sizes=sizes
    )
    begin = start(initial_state, lam, (batch, heads, key_width, value_width), q, k, v, log_decay, beta)
    if time == 0:
        return v, begin if return_state else None
    with full_precision(v.device):
        o, final = select.load(OP, name)(
            q,
            k,
            v,
            lam=lam,
            log_decay=log_decay,
            beta=beta,
            scale=1.0 if scale is None else scale,
            initial_state=begin,
            chunk=chunk,
        )
        return o, final if return_state else None
