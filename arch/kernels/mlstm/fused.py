"""mLSTM by Triton programs that walk the chunks of a sequence with the state in registers.

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

Narrow heads have one program a head and direction. Wide ones split the value columns in the forward walk and in the walk of
the state's derivative; all the rest of their backward goes by chunks in parallel.

B batch, T time, H heads, G heads of q and k (H or 1), K key width, V value width, N chunks, S tokens a chunk; BK, BV, BS blocks
"""

# mypy: disable-error-code="no-untyped-def"
# A kernel's arguments have no types of Python's.

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from arch.kernels.mlstm.state import LARGEST_EXPONENT, MlstmState
from arch.kernels.op_interface.custom_op import dense, opaque, padded

LARGEST_WIDTH = 256
WIDEST_RESIDENT = 64  # beyond it a state and its derivative do not fit the registers of one program
LONGEST_RESIDENT = 256  # tokens that are not worth more than one launch
FEWEST_PROGRAMS = 128  # about one for every multiprocessor
MANY_PROGRAMS = 512  # from where on they share one

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
NEVER = tl.constexpr(-1e30)
LOWEST = tl.constexpr(-1000.0)  # ln of a decay that is nothing in any precision; sums of it still have digits
LIMIT = tl.constexpr(LARGEST_EXPONENT)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def _of(x, strides, sequence, H):
    """x from a head of a sequence on."""
    return x + (sequence // H) * strides[0] + (sequence % H) * strides[2]


@triton.jit
def _tile(x, rows, time, stride, columns, width):
    """x [T, width] at rows and columns, zero beyond both."""
    there = (rows < time)[:, None] & (columns < width)[None, :]
    return tl.load(x + rows[:, None] * stride + columns[None, :], mask=there, other=0.0)


@triton.jit
def _turned(x, rows, time, stride, columns, width):
    """`_tile`, transposed where it is loaded: a product's operand must not be a transposed product."""
    there = (columns < width)[:, None] & (rows < time)[None, :]
    return tl.load(x + columns[:, None] + rows[None, :] * stride, mask=there, other=0.0)


@triton.jit
def _put(x, values, rows, time, stride, columns, width):
    there = (rows < time)[:, None] & (columns < width)[None, :]
    tl.store(x + rows[:, None] * stride + columns[None, :], values.to(x.dtype.element_ty), mask=there)


@triton.jit
def _forget(f):
    """ln sigmoid(f), and its derivative."""
    small = tl.exp(-tl.abs(f))
    u = small / (2.0 + small)  # ln(1 + small) = 2 artanh(u): it keeps the digits of a decay next to 1
    x = u * u
    series = 1.0 + x * (1 / 3 + x * (1 / 5 + x * (1 / 7 + x * (1 / 9 + x * (1 / 11 + x * (1 / 13 + x * (1 / 15)))))))
    slope = tl.where(f > 0, small, 1.0) / (1.0 + small)
    return tl.maximum(tl.minimum(f, 0.0) - 2.0 * u * series, LOWEST), slope


@triton.jit
def _parts(x, EXACT: tl.constexpr):
    """An fp64 vector as fp32, and what that leaves out where it counts."""
    high = x.to(tl.float32)
    return high, (x - high).to(tl.float32) if EXACT else high


@triton.jit
def _gates(i, f, t, T, i_stride, f_stride, m, EXACT: tl.constexpr):
    """b and M [S], powers of 2 in `_parts`; m_t [S]; e^(m - M), e^(b - M_end) [S], e^(m - M_end), m_end; by whom, and slope.

    made_by  the token that the m behind the chunk comes from, -1 where it comes from the m ahead
    slope    [S], the derivative of ln sigmoid(f)
    EXACT: in fp64, because sums over a chunk are differences of large numbers. A token that is not there writes nothing.
    """
    there = t < T
    wide: tl.constexpr = tl.float64 if EXACT else tl.float32
    log_decay, slope = _forget(tl.load(f + t * f_stride, mask=there, other=0.0).to(tl.float32))
    g = tl.where(there, log_decay, 0.0).to(wide) * LOG2E
    until = tl.cumsum(g, 0)
    b = tl.load(i + t * i_stride, mask=there, other=NEVER).to(wide) * LOG2E - until
    before = m.to(wide) * LOG2E
    top = tl.maximum(tl.associative_scan(b, 0, _larger), before)
    m_t = ((until + top) * LN2).to(tl.float32)
    whole, largest = tl.sum(g, 0), tl.max(b, 0)
    m_end = ((whole + tl.maximum(largest, before)) * LN2).to(tl.float32)
    end = m_end.to(wide) * LOG2E - whole  # of the m that the next chunk really has
    first = tl.min(tl.where(b == largest, t, T), 0)
    made_by = tl.where(before >= largest, -1, first)
    high_b, low_b = _parts(b, EXACT)
    high_top, low_top = _parts(top, EXACT)
    return (
        (high_b, low_b),
        (high_top, low_top),
        m_t,
        tl.exp2((before - top).to(tl.float32)),
        tl.exp2((b - end).to(tl.float32)),
        tl.exp2((before - end).to(tl.float32)),
        m_end,
        made_by,
        slope,
    )


@triton.jit
def _fading(b, top, seen, EXACT: tl.constexpr):
    """e^(b_s - M_t) [t, s] of the pairs that are seen."""
    power = b[0][None, :] - top[0][:, None]
    if EXACT:
        power += b[1][None, :] - top[1][:, None]
    return tl.exp2(tl.where(seen, power, -10000.0))


@triton.jit
def _fading_turned(b, top, seen, EXACT: tl.constexpr):
    """e^(b_s - M_t) [s, t]."""
    power = b[0][:, None] - top[0][None, :]
    if EXACT:
        power += b[1][:, None] - top[1][None, :]
    return tl.exp2(tl.where(seen, power, -10000.0))


@triton.jit
def _lost(x, like):
    """What 16 bits leave out of an fp32 operand: results may be what is left of larger numbers, over a normaliser near 1."""
    return (x - x.to(like.dtype).to(tl.float32)).to(like.dtype)


@triton.jit
def _floor(m_t):
    return tl.exp(tl.minimum(tl.maximum(-m_t, -LIMIT), LIMIT))


@triton.jit
def _row_derivatives(d, along, m_t, scale):
    """scale times r and times the derivative of d, and what a row gives to G_t, of d and do . N / scale."""
    floor = _floor(m_t)
    r = scale / tl.maximum(tl.abs(d), floor)
    live = tl.abs(d) > floor
    by_d = tl.where(live, tl.where(d > 0, -along, along) * r * r, 0.0)
    return r, by_d, tl.where(live, 0.0, along * r)


@triton.jit
def _put_gate_derivatives(di, df, t, T, H, slope, made_by, row, column, final, through, mu):
    """Stores them; mu is the derivative of the m behind the chunk.

    A decay counts wherever it lies between two tokens, hence sums from it on of `row - column` and up to it of `final`.
    """
    by_g = tl.cumsum(row - column, 0, reverse=True) + (tl.cumsum(final, 0) - final) + through
    by_g += tl.where(t > made_by, mu, 0.0)
    by_i = column + final + tl.where(t == made_by, mu, 0.0)
    tl.store(df + t * H, by_g * slope, mask=t < T)
    tl.store(di + t * H, by_i, mask=t < T)


@triton.jit(do_not_specialize=["T", "H", "N"])
def _forward_kernel(
    q, k, v, i, f, C_first, n_first, m_first, o, C_last, n_last, m_last, C_ahead, n_ahead, m_ahead,
    q_strides, k_strides, v_strides, i_strides, f_strides, scale, T, H, N,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BS: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Outputs, and the states ahead of every chunk, which are not written where they are known to be zero."""
    sequence, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = (sequence // H) * T * H + sequence % H
    q, k, v = _of(q, q_strides, sequence, H), _of(k, k_strides, sequence, H), _of(v, v_strides, sequence, H)
    i, f, o = _of(i, i_strides, sequence, H), _of(f, f_strides, sequence, H), o + start * V
    at, of_k, of_v = tl.arange(0, BS), tl.arange(0, BK), part * BV + tl.arange(0, BV)
    states = N + 1 if LAST else N
    C_ahead, n_ahead, m_ahead = (
        C_ahead + sequence * states * K * V,
        n_ahead + sequence * states * K,
        m_ahead + sequence * states,
    )
    if FIRST:
        C = _tile(C_first + sequence * K * V, of_k, K, V, of_v, V)
        n = tl.load(n_first + sequence * K + of_k, mask=of_k < K, other=0.0)
        m = tl.load(m_first + sequence)
    else:
        C = tl.zeros([BK, BV], tl.float32)
        n = tl.zeros([BK], tl.float32)
        m = tl.full([], 0.0, tl.float32)
    for c in range(N):
        if (c > 0) | FIRST:
            _put(C_ahead + c * K * V, C, of_k, K, V, of_v, V)
            if part == 0:
                tl.store(n_ahead + c * K + of_k, n, mask=of_k < K)
                tl.store(m_ahead + c, m)
        t = c * BS + at
        q_SK, k_KS = _tile(q, t, T, q_strides[1], of_k, K), _turned(k, t, T, k_strides[1], of_k, K)
        v_SV = _tile(v, t, T, v_strides[1], of_v, V)
        b, top, m_t, before, write, kept, m, _, _ = _gates(i, f, t, T, i_strides[1], f_strides[1], m, EXACT)
        P = tl.dot(q_SK, k_KS, input_precision="ieee") * _fading(b, top, t[:, None] >= t[None, :], EXACT)
        d = (tl.sum(P, 1) + before * tl.sum(q_SK.to(tl.float32) * n[None, :], 1)) * scale
        read = tl.dot(q_SK, C.to(q_SK.dtype), input_precision="ieee")
        if not EXACT:
            read = tl.dot(q_SK, _lost(C, q_SK), read)
        read = tl.dot(P.to(v_SV.dtype), v_SV, read * before[:, None], input_precision="ieee")
        if not EXACT:
            read = tl.dot(_lost(P, v_SV), v_SV, read)
        r = scale / tl.maximum(tl.abs(d), _floor(m_t))
        _put(o, read * r[:, None], t, T, H * V, of_v, V)
        C = tl.dot(k_KS, (v_SV * write[:, None]).to(v_SV.dtype), C * kept, input_precision="ieee")
        n = n * kept + tl.sum(k_KS.to(tl.float32) * write[None, :], 1)
    if LAST:
        _put(C_last + sequence * K * V, C, of_k, K, V, of_v, V)
        _put(C_ahead + N * K * V, C, of_k, K, V, of_v, V)
        if part == 0:
            tl.store(n_last + sequence * K + of_k, n, mask=of_k < K)
            tl.store(n_ahead + N * K + of_k, n, mask=of_k < K)
            tl.store(m_last + sequence, m)


@triton.jit(do_not_specialize=["T", "H", "N"])
def _backward_kernel(
    do, q, k, v, i, f, C_ahead, n_ahead, m_ahead, dC_last, dn_last, dm_last,
    dq, dk, dv, di, df, dC_first, dn_first, dm_first,
    do_strides, q_strides, k_strides, v_strides, i_strides, f_strides, scale, T, H, N,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BS: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """All derivatives of a sequence, from its last chunk to its first; those of q and k by head also where heads share them.

    The derivative of C is there twice, once transposed: both are operands.
    """
    sequence = tl.program_id(0).to(tl.int64)
    start = (sequence // H) * T * H + sequence % H
    q, k, v = _of(q, q_strides, sequence, H), _of(k, k_strides, sequence, H), _of(v, v_strides, sequence, H)
    i, f, do = _of(i, i_strides, sequence, H), _of(f, f_strides, sequence, H), _of(do, do_strides, sequence, H)
    dq, dk, dv, di, df = dq + start * K, dk + start * K, dv + start * V, di + start, df + start
    at, of_k, of_v = tl.arange(0, BS), tl.arange(0, BK), tl.arange(0, BV)
    states = N + 1 if LAST else N
    C_ahead, n_ahead, m_ahead = (
        C_ahead + sequence * states * K * V,
        n_ahead + sequence * states * K,
        m_ahead + sequence * states,
    )
    if LAST:
        dC = _tile(dC_last + sequence * K * V, of_k, K, V, of_v, V)
        dC_VK = _turned(dC_last + sequence * K * V, of_k, K, V, of_v, V)
        dn = tl.load(dn_last + sequence * K + of_k, mask=of_k < K, other=0.0)
    else:
        dC = tl.zeros([BK, BV], tl.float32)
        dC_VK = tl.zeros([BV, BK], tl.float32)
        dn = tl.zeros([BK], tl.float32)
    mu = tl.full([], 0.0, tl.float32)
    for step in range(N):
        c = N - 1 - step
        t = c * BS + at
        known = tl.where((c > 0) | FIRST, K, 0)
        C_VK = _turned(C_ahead + c * K * V, of_k, known, V, of_v, V)
        n = tl.load(n_ahead + c * K + of_k, mask=of_k < known, other=0.0)
        m = tl.load(m_ahead + c, mask=known > 0, other=0.0)
        b, top, m_t, before, write, kept, _, made_by, slope = _gates(i, f, t, T, i_strides[1], f_strides[1], m, EXACT)

        through = kept * (tl.sum(dC_VK * C_VK) + tl.sum(dn * n))

        q_SK, k_SK = _tile(q, t, T, q_strides[1], of_k, K), _tile(k, t, T, k_strides[1], of_k, K)
        do_SV = _tile(do, t, T, do_strides[1], of_v, V)
        from_state = tl.sum(q_SK.to(tl.float32) * n[None, :], 1)
        told = tl.dot(do_SV, C_VK.to(do_SV.dtype), input_precision="ieee")
        if not EXACT:
            told = tl.dot(do_SV, _lost(C_VK, do_SV), told)
        along_state = tl.sum(q_SK.to(tl.float32) * told, 1)
        fading = _fading(b, top, t[:, None] >= t[None, :], EXACT)
        P = tl.dot(q_SK, _turned(k, t, T, k_strides[1], of_k, K), input_precision="ieee") * fading
        dP = tl.dot(do_SV, _turned(v, t, T, v_strides[1], of_v, V), input_precision="ieee")
        d = (tl.sum(P, 1) + before * from_state) * scale
        along = tl.sum(P * dP, 1) + before * along_state
        r, by_d, row = _row_derivatives(d, along, m_t, scale)
        A = (dP * r[:, None] + by_d[:, None]) * fading
        dq_SK = (told * r[:, None] + by_d[:, None] * n[None, :]) * before[:, None]
        dq_SK = tl.dot(A.to(k_SK.dtype), k_SK, dq_SK, input_precision="ieee")
        _put(dq, dq_SK, t, T, H * K, of_k, K)

        # Loaded again, not kept: registers are what is short here.
        q_SK, k_SK = _tile(q, t, T, q_strides[1], of_k, K), _tile(k, t, T, k_strides[1], of_k, K)
        do_SV, v_SV = _tile(do, t, T, do_strides[1], of_v, V), _tile(v, t, T, v_strides[1], of_v, V)
        q_KS = _turned(q, t, T, q_strides[1], of_k, K)
        do_VS = _turned(do, t, T, do_strides[1], of_v, V)
        fading = _fading_turned(b, top, t[:, None] <= t[None, :], EXACT)
        P = tl.dot(k_SK, q_KS, input_precision="ieee") * fading
        A = tl.dot(v_SV, do_VS, input_precision="ieee") * r[None, :] + by_d[None, :]
        column = tl.sum(P * A, 1)
        dv_SV = tl.dot(k_SK, dC.to(k_SK.dtype), input_precision="ieee") * write[:, None]
        dv_SV = tl.dot((P * r[None, :]).to(do_SV.dtype), do_SV, dv_SV, input_precision="ieee")
        _put(dv, dv_SV, t, T, H * V, of_v, V)
        dk_SK = (tl.dot(v_SV, dC_VK.to(v_SV.dtype), input_precision="ieee") + dn[None, :]) * write[:, None]
        final = tl.sum(k_SK.to(tl.float32) * dk_SK, 1)
        dk_SK = tl.dot((A * fading).to(q_SK.dtype), q_SK, dk_SK, input_precision="ieee")
        _put(dk, dk_SK, t, T, H * K, of_k, K)

        if LAST and step == 0:
            mu = tl.load(dm_last + sequence) - (tl.sum(final, 0) + through)
        _put_gate_derivatives(di, df, t, T, H, slope, made_by, row, column, final, through, mu)
        mu = tl.where(made_by < 0, mu, 0.0)
        share = before * r
        dC = tl.dot(q_KS, (do_SV * share[:, None]).to(do_SV.dtype), dC * kept, input_precision="ieee")
        dC_VK = tl.dot((do_VS * share[None, :]).to(do_VS.dtype), q_SK, dC_VK * kept, input_precision="ieee")
        dn = dn * kept + tl.sum(q_KS.to(tl.float32) * (before * by_d)[None, :], 1)
    if FIRST:
        _put(dC_first + sequence * K * V, dC, of_k, K, V, of_v, V)
        tl.store(dn_first + sequence * K + of_k, dn, mask=of_k < K)
        tl.store(dm_first + sequence, mu)


@triton.jit(do_not_specialize=["T", "H", "N"])
def _rows_kernel(
    do, q, k, v, i, f, C_ahead, n_ahead, m_ahead, dq, r_, by_d_, row_,
    do_strides, q_strides, k_strides, v_strides, i_strides, f_strides, scale, T, H, N,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BS: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """What one chunk's outputs tell its queries; r, the derivatives of d, and what rows give to G, all [B, H, T]."""
    sequence, c = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = (sequence // H) * T * H + sequence % H
    q, k, v = _of(q, q_strides, sequence, H), _of(k, k_strides, sequence, H), _of(v, v_strides, sequence, H)
    i, f, do = _of(i, i_strides, sequence, H), _of(f, f_strides, sequence, H), _of(do, do_strides, sequence, H)
    at, of_k = tl.arange(0, BS), tl.arange(0, BK)
    t = c * BS + at
    known = tl.where((c > 0) | FIRST, K, 0)
    ahead = sequence * (N + 1 if LAST else N) + c
    n = tl.load(n_ahead + ahead * K + of_k, mask=of_k < known, other=0.0)
    m = tl.load(m_ahead + ahead, mask=known > 0, other=0.0)
    b, top, m_t, before, _, _, _, _, _ = _gates(i, f, t, T, i_strides[1], f_strides[1], m, EXACT)

    q_SK = _tile(q, t, T, q_strides[1], of_k, K)
    told = tl.zeros([BS, BK], tl.float32)
    dP = tl.zeros([BS, BS], tl.float32)
    for part in range(tl.cdiv(V, BV)):
        of_v = part * BV + tl.arange(0, BV)
        do_SV = _tile(do, t, T, do_strides[1], of_v, V)
        dP = tl.dot(do_SV, _turned(v, t, T, v_strides[1], of_v, V), dP, input_precision="ieee")
        C_VK = _turned(C_ahead + ahead * K * V, of_k, known, V, of_v, V)
        told = tl.dot(do_SV.to(C_VK.dtype), C_VK, told, input_precision="ieee" if EXACT else "tf32")
    fading = _fading(b, top, t[:, None] >= t[None, :], EXACT)
    P = tl.dot(q_SK, _turned(k, t, T, k_strides[1], of_k, K), input_precision="ieee") * fading
    d = (tl.sum(P, 1) + before * tl.sum(q_SK.to(tl.float32) * n[None, :], 1)) * scale
    along = tl.sum(P * dP, 1) + before * tl.sum(q_SK.to(tl.float32) * told, 1)
    r, by_d, row = _row_derivatives(d, along, m_t, scale)
    A = (dP * r[:, None] + by_d[:, None]) * fading
    k_SK = _tile(k, t, T, k_strides[1], of_k, K)
    dq_SK = (told * r[:, None] + by_d[:, None] * n[None, :]) * before[:, None]
    dq_SK = tl.dot(A.to(k_SK.dtype), k_SK, dq_SK, input_precision="ieee")
    _put(dq + start * K, dq_SK, t, T, H * K, of_k, K)
    tl.store(r_ + sequence * T + t, r, mask=t < T)
    tl.store(by_d_ + sequence * T + t, by_d, mask=t < T)
    tl.store(row_ + sequence * T + t, row, mask=t < T)


@triton.jit(do_not_specialize=["T", "H", "N"])
def _carry_kernel(
    do, q, i, f, m_ahead, r_, by_d_, dC_last, dn_last, mu_last,
    dC_behind, dn_behind, mu_behind, dC_first, dn_first, dm_first,
    do_strides, q_strides, i_strides, f_strides, scale, T, H, N,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BS: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The derivatives of the states behind every chunk, and of the first state, by blocks of value columns."""
    sequence, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    q, do = _of(q, q_strides, sequence, H), _of(do, do_strides, sequence, H)
    i, f = _of(i, i_strides, sequence, H), _of(f, f_strides, sequence, H)
    r_, by_d_ = r_ + sequence * T, by_d_ + sequence * T
    at, of_k, of_v = tl.arange(0, BS), tl.arange(0, BK), part * BV + tl.arange(0, BV)
    m_ahead += sequence * (N + 1 if LAST else N)
    dC_behind, dn_behind, mu_behind = (
        dC_behind + sequence * N * K * V,
        dn_behind + sequence * N * K,
        mu_behind + sequence * N,
    )
    if LAST:
        dC = _tile(dC_last + sequence * K * V, of_k, K, V, of_v, V)
        dn = tl.load(dn_last + sequence * K + of_k, mask=of_k < K, other=0.0)
        mu = tl.load(mu_last + sequence)
    else:
        dC = tl.zeros([BK, BV], tl.float32)
        dn = tl.zeros([BK], tl.float32)
        mu = tl.full([], 0.0, tl.float32)
    for step in range(N):
        c = N - 1 - step
        t = c * BS + at
        m = tl.load(m_ahead + c, mask=(c > 0) | FIRST, other=0.0)
        _put(dC_behind + c * K * V, dC, of_k, K, V, of_v, V)
        _, _, _, before, _, kept, _, made_by, _ = _gates(i, f, t, T, i_strides[1], f_strides[1], m, EXACT)
        q_KS, do_SV = _turned(q, t, T, q_strides[1], of_k, K), _tile(do, t, T, do_strides[1], of_v, V)
        share = before * tl.load(r_ + t, mask=t < T, other=0.0)
        if part == 0:
            tl.store(dn_behind + c * K + of_k, dn, mask=of_k < K)
            tl.store(mu_behind + c, mu)
            by_d = tl.load(by_d_ + t, mask=t < T, other=0.0)
            dn = dn * kept + tl.sum(q_KS.to(tl.float32) * (before * by_d)[None, :], 1)
            mu = tl.where(made_by < 0, mu, 0.0)
        dC = tl.dot(q_KS, (do_SV * share[:, None]).to(do_SV.dtype), dC * kept, input_precision="ieee")
    if FIRST:
        _put(dC_first + sequence * K * V, dC, of_k, K, V, of_v, V)
        if part == 0:
            tl.store(dn_first + sequence * K + of_k, dn, mask=of_k < K)
            tl.store(dm_first + sequence, mu)


@triton.jit(do_not_specialize=["T", "H", "N"])
def _columns_kernel(
    do, q, k, v, i, f, C_ahead, n_ahead, m_ahead, r_, by_d_, row_, dC_behind, dn_behind, mu_behind,
    dk, dv, di, df, do_strides, q_strides, k_strides, v_strides, i_strides, f_strides, scale, T, H, N,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BS: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """What one chunk's outputs and the state behind it tell its keys, values and gates."""
    sequence, c = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = (sequence // H) * T * H + sequence % H
    q, k, v = _of(q, q_strides, sequence, H), _of(k, k_strides, sequence, H), _of(v, v_strides, sequence, H)
    i, f, do = _of(i, i_strides, sequence, H), _of(f, f_strides, sequence, H), _of(do, do_strides, sequence, H)
    at, of_k = tl.arange(0, BS), tl.arange(0, BK)
    t = c * BS + at
    known = tl.where((c > 0) | FIRST, K, 0)
    ahead, behind = sequence * (N + 1 if LAST else N) + c, sequence * N + c
    n = tl.load(n_ahead + ahead * K + of_k, mask=of_k < known, other=0.0)
    dn = tl.load(dn_behind + behind * K + of_k, mask=of_k < K, other=0.0)
    m = tl.load(m_ahead + ahead, mask=known > 0, other=0.0)
    r = tl.load(r_ + sequence * T + t, mask=t < T, other=0.0)
    by_d = tl.load(by_d_ + sequence * T + t, mask=t < T, other=0.0)
    row = tl.load(row_ + sequence * T + t, mask=t < T, other=0.0)
    b, top, _, _, write, kept, _, made_by, slope = _gates(i, f, t, T, i_strides[1], f_strides[1], m, EXACT)

    k_SK = _tile(k, t, T, k_strides[1], of_k, K)
    fading = _fading_turned(b, top, t[:, None] <= t[None, :], EXACT)
    P = tl.dot(k_SK, _turned(q, t, T, q_strides[1], of_k, K), input_precision="ieee") * fading
    shares = (P * r[None, :]).to(k_SK.dtype)
    A = tl.zeros([BS, BS], tl.float32)
    dk_SK = tl.zeros([BS, BK], tl.float32)
    through = tl.sum(dn * n)
    for part in range(tl.cdiv(V, BV)):
        of_v = part * BV + tl.arange(0, BV)
        dC = _tile(dC_behind + behind * K * V, of_k, K, V, of_v, V)
        dC_VK = _turned(dC_behind + behind * K * V, of_k, K, V, of_v, V)
        C = _tile(C_ahead + ahead * K * V, of_k, known, V, of_v, V)
        through += tl.sum(dC.to(tl.float32) * C.to(tl.float32))
        v_SV, do_SV = _tile(v, t, T, v_strides[1], of_v, V), _tile(do, t, T, do_strides[1], of_v, V)
        A = tl.dot(v_SV, _turned(do, t, T, do_strides[1], of_v, V), A, input_precision="ieee")
        dv_SV = tl.dot(k_SK, dC, input_precision="ieee") * write[:, None]
        dv_SV = tl.dot(shares, do_SV, dv_SV, input_precision="ieee")
        _put(dv + start * V, dv_SV, t, T, H * V, of_v, V)
        dk_SK = tl.dot(v_SV, dC_VK, dk_SK, input_precision="ieee")
    A = A * r[None, :] + by_d[None, :]
    column = tl.sum(P * A, 1)
    dk_SK = (dk_SK + dn[None, :]) * write[:, None]
    final = tl.sum(k_SK.to(tl.float32) * dk_SK, 1)
    q_SK = _tile(q, t, T, q_strides[1], of_k, K)
    dk_SK = tl.dot((A * fading).to(q_SK.dtype), q_SK, dk_SK, input_precision="ieee")
    _put(dk + start * K, dk_SK, t, T, H * K, of_k, K)
    mu = tl.load(mu_behind + behind)
    _put_gate_derivatives(di + start, df + start, t, T, H, slope, made_by, row, column, final, through * kept, mu)


class _Form(NamedTuple):
    """How a launch is cut: tokens a chunk, value columns a block, warps a program."""

    tokens: int
    columns: int
    warps: int


# By the wider of keys and values. Without tensor cores every thread holds all terms of its sums, so fp32 takes smaller blocks.
_FP32 = {16: _Form(32, 16, 4), 32: _Form(32, 32, 8), 64: _Form(32, 32, 8), 128: _Form(16, 32, 8), 256: _Form(16, 16, 8)}
_HALF = {16: _Form(64, 16, 4), 32: _Form(64, 32, 4), 64: _Form(64, 64, 4), 128: _Form(32, 32, 8), 256: _Form(32, 32, 8)}
# Many programs want little work a token, hence short chunks and few warps; few of them want little waiting.
_HALF_OF_MANY = _HALF | {16: _Form(32, 16, 1), 32: _Form(32, 32, 2)}
# Two warps have no products of Hopper's own kind, which 64 columns beside fewer came out of wrong (Triton 3.6).
_HALF_UNEVEN = {64: _Form(32, 64, 2)}


def _table(K: int, V: int, T: int, programs: int, dtype: torch.dtype) -> _Form:
    forms = _FP32 if dtype == torch.float32 else _HALF_OF_MANY if programs >= MANY_PROGRAMS else _HALF
    if dtype != torch.float32 and padded(K) != padded(V):
        forms = forms | _HALF_UNEVEN
    form = forms[max(padded(K), padded(V))]
    return form._replace(tokens=min(form.tokens, padded(T)), columns=min(form.columns, padded(V)))


def _resident(K: int, V: int, T: int, programs: int, dtype: torch.dtype) -> bool:
    """Whether one program a head makes all derivatives: where they fit, and a chunk a program would not be more parallel."""
    widest = WIDEST_RESIDENT // 2 if dtype == torch.float32 else WIDEST_RESIDENT
    return max(K, V) <= widest and (T <= LONGEST_RESIDENT or programs >= FEWEST_PROGRAMS)


def _strides(x: Tensor) -> tuple[int, int, int]:
    """Over batch, time and heads; none over heads where all share one."""
    return x.stride(0), x.stride(1), x.stride(2) if x.shape[2] > 1 else 0


def _blocks(K: int, V: int, form: _Form, C: Tensor | None, last: bool) -> dict[str, Any]:
    return {
        "K": K,
        "V": V,
        "BK": padded(K),
        "BV": form.columns,
        "BS": form.tokens,
        "FIRST": C is not None,
        "LAST": last,
        "num_warps": form.warps,
        "num_stages": 1,
    }


def _outputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    C: Tensor | None,
    n: Tensor | None,
    m: Tensor | None,
    scale: float,
    last: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """o; C, n, m behind all tokens, [B, 0] where not asked for; C, n, m ahead of every chunk, with `last` also behind all."""
    B, T, H, V = v.shape
    K = q.shape[-1]
    states = triton.cdiv(T, _table(K, V, T, B * H, v.dtype).tokens) + last

    def state(*shape: int) -> Tensor:
        return v.new_empty((B, H, *shape) if last else (B, 0), dtype=torch.float32)

    return (
        v.new_empty(v.shape),
        state(K, V),
        state(K),
        state(),
        v.new_empty(B, H, states, K, V, dtype=torch.float32),  # a derivative takes from C and n what nearly cancels
        v.new_empty(B, H, states, K, dtype=torch.float32),
        v.new_empty(B, H, states, dtype=torch.float32),
    )


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    C: Tensor | None,
    n: Tensor | None,
    m: Tensor | None,
    scale: float,
    last: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    B, T, H, V = v.shape
    K = q.shape[-1]
    q, k, v = dense(q), dense(k), dense(v)
    C, n, m = (x if x is None else x.contiguous() for x in (C, n, m))
    results = _outputs(q, k, v, i, f, C, n, m, scale, last)
    form = _table(K, V, T, B * H, v.dtype)
    _forward_kernel[B * H, triton.cdiv(V, form.columns)](
        q,
        k,
        v,
        i,
        f,
        C,
        n,
        m,
        *results,
        *map(_strides, (q, k, v, i, f)),
        scale,
        T,
        H,
        triton.cdiv(T, form.tokens),
        **_blocks(K, V, form, C, last),
        EXACT=v.dtype == torch.float32,
    )
    return results


def _gradients(
    do: Tensor,
    dC: Tensor,
    dn: Tensor,
    dm: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    C: Tensor | None,
    n: Tensor | None,
    m: Tensor | None,
    scale: float,
    last: bool,
    C_ahead: Tensor,
    n_ahead: Tensor,
    m_ahead: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv, di, df = (x.new_empty(x.shape) for x in (q, k, v, i, f))
    dC, dn, dm = (v.new_empty(0) if x is None else x.new_empty(x.shape) for x in (C, n, m))
    return dq, dk, dv, di, df, dC, dn, dm


def _backward(
    do: Tensor,
    dC: Tensor,
    dn: Tensor,
    dm: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    C: Tensor | None,
    n: Tensor | None,
    m: Tensor | None,
    scale: float,
    last: bool,
    C_ahead: Tensor,
    n_ahead: Tensor,
    m_ahead: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    B, T, H, V = v.shape
    K, shared = q.shape[-1], q.shape[2] != H
    do, q, k, v = dense(do), dense(q), dense(k), dense(v)
    dC, dn, dm = dC.contiguous(), dn.contiguous(), dm.contiguous()
    form = _table(K, V, T, B * H, v.dtype)
    N = triton.cdiv(T, form.tokens)
    strides = tuple(map(_strides, (do, q, k, v, i, f)))
    sizes = (*strides, scale, T, H, N)
    blocks = _blocks(K, V, form, C, last)
    exact = v.dtype == torch.float32
    dq, dk, dv, di, df, dC_first, dn_first, dm_first = _gradients(
        do, dC, dn, dm, q, k, v, i, f, C, n, m, scale, last, C_ahead, n_ahead, m_ahead
    )
    dq_, dk_ = (v.new_empty(B, T, H, K, dtype=torch.float32) for _ in "qk") if shared else (dq, dk)
    inputs, ahead, first = (q, k, v, i, f), (C_ahead, n_ahead, m_ahead), (dC_first, dn_first, dm_first)
    if _resident(K, V, T, B * H, v.dtype):
        _backward_kernel[(B * H,)](
            do, *inputs, *ahead, dC, dn, dm, dq_, dk_, dv, di, df, *first, *sizes, **blocks, EXACT=exact
        )
    else:
        rows = tuple(v.new_empty(B, H, T, dtype=torch.float32) for _ in range(3))
        behind = (
            v.new_empty(B, H, N, K, V),
            v.new_empty(B, H, N, K, dtype=torch.float32),
            v.new_empty(B, H, N, dtype=torch.float32),
        )
        mu = dm - (dC * C_ahead[:, :, -1]).sum((-2, -1)) - (dn * n_ahead[:, :, -1]).sum(-1) if last else dm
        _rows_kernel[B * H, N](do, *inputs, *ahead, dq_, *rows, *sizes, **blocks, EXACT=exact)
        _carry_kernel[B * H, triton.cdiv(V, form.columns)](
            do,
            q,
            i,
            f,
            m_ahead,
            *rows[:2],
            dC,
            dn,
            mu,
            *behind,
            *first,
            *(strides[place] for place in (0, 1, 4, 5)),
            scale,
            T,
            H,
            N,
            **blocks,
            EXACT=exact,
        )
        _columns_kernel[B * H, N](do, *inputs, *ahead, *rows, *behind, dk_, dv, di, df, *sizes, **blocks, EXACT=exact)
    if shared:
        dq, dk = (x.sum(2, keepdim=True).to(q.dtype) for x in (dq_, dk_))
    if C is not None and n is not None:
        dm_first += (dC_first * C).sum((-2, -1)) + (dn_first * n).sum(-1)
    return dq, dk, dv, di, df, *first


_mlstm = opaque("mlstm", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=4)


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
    o, *final = _mlstm(q, k, v, i, f, C, n, m, scale, return_state)[:4]
    return o, MlstmState(*final) if return_state else None


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """Why it cannot serve, None where it can."""
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"computes in fp32 at most, got {dtype}"
    widest = max(sizes.get("key_width", 1), sizes.get("value_width", 1))
    if widest > LARGEST_WIDTH:
        return f"takes keys and values of up to {LARGEST_WIDTH} columns, got {widest}"
    return None
