"""PaTH, token by token: what every other implementation must agree with.

k_j <- k_j (I - beta_t w_t^T w_t) for all j < t, at every t;   o_t = sum_j softmax_j(scale q_t . k_j + sum_{r=j+1..t} g_r) v_j

B batch, T time, S tokens so far, H heads, K key width, V value width
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import working_dtype
from recallmap.arch.kernels.path.state import PathState, start
from recallmap.arch.kernels.recurrence.token_loop import loop


def step(
    state: PathState | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    w: Tensor,
    beta: Tensor,
    log_decay: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, PathState]:
    """One token: outputs [B, H, V] and the next state, from q, k, w [B, H, K], v [B, H, V], beta and log_decay [B, H]. State
    None is before all tokens."""
    dtype = working_dtype(q, k, v, w, beta, log_decay, None if state is None else state.keys)
    past = start(state, tuple(k.shape), tuple(v.shape), v, log_decay, dtype)
    q, k, w, beta = (x.to(dtype) for x in (q, k, w, beta))
    along_BSH = torch.einsum("bshk,bhk->bsh", past.keys, w) * beta[:, None]
    keys_BSHK = torch.cat((past.keys - along_BSH[..., None] * w[:, None], k[:, None]), 1)
    values_BSHV = torch.cat((past.values, v[:, None]), 1)
    if scale is None:
        scale = q.shape[-1] ** -0.5
    scores_BHS = torch.einsum("bhk,bshk->bhs", q, keys_BSHK) * scale
    fades_BSH = None
    if log_decay is not None and past.fades is not None:
        decay_B1H = log_decay.to(dtype)[:, None]
        fades_BSH = torch.cat((past.fades + decay_B1H, torch.zeros_like(decay_B1H)), 1)
        scores_BHS = scores_BHS + fades_BSH.mT
    o_BHV = torch.einsum("bhs,bshv->bhv", scores_BHS.softmax(-1), values_BSHV.to(dtype))
    return o_BHV.to(v.dtype), PathState(keys_BSHK, values_BSHV, fades_BSH)


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    w: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    scale: float,
    initial_state: PathState | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, PathState | None]:
    """`step` over time, in working precision so that gradients of keys and values add up in it; `chunk` has no meaning."""
    dtype = working_dtype(q, k, v, w, beta, log_decay, None if initial_state is None else initial_state.keys)
    past = None if initial_state is None else initial_state._replace(values=initial_state.values.to(dtype))
    sequences = {"q": q, "k": k, "v": v, "w": w, "beta": beta, "log_decay": log_decay}
    wide = {name: None if x is None else x.to(dtype) for name, x in sequences.items()}
    o, final = loop(step, past, wide, scale=scale)
    if not return_state or final is None:
        return o.to(v.dtype), None
    return o.to(v.dtype), final._replace(values=final.values.to(v.dtype))
