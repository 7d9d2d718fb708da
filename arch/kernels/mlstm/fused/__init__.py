"""mLSTM by Triton programs: of narrow heads one each way, of wide heads or long sequences walks and tiles of their chunks.

Inside a chunk with C, n, m ahead of it and G_t the sum of ln sigmoid(f) up to token t,
b_s = i_s - G_s,   M_t = max(m, max_{s <= t} b_s),   m_t = G_t + M_t
P_ts = scale q_t . k_s e^{b_s - M_t} for s <= t,   w_t = scale e^{m - M_t}
N_t = sum_s P_ts v_s + w_t q_t C,   d_t = sum_s P_ts + w_t q_t . n,   o_t = N_t / max(|d_t|, e^{-m_t})
C_end = sum_s e^{b_s - M_end} k_s^T v_s + e^{m - M_end} C, n_end alike without v

Outputs do not depend on m: it scales N, d and e^{-m} alike. So every m is a constant under differentiation, but the last one
where it is handed out: its derivative, less what C and n lose to it, goes to the token, or the initial m, that made it.
With r = 1 / max(|d|, e^{-m}) and do the derivative of o, row t of a chunk has
d N_t = r_t do_t,   d d_t = -sign(d_t) r_t^2 do_t . N_t where |d_t| > e^{-m_t}, else 0
A_ts = r_t do_t . v_s + d d_t,   d(q_t . k_s) = scale e^{b_s - M_t} A_ts,   d b_s = sum_t P_ts A_ts + what C_end, n_end tell
and what a row gives to G_t is 0, or r_t do_t . N_t where d_t is the smaller one: proportions have no scale.

A narrow head has one program, which walks its chunks with the state in registers, and one for the derivatives. For wide heads,
and for long sequences that are few, only what a chunk has to know of others is walked. Forward: the gates, by head; then C, by
blocks of keys and values, and n; then all outputs at once, by tiles of a chunk's tokens. Backward, by tiles again: what queries
are told, and r and d d; then the walk of the derivatives of C and n; then what keys and values are told; then the gates. In
16 bits heads of 64 columns go forward as narrow ones, and backward as wide ones, from states and gates that the walk leaves.

B batch, T time, H heads, G heads of q and k (H or 1), K key width, V value width, N chunks, S tokens a chunk,
R tokens a tile; BK, BV, BS, BR blocks
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from recallmap.arch.kernels.mlstm.fused.launch import Inputs, mlstm_op
from recallmap.arch.kernels.mlstm.state import MlstmState

LARGEST_WIDTH = 256


def fused(
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
    """The whole sequence; `chunk` has no meaning here, the widths decide."""
    q, k, i, f = q.to(v.dtype), k.to(v.dtype), i.float(), f.float()
    C, n, m = (None, None, None) if initial_state is None else (x.float() for x in initial_state)
    o, *final = mlstm_op(*Inputs(q, k, v, i, f, C, n, m, scale, return_state))[:4]
    return o, MlstmState(*final) if return_state else None


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """Why it cannot serve, None where it can."""
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"computes in fp32 at most, got {dtype}"
    widest = max(sizes.get("key_width", 1), sizes.get("value_width", 1))
    if widest > LARGEST_WIDTH:
        return f"takes keys and values of up to {LARGEST_WIDTH} columns, got {widest}"
    return None
