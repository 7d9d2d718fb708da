"""mLSTM, token by token: what every other implementation must agree with.

m_t = max(ln sigmoid(f_t) + m_{t-1}, i_t)
C_t = e^{ln sigmoid(f_t) + m_{t-1} - m_t} C_{t-1} + e^{i_t - m_t} k_t^T v_t,    n_t alike with k_t
o_t = scale q_t C_t / max(|scale q_t . n_t|, e^{-m_t})

B batch, T time, H heads, G heads of q and k (H or 1), K key width, V value width
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from recallmap.arch.kernels.mlstm.state import MlstmState, in_proportion, start
from recallmap.arch.kernels.recurrence.token_loop import loop


def step(
    state: MlstmState | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    i: Tensor,
    f: Tensor,
    scale: float | None = None,
) -> tuple[Tensor, MlstmState]:
    """One token: outputs [B, H, V] and the next state.

    The shapes are those of `mlstm` without T. State None is zero. Raises ValueError where the state does not fit.
    """
    C, n, m_before = start(state, (*v.shape[:2], q.shape[-1], v.shape[-1]), q, k, v, i, f)
    q, k, v_, i, f = (x.to(C.dtype) for x in (q, k, v, i, f))
    kept = logsigmoid(f) + m_before
    m = torch.maximum(kept, i)
    fade, write = (kept - m).exp()[..., None], (i - m).exp()[..., None]
    k = k * write
    C = C * fade[..., None] + k[..., :, None] * v_[..., None, :]
    n = n * fade + k
    read = (q * (q.shape[-1] ** -0.5 if scale is None else scale))[..., None, :]
    o = in_proportion((read @ C).squeeze(-2), (read @ n[..., None]).squeeze(-1).squeeze(-1), m)
    return o.to(v.dtype), MlstmState(C, n, m)


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    i: Tensor,
    f: Tensor,
    scale: float,
    initial_state: MlstmState | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, MlstmState | None]:
    """`step` over time; `chunk` has no meaning here."""
    o, final = loop(step, initial_state, {"q": q, "k": k, "v": v, "i": i, "f": f}, scale=scale)
    return o, final if return_state else None
