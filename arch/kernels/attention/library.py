"""Causal softmax attention by torch's own kernels (`scaled_dot_product_attention`): for wide heads over long sequences, where
they are faster than ours.

Where all earlier tokens are seen alike, torch takes its fastest kernel. A window, a prefix, a gate or an earlier state become a
bias of the scores, for which it holds all of them.

B batch, T time, S keys, H heads, K key width, V value width
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from recallmap.arch.kernels.attention.state import AttentionState, finish, kept, start, sums
from recallmap.arch.kernels.op_interface.input_checks import promoted, working_dtype

# Where torch's kernels serve unasked. At 2,048 tokens and 128 channels they took 84 us forward and 334 with the derivatives,
# ours 115 and 452; at 256 tokens and 64 channels ours are faster (L1 and S4 in results/records/kernels_h200.csv).
WIDER_THAN = 64  # channels of a head
SHORTEST = 1024  # tokens


def faster(*, device: torch.device, dtype: torch.dtype, sizes: Mapping[str, int]) -> bool:
    """True where "auto" takes these kernels ahead of ours."""
    widths = sizes.get("key_width", 0), sizes.get("value_width", 0)
    return (
        device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and bool(sizes.get("whole"))
        and widths[0] == widths[1] > WIDER_THAN
        and sizes.get("time", 0) >= SHORTEST
    )


def library(
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
    """The whole sequence; `chunk` has no meaning here. Products take the widest of the dtypes of q, k, v and of a state."""
    past = start(
        initial_state, (*k.shape[:1], *k.shape[2:]), (*v.shape[:1], *v.shape[2:]), window, prefix, v, log_decay
    )
    keys, values = (torch.cat(x, 1) if past.position else x[1] for x in ((past.keys, k), (past.values, v)))
    sums_BSH = None if log_decay is None else sums(past, log_decay)
    dtype, heads, bias = promoted(q, keys, values), v.shape[2], None
    if sums_BSH is not None:
        dtype = promoted(q, keys, values, sums_BSH.float())  # 16 bits cannot hold the gates of many tokens
    if past.position or sums_BSH is not None or (window is not None and window < v.shape[1]):
        bias = _bias(past.position, v.shape[1], window, prefix, sums_BSH, v.device).to(dtype)
    q_BHTK, keys_BHSK, values_BHSV = (x.to(dtype).expand(-1, -1, heads, -1).transpose(1, 2) for x in (q, keys, values))
    o_BHTV = F.scaled_dot_product_attention(
        q_BHTK,
        keys_BHSK,
        values_BHSV,
        attn_mask=bias,
        is_causal=bias is None,
        scale=scale,
    )
    o = o_BHTV.transpose(1, 2).to(v.dtype)
    if not return_state:
        return o, None
    return o, finish(past, keys, values, log_decay, sums_BSH, window, prefix, working_dtype(q, k, v, log_decay))


def _bias(
    position: int, time: int, window: int | None, prefix: int, sums_BSH: Tensor | None, device: torch.device
) -> Tensor:
    """What is added to scores after `position` tokens: [T, S], with gates [B, H, T, S]; -inf where a query sees no key."""
    query_T1 = torch.arange(position, position + time, device=device)[:, None]
    key_S = torch.tensor([*kept(position, window, prefix), *range(position, position + time)], device=device)
    seen_TS = key_S <= query_T1
    if window is not None:
        seen_TS = seen_TS & ((key_S > query_T1 - window) | (key_S < prefix))
    if sums_BSH is None:
        return torch.zeros(seen_TS.shape, device=device).masked_fill(~seen_TS, -math.inf)
    sums_BHS = sums_BSH.mT
    return (sums_BHS[..., -time:, None] - sums_BHS[..., None, :]).masked_fill(~seen_TS, -math.inf)
