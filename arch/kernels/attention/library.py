"""Causal softmax attention by torch's own kernels (`scaled_dot_product_attention`): for wide heads over long sequences, where
they are faster than ours.

Where all earlier tokens are seen alike, torch takes its fastest kernel. A window, a prefix, a gate or an earlier state become a
bias of the scores, for which it holds all of them. Members of a cohort fold into the batch before torch sees them: under
torch's own vmap, the kernel that it prefers on Hopper (cuDNN's) gives wrong derivatives without a word (torch 2.11).

B batch, T time, S keys, H heads, K key width, V value width
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from recallmap.arch.kernels.attention.state import AttentionState, finish, hidden, kept, start, sums
from recallmap.arch.kernels.op_interface.input_checks import promoted, working_dtype

# Where torch's kernels serve unasked. At 2,048 tokens and 128 channels they took 84 us forward and 334 with the derivatives,
# ours 101 and 403; at 256 tokens and 64 channels ours are faster (L1 and S4 in results/records/kernels_h200.csv).
NARROWEST = 128  # channels of a head
SHORTEST = 2048  # tokens


def faster(*, device: torch.device, dtype: torch.dtype, sizes: Mapping[str, int]) -> bool:
    """True where "auto" takes these kernels ahead of ours."""
    widths = sizes.get("key_width", 0), sizes.get("value_width", 0)
    return (
        device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and bool(sizes.get("whole"))
        and widths[0] == widths[1] >= NARROWEST
        and sizes.get("time", 0) >= SHORTEST
    )


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None, scale=scale)


def _folded(
    info: Any, in_dims: Sequence[int | None], q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float
) -> tuple[Tensor, int]:
    """The rule that gives members of vmap to the batch. A bias of two axes is every member's."""

    def fold(x: Tensor, dim: int | None) -> Tensor:
        stacked = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        return stacked.flatten(0, 1)

    if bias is not None and (in_dims[3] is not None or bias.dim() > 2):
        bias = fold(bias, in_dims[3])
    o = torch.ops.recallmap.dot_product_attention(
        *(fold(x, dim) for x, dim in zip((q, k, v), in_dims, strict=False)), bias, scale
    )
    return o.unflatten(0, (info.batch_size, -1)), 0


_OPS = torch.library.Library("recallmap", "FRAGMENT")
_OPS.define("dot_product_attention(Tensor q, Tensor k, Tensor v, Tensor? bias, float scale) -> Tensor")
_OPS.impl("dot_product_attention", _attend, "CompositeImplicitAutograd")
torch.library.register_vmap("recallmap::dot_product_attention", _folded, lib=_OPS)


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
        bias = _bias(past.position, v.shape[1], window, prefix, sums_BSH, q).to(dtype)
    q_BHTK, keys_BHSK, values_BHSV = (x.to(dtype).expand(-1, -1, heads, -1).transpose(1, 2) for x in (q, keys, values))
    o_BHTV = torch.ops.recallmap.dot_product_attention(q_BHTK, keys_BHSK, values_BHSV, bias, scale)
    o = o_BHTV.transpose(1, 2).to(v.dtype)
    if not return_state:
        return o, None
    return o, finish(past, keys, values, log_decay, window, prefix, working_dtype(q, k, v, log_decay))


def _bias(position: int, time: int, window: int | None, prefix: int, sums_BSH: Tensor | None, like: Tensor) -> Tensor:
    """What is added to scores after `position` tokens: [T, S], with gates [B, H, T, S]; -inf where a query sees no key."""
    queries = range(position, position + time)
    hidden_TS = hidden(queries, [*kept(position, window, prefix), *queries], window, prefix, like)
    if sums_BSH is None:
        return hidden_TS
    sums_BHS = sums_BSH.mT
    return sums_BHS[..., -time:, None] - sums_BHS[..., None, :] + hidden_TS
