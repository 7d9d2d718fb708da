"""The delta rule, token by token: what every other implementation must agree with.

with beta      S_t = (I - beta_t k_t^T k_t) D_t S_{t-1} + beta_t k_t^T v_t       first decay, then correct
with a and b   S_t = D_t S_{t-1} - b_t^T (a_t S_{t-1}) + k_t^T v_t               diagonal plus low rank
o_t = scale q_t S_t,   D_t = sign_t e^{g_t}, on the rows where g_t is a vector

B batch, T time, H heads, G heads of q, k, a, b (H or 1), K key width, V value width
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
    a: Tensor | None = None,
    b: Tensor | None = None,
    sign: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """One token: outputs [B, H, V] and the next state [B, H, K, V].

    The shapes are those of `delta` without T. State None is zero. Raises ValueError where the state does not fit.
    """
    shape = (*v.shape[:2], q.shape[-1], v.shape[-1])
    state = state_or_zero("delta", state, shape, q, k, v, log_decay, beta, a, b)
    dtype = state.dtype
    q, k, v_ = (x.to(dtype) for x in (q, k, v))
    before = state
    if log_decay is not None:
        decay = log_decay.to(dtype).exp()[..., None]
        state = state * (decay if log_decay.ndim == 3 else decay[..., None])
    if sign is not None:
        state = state * sign.to(dtype)[..., None, None]
    if a is not None and b is not None:
        read = a.to(dtype)[..., None, :] @ before
        state = state - b.to(dtype)[..., :, None] * read + k[..., :, None] * v_[..., None, :]
    else:
        error = v_[..., None, :] - k[..., None, :] @ state
        if beta is not None:
            error = error * beta.to(dtype)[..., None, None]
        state = state + k[..., :, None] * error
    o = (q[..., None, :] @ state).squeeze(-2)
    return (o if scale is None else o * scale).to(v.dtype), state


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None,
    beta: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    sign: Tensor | None,
    scale: float,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """`step` over time; `chunk` has no meaning here."""
    sequences = {"q": q, "k": k, "v": v, "log_decay": log_decay, "beta": beta, "a": a, "b": b, "sign": sign}
    o, final = loop(step, initial_state, sequences, scale=scale)
    return o, final if return_state else None
