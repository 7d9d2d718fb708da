"""The gated scan, token by token: what every other implementation must agree with.

h_t = a_t h_{t-1} + sqrt(1 - a_t^2) sigmoid(i_t) x_t,   a_t = exp(-8 sigmoid(r_t) softplus(L)), channel by channel
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from recallmap.arch.kernels.op_interface.input_checks import expect, working_dtype
from recallmap.arch.kernels.recurrence.token_loop import loop

STRENGTH = 8.0  # of the recurrence gate
STEEPEST = 1000.0  # slope of the square root near 0, where it has none


def step(state: Tensor | None, x: Tensor, *, r: Tensor, i: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    """One token: h in the dtype of `x`, and as the next state. All are [B, ...], the rate [...]; state None: the first token.

    Raises ValueError where the state does not fit.
    """
    expect("gated_scan", "state", state, tuple(x.shape))
    dtype = working_dtype(state, x, r, i, rate)
    now, r, i, rate = (part.to(dtype) for part in (x, r, i, rate))
    if state is None:
        h = torch.sigmoid(i) * now
    else:
        log_a = log_decay(r, rate)
        h = torch.addcmul(room(log_a) * torch.sigmoid(i) * now, log_a.exp(), state.to(dtype))
    return h.to(x.dtype), h


def recurrent(
    x: Tensor,
    *,
    r: Tensor,
    i: Tensor,
    rate: Tensor,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """`step` over time; `chunk` has no meaning here."""
    h, final = loop(step, initial_state, {"x": x, "r": r, "i": i}, rate=rate)
    return h, final if return_state else None


def log_decay(r: Tensor, rate: Tensor) -> Tensor:
    """ln a"""
    return -STRENGTH * torch.sigmoid(r) * softplus(rate)


def room(log_a: Tensor) -> Tensor:
    """sqrt(1 - a^2)"""
    return bounded_root(-torch.expm1(2 * log_a))


def bounded_root(x: Tensor) -> Tensor:
    """sqrt(x) for x >= 0, with a slope of at most `STEEPEST`."""
    value = x.detach()
    slope = 0.5 * value.clamp(min=0.25 / STEEPEST**2).rsqrt()
    return value.sqrt() + slope * (x - value)
