"""A matrix read through its retention, token by token: what every other implementation must agree with.

A_t = e^{g_t} A_{t-1} + k_t^T v_t,    y_t = q_t retention(A_t)
"""

from __future__ import annotations

from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import state_or_zero
from recallmap.arch.kernels.recurrence.token_loop import loop
from recallmap.arch.kernels.test_time.learning_rule import Retention


def step(
    state: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *, retention: Retention, log_decay: Tensor
) -> tuple[Tensor, Tensor]:
    """One token: q, k [B, H, R], v [B, H, C], log_decay [B, H] -> y [B, H, C] in the dtype of `v`, and the next state; state
    None is zero. Raises ValueError where the state does not fit."""
    state = state_or_zero("retained", state, (*k.shape, v.shape[-1]), q, k, v, log_decay)
    dtype = state.dtype
    state = log_decay.to(dtype).exp()[..., None, None] * state + k.to(dtype)[..., :, None] * v.to(dtype)[..., None, :]
    return (q.to(dtype)[..., None, :] @ retention.weights(state)).squeeze(-2).to(v.dtype), state


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    retention: Retention,
    log_decay: Tensor,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """`step` over time; `chunk` has no meaning here."""
    tokens = {"q": q, "k": k, "v": v, "log_decay": log_decay}
    y, final = loop(step, initial_state, tokens, retention=retention)
    return y, final if return_state else None
