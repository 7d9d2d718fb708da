"""The short convolution, token by token: what every other implementation must agree with.

z_t = sum_i w_i * x_{t-i} + b,    a_t = z_t or SiLU(z_t),    y_t = a_t, or a_t / sqrt(|a_t|^2 + eps) by head
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import state_or_zero
from recallmap.arch.kernels.recurrence.token_loop import loop

EPS = 1e-6  # beneath the root of a length


def step(
    state: Tensor | None,
    x: Tensor,
    *,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "identity",
    unit: bool = False,
) -> tuple[Tensor, Tensor]:
    """One token x [B, H, K]: y in its dtype and the inputs [B, taps - 1, H, K] that the next one sees; None: zeros.

    Raises ValueError where the state does not fit.
    """
    past = weight.shape[-1] - 1
    state = state_or_zero("short_conv", state, (x.shape[0], past, *x.shape[1:]), x, weight)
    seen = torch.cat([state, x[:, None].to(state.dtype)], 1)
    z = (seen.flip(1) * weight.to(seen.dtype).movedim(-1, 0)).sum(1)
    return shaped(z, bias, activation, unit).to(x.dtype), seen[:, 1:]


def recurrent(
    x: Tensor,
    *,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    unit: bool,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """`step` over time; `chunk` has no meaning here."""
    constants = {"weight": weight, "bias": bias, "activation": activation, "unit": unit}
    y, final = loop(step, initial_state, {"x": x}, **constants)
    return y, final if return_state else None


def shaped(z: Tensor, bias: Tensor | None, activation: str, unit: bool) -> Tensor:
    """The activation and the norm after the sum over taps."""
    z = z if bias is None else z + bias.to(z.dtype)
    a = F.silu(z) if activation == "silu" else z
    return a * (a.square().sum(-1, keepdim=True) + EPS).rsqrt() if unit else a
