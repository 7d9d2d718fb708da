"""The op of xLSTM's mLSTM: a matrix that fades and takes in k^T v by exponential gates, read relative to the sum of all keys.

C_t = sigmoid(f_t) C_{t-1} + e^{i_t} k_t^T v_t,    n_t = sigmoid(f_t) n_{t-1} + e^{i_t} k_t
o_t = scale q_t C_t / max(|scale q_t . n_t|, 1)
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.mlstm.recurrent import step as mlstm_step
from recallmap.arch.kernels.mlstm.state import MlstmState, start
from recallmap.arch.kernels.op_interface.input_checks import check_positive, check_qkv, expect, full_precision

__all__ = ["MlstmState", "mlstm", "mlstm_step"]

OP = "mlstm"


def mlstm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    i: Tensor,
    f: Tensor,
    scale: float | None = None,
    initial_state: MlstmState | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, MlstmState | None]:
    """Outputs [B, T, H, V] in the dtype of `v`, and with `return_state` the state behind the last token.

    q, k            [B, T, H, K], or [B, T, 1, K] where all heads share them
    v               [B, T, H, V]
    i, f            pre-activations of the input and the forget gate, any finite number: [B, T, H]
    scale           of the reads; None: K^-1/2
    initial_state   `MlstmState`; None: zero
    implementation  "auto", or one of `select.implementations("mlstm")`
    chunk           tokens a chunk; None: by length

    States are fp32, fp64 where an input is. Differentiable in q, k, v, i, f and initial_state, through outputs and state. No
    tokens (T = 0) give no outputs and the initial state. Raises ValueError on shapes that do not fit and on an implementation
    that cannot serve. Beck et al. 2024 (arXiv:2405.04517), eq. 19 to 27.
    """
    batch, time, heads, key_width, value_width = check_qkv(OP, q, k, v)
    expect(OP, "i", i, (batch, time, heads))
    expect(OP, "f", f, (batch, time, heads))
    check_positive(OP, "chunk", chunk)
    sizes = {"batch": batch, "time": time, "heads": heads, "key_width": key_width, "value_width": value_width}
    name = select.choose(
        OP, device=v.device, dtype=v.dtype, wanted=implementation, differentiable=torch.is_grad_enabled(), sizes=sizes
    )
    if initial_state is not None or time == 0:
        initial_state = start(initial_state, (batch, heads, key_width, value_width), q, k, v, i, f)
    if time == 0:
        return v, initial_state if return_state else None
    with full_precision(v.device):
        result: tuple[Tensor, MlstmState | None] = select.load(OP, name)(
            q,
            k,
            v,
            i=i,
            f=f,
            scale=key_width**-0.5 if scale is None else scale,
            initial_state=initial_state,
            return_state=return_state,
            chunk=chunk,
        )
        return result
