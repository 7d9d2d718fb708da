"""The op of PaTH attention: softmax over keys that every later token reflects, with a gate that forgets if there is one.

k_j <- k_j (I - beta_t w_t^T w_t) for all j < t, at every t;   o_t = sum_j softmax_j(scale q_t . k_j + sum_{r=j+1..t} g_r) v_j
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.op_interface.input_checks import (
    check_positive,
    check_qkv,
    expect,
    full_precision,
    working_dtype,
)
from recallmap.arch.kernels.path.recurrent import step as path_step
from recallmap.arch.kernels.path.state import PathState, start

__all__ = ["PathState", "path", "path_step"]

OP = "path"


def path(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    w: Tensor,
    beta: Tensor,
    log_decay: Tensor | None = None,
    scale: float | None = None,
    initial_state: PathState | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, PathState | None]:
    """Outputs [B, T, H, V] in the dtype of `v`, and with `return_state` the keys and values so far.

    q, k, w         [B, T, H, K]; w of length 1
    v               [B, T, H, V]
    beta            [B, T, H] in [0, 2]: 0 leaves earlier keys as they are, 1 takes their part along w off, 2 mirrors it
    log_decay       g, ln of the forget gate, finite and <= 0: [B, T, H]; None: 0. It is not scaled
    scale           of the scores; None: K^-1/2
    initial_state   `PathState` of an earlier call with log_decay if this one has it; None: these are the first tokens
    implementation  "auto", or one of `select.implementations("path")`
    chunk           tokens a chunk; None: 32

    Reflections, scores and softmax are fp32, fp64 where an input is. Differentiable in q, k, v, w, beta, log_decay and the
    state's tensors. No tokens (T = 0) give no outputs and the initial state. Raises ValueError on shapes that do not fit and on
    an implementation that cannot serve. Yang et al. 2025 (arXiv:2505.16381).
    """
    batch, time, heads, key_width, value_width = check_qkv(OP, q, k, v)
    for name, x in (("q", q), ("w", w)):
        expect(OP, name, x, (batch, time, heads, key_width))
    expect(OP, "beta", beta, (batch, time, heads))
    expect(OP, "log_decay", log_decay, (batch, time, heads))
    check_positive(OP, "chunk", chunk)
    sizes = {"batch": batch, "time": time, "heads": heads, "key_width": key_width, "value_width": value_width}
    name = select.choose(
        OP, device=v.device, dtype=v.dtype, wanted=implementation, differentiable=torch.is_grad_enabled(), sizes=sizes
    )
    if time == 0:
        shapes = (batch, heads, key_width), (batch, heads, value_width)
        dtype = working_dtype(q, k, v, w, beta, log_decay)
        return v, start(initial_state, *shapes, v, log_decay, dtype) if return_state else None
    with full_precision(v.device):
        result: tuple[Tensor, PathState | None] = select.load(OP, name)(
            q,
            k,
            v,
            w=w,
            beta=beta,
            log_decay=log_decay,
            scale=key_width**-0.5 if scale is None else scale,
            initial_state=initial_state,
            return_state=return_state,
            chunk=chunk,
        )
        return result
