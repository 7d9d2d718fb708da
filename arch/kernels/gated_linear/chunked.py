"""Gated linear attention by matrix products over chunks of tokens.

Inside a chunk with state S_0 ahead of it, G_t the sum of log decays up to token t, all by head or by key channel:
o_t = (q_t e^{G_t}) S_0 + sum_{s <= t} (q_t . e^{G_t - G_s} k_s) beta_s v_s
S_C = e^{G_C} S_0 + sum_s (e^{G_C - G_s} k_s)^T beta_s v_s
"""

from __future__ import annotations

from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import working_dtype
from recallmap.arch.kernels.recurrence.chunks import carry, chunk_for, decay_of, merge, signs, split


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None,
    beta: Tensor | None,
    sign: Tensor | None,
    scale: float,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence. `chunk` is a number of tokens; it must be a power of two where log decays are vectors."""
    dtype = working_dtype(q, k, v, log_decay, beta, initial_state)
    time = v.shape[1]
    chunk = chunk or chunk_for(time, q.shape[-1], log_decay)
    turned = signs(sign)
    values = v.to(dtype)
    for factor in (beta, turned):
        values = values if factor is None else values * factor.to(dtype)[..., None]

    q, k, v_ = (split(x, chunk, dtype) for x in (q, k, values))
    decay = decay_of(log_decay, chunk, dtype)
    o = decay.scores(q, k) @ v_
    initial = None if initial_state is None else initial_state.to(dtype)
    final = None
    if return_state or v_.shape[2] > 1:
        ahead, final = carry(decay.to_end(k).mT @ v_, decay, initial, last=return_state)
    else:
        ahead = None if initial is None else initial[:, :, None]
    if ahead is not None:
        o = o + decay.to_token(q) @ ahead
    if scale != 1:
        o = o * scale
    if turned is not None:
        o = o * split(turned, chunk, dtype)[..., None]
        final = None if final is None else final * turned[:, -1].to(dtype)[..., None, None]
    return merge(o, time, v.dtype), final
