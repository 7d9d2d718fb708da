"""The op of attention: causal softmax over all tokens so far, over the last `window`, over a prefix that stays in sight; with
a gate that forgets, what is farther back weighs less.

o_t = sum_j softmax_j(scale q_t . k_j + sum_{r=j+1..t} g_r) v_j over the j <= t with j > t - window or j < prefix
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.attention.recurrent import step as attention_step
from recallmap.arch.kernels.attention.state import AttentionState, start
from recallmap.arch.kernels.op_interface.input_checks import (
    check_positive,
    check_qkv,
    everywhere,
    expect,
    full_precision,
)

__all__ = ["AttentionState", "attention", "attention_step"]

OP = "attention"


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    window: int | None = None,
    prefix: int = 0,
    scale: float | None = None,
    initial_state: AttentionState | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, AttentionState | None]:
    """Outputs [B, T, H, V] in the dtype of `v`, and with `return_state` the keys and values that later tokens may see.

    q, k            [B, T, H, K], or [B, T, 1, K] where all heads share them
    v               [B, T, H, V]
    log_decay       g, ln of the forget gate, finite and <= 0: [B, T, H], or a constant [H]; None: 0. It is not scaled
    window          tokens in sight, the token itself included; None: all
    prefix          that many tokens at the very beginning stay in sight whatever the window
    scale           of the scores; None: K^-1/2
    initial_state   of an earlier call with the same window and prefix, and log_decay if there is any; None: these are the
                    first tokens
    implementation  "auto", or one of `select.implementations("attention")`
    chunk           queries a block; None: by length

    Scores and softmax are fp32, fp64 where an input is; the state holds keys and values as they came. Differentiable in q, k,
    v, log_decay and the state's tensors. No tokens (T = 0) give no outputs and the state as it was. Raises ValueError on
    shapes, sizes or a state that do not fit and on an implementation that cannot serve. The gate is that of Lin et al. 2025
    (arXiv:2503.02130).
    """
    batch, time, heads, key_width, value_width = check_qkv(OP, q, k, v)
    log_decay = everywhere(log_decay, batch, time)
    expect(OP, "log_decay", log_decay, (batch, time, heads))
    check_positive(OP, "window", window)
    check_positive(OP, "chunk", chunk)
    if prefix < 0:
        raise ValueError(f"{OP}: prefix must be at least 0, got {prefix}")
    sizes = {"batch": batch, "time": time, "heads": heads, "key_width": key_width, "value_width": value_width}
    # All tokens see all earlier ones alike.
    sizes["whole"] = int(log_decay is None and initial_state is None and (window is None or window >= time))
    name = select.choose(
        OP, device=v.device, dtype=v.dtype, wanted=implementation, differentiable=torch.is_grad_enabled(), sizes=sizes
    )
    if time == 0:
        keys = (batch, k.shape[2], key_width)
        values = (batch, heads, value_width)
        return v, start(initial_state, keys, values, window, prefix, v, log_decay) if return_state else None
    with full_precision(v.device):
        result: tuple[Tensor, AttentionState | None] = select.load(OP, name)(
            q,
            k,
            v,
            log_decay=log_decay,
            window=window,
            prefix=prefix,
            scale=key_width**-0.5 if scale is None else scale,
            initial_state=initial_state,
            return_state=return_state,
            chunk=chunk,
        )
        return result
