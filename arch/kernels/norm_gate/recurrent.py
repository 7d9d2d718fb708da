"""The norm of every head and its gate, token by token: what every other implementation must agree with.

n_t = x_t / sqrt(mean(x_t^2) + eps),    y_t = n_t * w, or n_t * w * act(g_t),    act = SiLU or sigmoid
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import working_dtype
from recallmap.arch.kernels.recurrence.token_loop import loop


def step(
    state: tuple[()] | None,
    x: Tensor,
    *,
    weight: Tensor,
    gate: Tensor | None = None,
    activation: str = "silu",
    eps: float = 1e-5,
    output: torch.dtype | None = None,
) -> tuple[Tensor, tuple[()]]:
    """One token x [B, H, V]: y in its dtype or in `output`, and the state that there is not."""
    return shaped(x, weight, gate, activation, eps, output or x.dtype), ()


def recurrent(
    x: Tensor,
    *,
    weight: Tensor,
    gate: Tensor | None,
    activation: str,
    eps: float,
    output: torch.dtype,
) -> Tensor:
    """`step` over time."""
    y, _ = loop(step, (), {"x": x, "gate": gate}, weight=weight, activation=activation, eps=eps, output=output)
    return y


def shaped(x: Tensor, weight: Tensor, gate: Tensor | None, activation: str, eps: float, output: torch.dtype) -> Tensor:
    """y of x [..., H, V]."""
    dtype = working_dtype(x, weight, gate)
    wide = x.to(dtype)
    y = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.to(dtype)
    if gate is not None:
        y = y * (F.silu if activation == "silu" else torch.sigmoid)(gate.to(dtype))
    return y.to(output)
