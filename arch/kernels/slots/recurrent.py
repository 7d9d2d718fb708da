"""Slots, token by token: what every other implementation must agree with.

X_t = diag(e^{g_t}) X_{t-1} + s_t^T k_t,   Y_t = diag(e^{g_t}) Y_{t-1} + s_t^T v_t,   o_t = softmax(scale q_t X_t^T) Y_t

B batch, T time, H heads, G heads of q and k (H or 1), M slots, K key width, V value width
"""

from __future__ import annotations

from torch import Tensor

from recallmap.arch.kernels.recurrence.token_loop import loop
from recallmap.arch.kernels.slots.state import SlotsState, start


def step(
    state: SlotsState | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    write: Tensor,
    log_decay: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, SlotsState]:
    """One token: outputs [B, H, V] and the next state.

    The shapes are those of `slots` without T: q, k [B, G, K], v [B, H, V], write and log_decay [B, H, M]. State None is zero.
    Raises ValueError where the state does not fit.
    """
    keys, values = start(state, (*write.shape, q.shape[-1]), (*write.shape, v.shape[-1]), q, k, v, write, log_decay)
    q, k, v_, write = (x.to(keys.dtype) for x in (q, k, v, write))
    if log_decay is not None:
        fade = log_decay.to(keys.dtype).exp()[..., None]
        keys, values = keys * fade, values * fade
    keys = keys + write[..., None] * k[..., None, :]
    values = values + write[..., None] * v_[..., None, :]
    weights = ((1.0 if scale is None else scale) * (keys @ q[..., None]).squeeze(-1)).softmax(-1)
    return (weights[..., None, :] @ values).squeeze(-2).to(v.dtype), SlotsState(keys, values)


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    write: Tensor,
    log_decay: Tensor | None,
    scale: float,
    initial_state: SlotsState | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, SlotsState | None]:
    """`step` over time; `chunk` has no meaning here."""
    sequences = {"q": q, "k": k, "v": v, "write": write, "log_decay": log_decay}
    o, final = loop(step, initial_state, sequences, scale=scale)
    return o, final if return_state else None
