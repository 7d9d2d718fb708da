"""mLSTM as gated linear attention, once its stabiliser is known.

m_t = G_t + max(m_0, max_{s <= t}(i_s - G_s)) with G_t the sum of ln sigmoid(f) up to token t. Given m, C fades by
ln sigmoid(f_t) + m_{t-1} - m_t <= 0 and is written with strength e^{i_t - m_t} <= 1; n is what it holds of a value that is
always 1.

B batch, T time, H heads, K key width, V value width
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from recallmap.arch.kernels.gated_linear.chunked import chunked as gated_linear
from recallmap.arch.kernels.mlstm.state import MlstmState, in_proportion
from recallmap.arch.kernels.op_interface.input_checks import working_dtype


def chunked(
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
    """The whole sequence. `chunk` is a number of tokens."""
    dtype = working_dtype(q, k, v, i, f, *(initial_state or ()))
    # Sums over the whole sequence and differences between them: in float64, which is cheap for one number a head.
    i_BTH, g_BTH = i.double(), logsigmoid(f.to(dtype)).double()
    m_0 = torch.zeros_like(i_BTH[:, 0]) if initial_state is None else initial_state.m.double()
    until = g_BTH.cumsum(1)
    m_BTH = _stabiliser(i_BTH - until, until, m_0).to(dtype)
    exact = m_BTH.double()
    before = torch.cat((m_0[:, None], exact[:, :-1]), 1)
    memory = None if initial_state is None else torch.cat((initial_state.C, initial_state.n[..., None]), -1)
    o_BTHW, final = gated_linear(
        q,
        k,
        pad(v.to(dtype), (0, 1), value=1.0),
        log_decay=(g_BTH + before - exact).to(dtype),
        beta=(i_BTH - exact).to(dtype).exp(),
        sign=None,
        scale=scale,
        initial_state=memory,
        return_state=return_state,
        chunk=chunk,
    )
    o_BTHV = in_proportion(o_BTHW[..., :-1], o_BTHW[..., -1], m_BTH).to(v.dtype)
    if final is None:
        return o_BTHV, None
    # Every m but the last cancels out, and so do their derivatives: the last alone is differentiated.
    m_BH = until[:, -1] + torch.maximum((i_BTH - until).amax(1), m_0)
    final = final * (exact[:, -1] - m_BH).to(dtype).exp()[..., None, None]
    return o_BTHV, MlstmState(final[..., :-1], final[..., -1], m_BH.to(dtype))


@torch.no_grad()
def _stabiliser(ahead_BTH: Tensor, until_BTH: Tensor, m_0: Tensor) -> Tensor:
    """m at every token, from i_t - G_t, G_t and the m before the first token."""
    return until_BTH + torch.maximum(ahead_BTH.cummax(1).values, m_0[:, None])
