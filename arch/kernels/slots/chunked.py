"""Slots by matrix products over chunks of tokens: a chunk's tokens are read by what each slot keeps of each.

With states X, Y ahead of a chunk and w_tsm = e^{G_tm - G_sm} write_sm for s <= t:
x_tm = e^{G_tm} q_t . X_m + sum_s w_tsm q_t . k_s,   p_t = softmax(scale x_t),   o_t = (p_t e^{G_t}) Y + sum_s (p_t . w_ts) v_s

B batch, T time, H heads, N chunks, C tokens a chunk, M slots, K key width, V value width
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import working_dtype
from recallmap.arch.kernels.recurrence.chunks import carry, merge, split
from recallmap.arch.kernels.recurrence.decay import ChannelDecay, pair_decays
from recallmap.arch.kernels.slots.state import SlotsState

TOKENS = 16  # a chunk: what a slot keeps of a token is a number for every two tokens of a chunk


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    write: Tensor,
    log_decay: Tensor | None,
    scale: float,
    initial_state: SlotsState | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, SlotsState | None]:
    """The whole sequence. `chunk` is a number of tokens."""
    dtype = working_dtype(q, k, v, write, log_decay, *(initial_state or ()))
    (_, time, heads, _), key_width = v.shape, q.shape[-1]
    chunk = chunk or min(time, TOKENS)
    log_decay = torch.zeros_like(write) if log_decay is None else log_decay
    q, k, v_, write, gates = (split(x, chunk, dtype) for x in (q, k, v, write, log_decay))

    decay = ChannelDecay(gates)
    kept_BHNMCC = pair_decays(gates.mT) * write.mT[..., None, :]
    logits = ((q @ k.mT)[..., None, :, :] * kept_BHNMCC).sum(-1).mT
    both = torch.cat((k.expand(-1, heads, -1, -1, -1), v_), -1)
    initial = None if initial_state is None else torch.cat(initial_state, -1).to(dtype)
    ahead, final = None, None
    if return_state or initial is not None or v_.shape[2] > 1:
        ahead, final = carry(decay.to_end(write).mT @ both, decay, initial, last=return_state)
    if ahead is None:
        weights = (scale * logits).softmax(-1)
        o = (weights.mT[..., None] * kept_BHNMCC).sum(-3) @ v_
    else:
        keys, values = ahead[..., :key_width], ahead[..., key_width:]
        weights = (scale * (logits + decay.to_token(q @ keys.mT))).softmax(-1)
        o = (weights.mT[..., None] * kept_BHNMCC).sum(-3) @ v_ + decay.to_token(weights) @ values
    o = merge(o, time, v.dtype)
    return o, None if final is None else SlotsState(final[..., :key_width], final[..., key_width:])
