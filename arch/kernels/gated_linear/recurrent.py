"""Gated linear attention, token by token: what every other implementation must agree with.

S_t = sign_t e^{g_t} S_{t-1} + beta_t k_t^T v_t,    o_t = scale q_t S_t        (e^{g_t} on the rows where g_t is a vector)

B batch, T time, H heads, G heads of q and k (H or 1), K key width, V value width
"""

from __future__ import annotations

from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import state_or_zero
from recallmap.arch.kernels.recurrence.token_loop import loop


def step(
    state: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    sign: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """One token: outputs [B, H, V] and the next state [B, H, K, V].

    The shapes are those of `gated_linear` without T: q, k [B, G, K], v [B, H, V], gates [B, H], or [B, H, K] for log_decay.
    State None is zero. Raises ValueError where the state does not fit.
    """
    state = state_or_zero("gated_linear", state, (*v.shape[:2], q.shape[-1], v.shape[-1]), q, k, v, log_decay, beta)
    q, k, v_ = (x.to(state.dtype) for x in (q, k, v))
    vector = log_decay is not None and log_decay.ndim == 3
    if log_decay is not None:
        decay = log_decay.to(state.dtype).exp()[..., None]
        state = state * (decay if vector else decay[..., None])
    if sign is not None:
        state = state * sign.to(state.dtype)[..., None, None]
    if beta is not None:
        k = k * beta.to(state.dtype)[..., None]
    state = state + k[..., :, None] * v_[..., None, :]
    if scale is None:
        scale = q.shape[-1] ** -0.5 if vector else 1.0
    return (scale * (q[..., None, :] @ state).squeeze(-2)).to(v.dtype), state


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None,
    beta: Tensor | None,
    sign: Tensor | None,
    scale: float,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """`step` over time; `chunk` has no meaning here."""
    sequences = {"q": q, "k": k, "v": v, "log_decay": log_decay, "beta": beta, "sign": sign}
    o, final = loop(step, initial_state, sequences, scale=scale)
    return o, final if return_state else None
