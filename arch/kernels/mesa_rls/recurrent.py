"""Recursive least squares, token by token: what every other implementation must agree with.

P_t = (P_{t-1} - beta_t P_{t-1} k_t^T k_t P_{t-1} / (a_t + beta_t k_t P_{t-1} k_t^T)) / a_t
kv_t = a_t kv_{t-1} + beta_t k_t^T v_t,    o_t = scale q_t P_t kv_t,    a_t = e^{g_t}

B batch, T time, H heads, G heads of q and k (H or 1), K key width, V value width
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.mesa_rls.state import MesaRlsState, start
from recallmap.arch.kernels.recurrence.token_loop import loop


def step(
    state: MesaRlsState | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lam: Tensor,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, MesaRlsState]:
    """One token: outputs [B, H, V] and the next state.

    The shapes are those of `mesa_rls` without T. State None is before the first token. Raises ValueError where the state does
    not fit.
    """
    P, kv = start(state, lam, (*v.shape[:2], q.shape[-1], v.shape[-1]), q, k, v, log_decay, beta)
    dtype = P.dtype
    q, k, v_ = (x.to(dtype) for x in (q, k, v))
    kept = torch.ones_like(P[..., 0, 0]) if log_decay is None else log_decay.to(dtype).exp()
    kept = kept[..., None, None]
    write = torch.ones_like(kept) if beta is None else beta.to(dtype)[..., None, None]
    row = k[..., None, :] @ P
    energy = row @ k[..., None]
    P = (P - write / (kept + write * energy) * (row.mT * row)) / kept
    kv = kept * kv + write * k[..., None] * v_[..., None, :]
    o = ((q[..., None, :] @ P) @ kv).squeeze(-2)
    return (o if scale is None else o * scale).to(v.dtype), MesaRlsState(P, kv)


def recurrent(
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
    """`step` over time; `chunk` has no meaning here."""
    sequences = {"q": q, "k": k, "v": v, "log_decay": log_decay, "beta": beta}
    return loop(step, initial_state, sequences, lam=lam, scale=scale)
