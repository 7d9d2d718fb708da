"""Log-linear attention, token by token: what every other implementation must agree with.

S_t^l fade by e^{g_t};   o_t = scale (c_t0 (q_t . k_t) beta_t v_t + sum_l c_tl q_t S_t^l);   then k_t^T beta_t v_t is counted in

B batch, T time, H heads, G heads of q and k (H or 1), L levels, K key width, V value width
"""

from __future__ import annotations

from torch import Tensor

from recallmap.arch.kernels.log_linear.state import LogLinearState, counted, start
from recallmap.arch.kernels.recurrence.token_loop import loop


def step(
    state: LogLinearState | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    levels: Tensor,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, LogLinearState]:
    """One token: outputs [B, H, V] and the next state.

    The shapes are those of `log_linear` without T: q, k [B, G, K], v [B, H, V], levels [B, H, L], gates [B, H]. State None is
    empty. Raises ValueError where the state does not fit.
    """
    shape = (*levels.shape[:2], levels.shape[-1] - 1, q.shape[-1], v.shape[-1])
    buckets, time = start(state, shape, q, k, v, levels, log_decay, beta)
    q, k, v_, levels = (x.to(buckets.dtype) for x in (q, k, v, levels))
    if log_decay is not None:
        buckets = buckets * log_decay.to(buckets.dtype).exp()[..., None, None, None]
    if beta is not None:
        v_ = v_ * beta.to(buckets.dtype)[..., None]
    read = (q[:, :, None, None] @ buckets).squeeze(-2)
    o = levels[..., :1] * (q * k).sum(-1, keepdim=True) * v_ + (levels[..., 1:, None] * read).sum(-2)
    written = k[..., :, None] * v_[..., None, :]
    return (o * (1.0 if scale is None else scale)).to(v.dtype), LogLinearState(
        counted(buckets, written, time, 0), time + 1
    )


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    levels: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    scale: float,
    initial_state: LogLinearState | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, LogLinearState | None]:
    """`step` over time; `chunk` has no meaning here."""
    sequences = {"q": q, "k": k, "v": v, "levels": levels, "log_decay": log_decay, "beta": beta}
    o, final = loop(step, initial_state, sequences, scale=scale)
    return o, final if return_state else None
