"""The selective scan, token by token: what every other implementation must agree with.

h_t = a_t * h_{t-1} + s_t v_t k_t,   o_t = q_t . h_t   a channel each, a_t = e^{-s_t A}, A a row of its own, or 1 - s_t k_t^2

B batch, T time, H heads, G heads of q and k (H or 1), V channels of a head, N state width (of a channel)
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import state_or_zero
from recallmap.arch.kernels.recurrence.token_loop import loop

LEAST_LOG_DECAY = -30.0  # erases to 1e-13
MOST_ERASED = 1 - 1e-6  # of an entry at once: its log must stay finite


def step(
    state: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *, step: Tensor, rate: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One token: outputs [B, H, V] in the dtype of `v`, and the next state [B, H, V, N].

    The shapes are those of `selective_scan` without T: q, k [B, G, N], v and step [B, H, V]. State None is zero. Raises
    ValueError where the state does not fit.
    """
    state = state_or_zero("selective_scan", state, (*v.shape, q.shape[-1]), q, k, v, step, rate)
    q, k, v_, step = (x.to(state.dtype) for x in (q, k, v, step))
    state = log_decay(k, step, rate).exp() * state + (step * v_)[..., None] * k[..., None, :]
    return (state @ q[..., None]).squeeze(-1).to(v.dtype), state


_token = step  # `recurrent` has an argument of that name


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    step: Tensor,
    rate: Tensor | None,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """`step` over time; `chunk` has no meaning here."""
    o, final = loop(_token, initial_state, {"q": q, "k": k, "v": v, "step": step}, rate=rate)
    return o, final if return_state else None


def log_decay(k: Tensor, step: Tensor, rate: Tensor | None) -> Tensor:
    """ln a [..., H, V, N] of keys [..., G, N] and steps [..., H, V]."""
    if rate is not None:
        return (-rate.to(step.dtype) * step[..., None]).clamp(min=LEAST_LOG_DECAY)
    return torch.log1p(-(step[..., None] * k.square()[..., None, :]).clamp(max=MOST_ERASED))
