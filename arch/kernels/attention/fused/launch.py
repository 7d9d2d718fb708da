"""Attention's launches as one operation with a derivative: one forward, one or two backward; with gates one more each way.

B batch, T time, P tokens ahead, S = P + T keys, H heads, G heads of q and k (H or 1), K key width, V value width
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor

from recallmap.arch.kernels.attention.fused.backward import (
    attention_backward_keys_kernel,
    attention_backward_queries_kernel,
)
from recallmap.arch.kernels.attention.fused.forward import attention_forward_kernel
from recallmap.arch.kernels.attention.fused.gates import gate_gradients, gate_sums
from recallmap.arch.kernels.attention.fused.plan import MOST_QUERIES, Call, Tiles, passes
from recallmap.arch.kernels.op_interface.custom_op import dense, opaque, padded
from recallmap.arch.kernels.triton_tiles.shared_memory import stages_in_flight


def _call(q: Tensor, v: Tensor, log_decay: Tensor | None) -> Call:
    widest = max(q.shape[-1], v.shape[-1])
    return Call(q.shape[1], v.shape[1], widest, q.element_size() == 2, log_decay is not None)


def _strides(x: Tensor) -> tuple[int, int, int]:
    return x.stride(0), x.stride(1), x.stride(2) if x.shape[2] > 1 else 0


def _widths(q: Tensor, v: Tensor) -> dict[str, Any]:
    key_width, value_width = q.shape[-1], v.shape[-1]
    return {"K": key_width, "V": value_width, "BK": padded(key_width), "BV": padded(value_width)}


def _launched(tiles: Tiles, call: Call, banded: bool) -> dict[str, Any]:
    sizes = {
        "BT": tiles.queries,
        "BS": tiles.keys,
        "num_warps": tiles.warps,
        "num_stages": stages_in_flight(tiles.stages),
    }
    if tiles.registers is not None:
        sizes["maxnreg"] = tiles.registers
    return sizes | {"BANDED": banded, "LONG": not banded and call.long, "FADES": call.fades}


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    fades: Tensor | None,
    window: int,
    prefix: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """o, and for the way back L [B, H, T, padded] and C [B, H, 2, S]; nothing of C where there are no gates."""
    q, k, v = dense(q), dense(k), dense(v)
    o, lse, sums = _outputs(q, k, v, log_decay, fades, window, prefix, scale)
    if log_decay is not None and fades is not None:
        gate_sums(log_decay, fades, sums)
    call = _call(q, v, log_decay)
    tiles, heads = passes(call).forward, v.shape[2]
    attention_forward_kernel[(triton.cdiv(call.time, tiles.queries) * q.shape[0] * heads,)](
        q, k, v, sums, o, lse, *_strides(q), *_strides(k), *_strides(v), call.time, call.keys, heads, window, prefix,
        scale / math.log(2), **_widths(q, v), **_launched(tiles, call, window < call.keys),
    )  # fmt: skip
    return o, lse, sums


def _outputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    fades: Tensor | None,
    window: int,
    prefix: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, time, keys, heads = q.shape[0], q.shape[1], v.shape[1], v.shape[2]
    o = v.new_empty(batch, time, heads, v.shape[3])
    lse = q.new_empty(batch, heads, triton.cdiv(time, MOST_QUERIES) * MOST_QUERIES, dtype=torch.float32)
    return o, lse, q.new_empty(batch, heads, 2, 0 if log_decay is None else keys, dtype=torch.float32)


def _backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    fades: Tensor | None,
    window: int,
    prefix: int,
    scale: float,
    o: Tensor,
    lse: Tensor,
    sums: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    do, q, k, v = dense(do), dense(q), dense(k), dense(v)
    call = _call(q, v, log_decay)
    time, keys, heads = call.time, call.keys, v.shape[2]
    sequences, shared = q.shape[0] * heads, q.shape[2] < heads
    dq, dk, dv, d_log_decay, d_fades = _gradients(do, q, k, v, log_decay, fades, window, prefix, scale, o, lse, sums)
    if shared:  # a part a head, summed up after
        dq, dk = (q.new_empty(*x.shape[:2], heads, x.shape[3], dtype=torch.float32) for x in (dq, dk))
    dsums = sums.new_empty(sums.shape[0], heads, sums.shape[3])
    strides = (*_strides(do), *_strides(q), *_strides(k), *_strides(v))
    sizes = (*strides, time, keys, heads, window, prefix, scale / math.log(2), scale)
    _, over_queries, over_keys = passes(call)
    banded, delta, slip = window < keys, lse, lse
    if not call.whole:
        delta, slip = torch.empty_like(lse), torch.empty_like(lse)
        attention_backward_queries_kernel[(triton.cdiv(time, over_queries.queries) * sequences,)](
            do, q, k, v, sums, o.contiguous(), lse, delta, slip, dq, *sizes, **_widths(q, v),
            **_launched(over_queries, call, banded),
        )  # fmt: skip
    attention_backward_keys_kernel[(triton.cdiv(keys, over_keys.keys) * sequences,)](
        do, q, k, v, sums, lse, delta, slip, dq, dk, dv, dsums, *sizes, **_widths(q, v),
        **_launched(over_keys, call, banded), WHOLE=call.whole,
    )  # fmt: skip
    if log_decay is not None:
        gate_gradients(dsums, d_log_decay, d_fades)
    if shared:
        dq, dk = (x.sum(2, keepdim=True).to(q.dtype) for x in (dq, dk))
    return dq, dk, dv, d_log_decay, d_fades


def _gradients(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    fades: Tensor | None,
    window: int,
    prefix: int,
    scale: float,
    o: Tensor,
    lse: Tensor,
    sums: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    d_log_decay, d_fades = (q.new_empty(0) if x is None else x.new_empty(x.shape) for x in (log_decay, fades))
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), d_log_decay, d_fades


attention_op = opaque(
    "attention", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=1, reread=(0,)
)
