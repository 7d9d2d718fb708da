"""Steps in a span, token by token: what every other implementation must agree with.

W_t = e^{g_t} W_{t-1} + diag(x_t) D F_t,    y_t = q_t W_t
"""

from __future__ import annotations

from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import state_or_zero
from recallmap.arch.kernels.recurrence.token_loop import loop


def step(
    state: Tensor | None, q: Tensor, x: Tensor, factor: Tensor, d: Tensor, *, log_decay: Tensor
) -> tuple[Tensor, Tensor]:
    """One token: q, x [B, H, S], factor [B, H, C, C], d [B, H, S, C], log_decay [B, H] -> y [B, H, C] in the dtype of `x`, and
    the next state; state None is zero. Raises ValueError where the state does not fit."""
    state = state_or_zero("spanned_sum", state, tuple(d.shape), q, x, factor, d, log_decay)
    dtype = state.dtype
    taken_BHSC = x.to(dtype)[..., None] * (d.to(dtype) @ factor.to(dtype))
    state = log_decay.to(dtype).exp()[..., None, None] * state + taken_BHSC
    return (q.to(dtype)[..., None, :] @ state).squeeze(-2).to(x.dtype), state


def recurrent(
    q: Tensor,
    x: Tensor,
    factor: Tensor,
    d: Tensor,
    *,
    log_decay: Tensor,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """`step` over time; `chunk` has no meaning here."""
    y, final = loop(step, initial_state, {"q": q, "x": x, "factor": factor, "log_decay": log_decay}, d=d)
    return y, final if return_state else None
