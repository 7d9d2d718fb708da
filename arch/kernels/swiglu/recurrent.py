"""SwiGLU, token by token: what every other implementation must agree with.

y_t = SiLU(g_t) * v_t,   [g_t, v_t] = x_t
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import working_dtype
from recallmap.arch.kernels.recurrence.token_loop import loop


def step(state: tuple[()] | None, x: Tensor) -> tuple[Tensor, tuple[()]]:
    """One token x [B, H, 2V]: y [B, H, V] in its dtype, and the state that there is not."""
    return shaped(x), ()


def recurrent(x: Tensor) -> Tensor:
    """`step` over time."""
    y, _ = loop(step, (), {"x": x})
    return y


def shaped(x: Tensor) -> Tensor:
    """y of x [..., H, 2V]."""
    gate, value = x.to(working_dtype(x)).chunk(2, dim=-1)
    return (F.silu(gate) * value).to(x.dtype)
