"""Causal softmax attention by matrix products over blocks of queries; keys that a block cannot see are left out.

B batch, T time, H heads, G heads of q and k (H or 1), S keys, C queries a block, K key width, V value width
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.attention.state import AttentionState, finish, hidden, kept, start, sums
from recallmap.arch.kernels.op_interface.input_checks import working_dtype


def chunked(
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
    """The whole sequence, `chunk` queries at a time."""
    time = v.shape[1]
    dtype = working_dtype(q, k, v, log_decay)
    past = start(
        initial_state, (*k.shape[:1], *k.shape[2:]), (*v.shape[:1], *v.shape[2:]), window, prefix, v, log_decay
    )
    keys, values = torch.cat((past.keys, k), 1), torch.cat((past.values, v), 1)
    positions = [*kept(past.position, window, prefix), *range(past.position, past.position + time)]
    q_BGTK = q.to(dtype).transpose(1, 2) * scale
    keys_BGKS = keys.to(dtype).permute(0, 2, 3, 1)
    values_BHSV = values.to(dtype).transpose(1, 2)
    sums_BSH = None if log_decay is None else sums(past, log_decay)
    sums_BHS = None if sums_BSH is None else sums_BSH.mT

    size = chunk or (32 if window is not None and window < 64 else 64)
    outputs = []
    for begin in range(0, time, size):
        end = min(begin + size, time)
        oldest = 0 if window is None else past.position + begin - window + 1
        first = _older(positions, prefix)
        low, high = _older(positions, oldest), len(positions) - time + end
        spans = [(0 if prefix else low, high)] if low <= first else [(0, first), (low, high)]
        seen_keys, seen_values = _pick(keys_BGKS, spans, 3), _pick(values_BHSV, spans, 2)
        seen = [p for a, b in spans for p in positions[a:b]]
        unseen = hidden(range(past.position + begin, past.position + end), seen, window, prefix, q_BGTK)
        scores = q_BGTK[:, :, begin:end] @ seen_keys
        if sums_BHS is not None:
            of_queries = sums_BHS[..., len(positions) - time + begin : high, None]
            scores = scores + (of_queries - _pick(sums_BHS, spans, 2)[..., None, :]).to(dtype)
        weights = (scores + unseen).softmax(-1)
        outputs.append(weights @ seen_values)
    o_BHTV = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)
    o = o_BHTV.transpose(1, 2).to(v.dtype)
    if not return_state:
        return o, None
    return o, finish(past, keys, values, log_decay, window, prefix, dtype)


def _older(positions: list[int], limit: int) -> int:
    """The number of ascending positions before `limit`."""
    return sum(1 for position in positions if position < limit)


def _pick(x: Tensor, spans: list[tuple[int, int]], dim: int) -> Tensor:
    parts = [x.narrow(dim, low, high - low) for low, high in spans if high > low]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)
