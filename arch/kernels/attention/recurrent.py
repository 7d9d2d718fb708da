"""Causal softmax attention, one query at a time: what every other implementation must agree with.

o_t = sum_j softmax_j(scale q_t . k_j + sum_{r=j+1..t} g_r) v_j over the j <= t with j > t - window or j < prefix

B batch, T time, H heads, G heads of q and k (H or 1), S tokens kept, K key width, V value width
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.attention.state import AttentionState, keep, start
from recallmap.arch.kernels.op_interface.input_checks import working_dtype
from recallmap.arch.kernels.recurrence.token_loop import loop


def step(
    state: AttentionState | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    window: int | None = None,
    prefix: int = 0,
    scale: float | None = None,
) -> tuple[Tensor, AttentionState]:
    """One token: outputs [B, H, V] and the next state, from q, k [B, G, K], v [B, H, V] and log_decay [B, H]. State None is
    before all tokens."""
    state = start(state, tuple(k.shape), tuple(v.shape), window, prefix, v, log_decay)
    position = state.position + 1
    keys_BSGK = keep(torch.cat((state.keys, k[:, None]), 1), position, window, prefix)
    values_BSHV = keep(torch.cat((state.values, v[:, None]), 1), position, window, prefix)
    dtype = working_dtype(q, keys_BSGK, values_BSHV)
    if scale is None:
        scale = q.shape[-1] ** -0.5
    scores_BGS = torch.einsum("bgk,bsgk->bgs", q.to(dtype), keys_BSGK.to(dtype)) * scale
    fades_BSH = None
    if log_decay is not None and state.fades is not None:
        log_decay = log_decay.to(working_dtype(log_decay, state.fades))
        behind = torch.cat((state.fades + log_decay[:, None], torch.zeros_like(log_decay[:, None])), 1)
        fades_BSH = keep(behind, position, window, prefix)
        scores_BGS = scores_BGS + fades_BSH.mT.to(dtype)
    weights_BHS = scores_BGS.softmax(-1).expand(-1, v.shape[1], -1)
    o_BHV = torch.einsum("bhs,bshv->bhv", weights_BHS, values_BSHV.to(dtype))
    return o_BHV.to(v.dtype), AttentionState(keys_BSGK, values_BSHV, position, fades_BSH)


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None,
    window: int | None,
    prefix: int,
    scale: float,
    initial_state: AttentionState | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, AttentionState | None]:
    """`step` over time, in working precision so that gradients of keys and values add up in it; `chunk` has no meaning."""
    dtype = working_dtype(q, k, v, log_decay)
    past = None if initial_state is None else initial_state.to(dtype, dtype)
    sequences = {
        "q": q.to(dtype),
        "k": k.to(dtype),
        "v": v.to(dtype),
        "log_decay": None if log_decay is None else log_decay.to(dtype),
    }
    o, final = loop(step, past, sequences, window=window, prefix=prefix, scale=scale)
    return o.to(v.dtype), final.to(k.dtype, v.dtype) if return_state and final is not None else None
