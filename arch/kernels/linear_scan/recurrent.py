"""The linear scan, token by token: what every other implementation must agree with.

h_t = e^{g_t} h_{t-1} + x_t, channel by channel
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import state_or_zero
from recallmap.arch.kernels.recurrence.token_loop import loop


def step(state: Tensor | None, x: Tensor, *, log_a: Tensor) -> tuple[Tensor, Tensor]:
    """One token: h in the dtype of `x`, and as the next state. All are [B, ...]; state None is zero.

    Raises ValueError where the state does not fit.
    """
    state = state_or_zero("linear_scan", state, tuple(x.shape), x, log_a)
    state = torch.addcmul(x.to(state.dtype), log_a.to(state.dtype).exp(), state)
    return state.to(x.dtype), state


def recurrent(
    x: Tensor, *, log_a: Tensor, initial_state: Tensor | None, return_state: bool, chunk: int | None
) -> tuple[Tensor, Tensor | None]:
    """`step` over time; `chunk` has no meaning here."""
    h, final = loop(step, initial_state, {"x": x, "log_a": log_a})
    return h, final if return_state else None
