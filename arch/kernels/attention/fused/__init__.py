"""Causal softmax attention on chip: scores live in registers, keys that a block of queries cannot see are not loaded.

p_tj = exp(s_tj - L_t),   s = scale q k^T,   L_t = ln sum_j e^{s_tj}
dv = p^T do,   ds = p * (do v^T - d),   d_t = sum_j p_tj (do v^T)_tj = do_t . o_t,   dq = scale ds k,   dk = scale ds^T q

A gate that forgets adds C_t - C_j to s_tj. The softmax does not see C_t, so that only dC_j = -sum_t ds_tj is left. Where d_t
comes from an o in 16 bits, sum_j ds_tj is not quite zero; dC_t has that slip, too, without which the errors of all later tokens
would add up. dg_t is the sum of dC from t on.

Query t of T is key t + S - T of the S keys: those of the state are ahead. Where all keys fit one block, one launch gives all
three derivatives; otherwise one gives dq, block of queries by block, and one dk and dv, block of keys by block. Long sequences
without a window have a loop of their own over the tiles whose queries see all of their keys: nothing is masked there, and a
gate adds one number a key. With gates one launch ahead makes C, and one behind dg. L is kept in units of ln 2, as C is.

B batch, T time, S keys, H heads, G heads of q and k (H or 1), K key width, V value width
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from recallmap.arch.kernels.attention.fused.launch import attention_op
from recallmap.arch.kernels.attention.state import AttentionState, finish, start
from recallmap.arch.kernels.op_interface.input_checks import promoted

WIDEST = 256


def fused(
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
    """The whole sequence; `chunk` has no meaning here. Products take the widest of the dtypes of q, k, v and of a state that is
    handed in, fp32 at most."""
    past = start(
        initial_state, (*k.shape[:1], *k.shape[2:]), (*v.shape[:1], *v.shape[2:]), window, prefix, v, log_decay
    )
    if past.fades is not None:
        past = past._replace(fades=past.fades.double())  # once, for sums and for the state behind
    keys, values = (torch.cat(x, 1) if past.position else x[1] for x in ((past.keys, k), (past.values, v)))
    dtype = promoted(q, keys, values)
    dtype = torch.float32 if dtype == torch.float64 else dtype
    held = values.shape[1]
    banded = window is not None and window < held
    o, *_ = attention_op(
        q.to(dtype),
        keys.to(dtype),
        values.to(dtype),
        log_decay,
        past.fades,
        window if banded else held,
        prefix if banded else 0,
        scale,
    )
    return o.to(v.dtype), finish(past, keys, values, log_decay, window, prefix, torch.float32) if return_state else None


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call (fp64, heads wider than 256); None where it serves."""
    if dtype == torch.float64:
        return "computes in fp32 at most, got fp64"
    width = max(sizes.get("key_width", 1), sizes.get("value_width", 1))
    return f"holds heads of at most {WIDEST} channels, got {width}" if width > WIDEST else None
