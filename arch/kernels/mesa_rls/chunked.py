"""Recursive least squares by chunks: one Cholesky factor answers all tokens of a chunk.

With P and kv ahead of a chunk, weights w_s = sqrt(beta_s e^{-G_s}) and keys and values scaled by them,
    L L^T = I + K P K^T,    Z = L^{-1} K P,    E = L^{-1} (V - K P kv)
are every token's gain and error, each given the tokens ahead of it, since L is lower triangular. Then
    o_t = q_t P kv + sum_{s <= t} (q_t . Z_s) E_s,    P_C = e^{-G_C} (P - Z^T Z),    kv_C = e^{G_C} (kv + K^T V)
(the scaled K and V in the last, too). A read-out does not change when P and kv are scaled against each other, so decay is in
the weights alone.

B batch, T time, H heads, N chunks, C tokens a chunk, K key width, V value width
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.mesa_rls.state import MesaRlsState
from recallmap.arch.kernels.op_interface.input_checks import working_dtype
from recallmap.arch.kernels.recurrence.chunks import merge, split

CHUNK = 16  # e^{-G} over a chunk must stay in range
LEAST = 1e-30  # under a root: lets a gradient through to a token that is not written


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lam: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    scale: float,
    initial_state: MesaRlsState,
    chunk: int | None,
) -> tuple[Tensor, MesaRlsState]:
    """The whole sequence. `chunk` is a number of tokens."""
    dtype = working_dtype(*initial_state, q, k, v, log_decay, beta)
    chunk = min(chunk or CHUNK, v.shape[1])
    heads, time = v.shape[2], v.shape[1]
    q_, k_, v_ = (split(x, chunk, dtype).expand(-1, heads, -1, -1, -1) for x in (q, k, v))
    weight, over = torch.ones_like(v_[..., :1]), None
    if beta is not None:
        weight = (split(beta, chunk, dtype)[..., None] + LEAST).sqrt()
    if log_decay is not None:
        until = split(log_decay, chunk, dtype).cumsum(-1)[..., None]
        weight, over = weight * (-0.5 * until).exp(), until[..., -1:, :].exp()
    keys, values = k_ * weight, v_ * weight
    written = keys.mT @ values
    unit = torch.eye(chunk, dtype=dtype, device=v.device)

    P, kv = initial_state
    outputs = []
    for n in range(v_.shape[2]):
        rows = keys[:, :, n] @ P
        factor, _ = torch.linalg.cholesky_ex(unit + rows @ keys[:, :, n].mT)  # no check: it would wait for the device
        wanted = torch.cat((rows, values[:, :, n] - rows @ kv), -1)
        gains, errors = torch.linalg.solve_triangular(factor, wanted, upper=False).split(
            rows.shape[-1:] + v.shape[-1:], -1
        )
        ahead = q_[:, :, n] @ P
        outputs.append(ahead @ kv + (q_[:, :, n] @ gains.mT).tril() @ errors)
        P, kv = P - gains.mT @ gains, kv + written[:, :, n]
        if over is not None:
            P, kv = P / over[:, :, n], kv * over[:, :, n]
    o = torch.stack(outputs, 2)
    return merge(o if scale == 1 else o * scale, time, v.dtype), MesaRlsState(P, kv)
