"""Derivatives of wide heads, by chunks in parallel: by rows ahead of the walk of the state's derivative, by columns behind."""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.mlstm.fused.gates import (
    chunk_gates,
    pair_fades,
    pair_fades_turned,
    row_derivatives,
    store_gate_derivatives,
)
from recallmap.arch.kernels.mlstm.fused.tiles import head_of, load_tile, load_turned, store_tile


@triton.jit(do_not_specialize=["T", "H", "N"])
def mlstm_rows_kernel(
    do, q, k, v, i, f, C_ahead, n_ahead, m_ahead, dq, r_, by_d_, row_,
    do_strides, q_strides, k_strides, v_strides, i_strides, f_strides, scale, T, H, N,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BS: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The derivatives of one chunk's outputs by its queries; r, the derivatives of d, and those of rows by G, all [B, H, T]."""
    sequence, c = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = (sequence // H) * T * H + sequence % H
    q, k, v = head_of(q, q_strides, sequence, H), head_of(k, k_strides, sequence, H), head_of(v, v_strides, sequence, H)
    i, f, do = (
        head_of(i, i_strides, sequence, H),
        head_of(f, f_strides, sequence, H),
        head_of(do, do_strides, sequence, H),
    )
    at, of_k = tl.arange(0, BS), tl.arange(0, BK)
    t = c * BS + at
    known = tl.where((c > 0) | FIRST, K, 0)
    ahead = sequence * (N + 1 if LAST else N) + c
    n = tl.load(n_ahead + ahead * K + of_k, mask=of_k < known, other=0.0)
    m = tl.load(m_ahead + ahead, mask=known > 0, other=0.0)
    b, top, m_t, before, _, _, _, _, _ = chunk_gates(i, f, t, T, i_strides[1], f_strides[1], m, EXACT)

    q_SK = load_tile(q, t, T, q_strides[1], of_k, K)
    told = tl.zeros([BS, BK], tl.float32)
    dP = tl.zeros([BS, BS], tl.float32)
    for part in range(tl.cdiv(V, BV)):
        of_v = part * BV + tl.arange(0, BV)
        do_SV = load_tile(do, t, T, do_strides[1], of_v, V)
        dP = tl.dot(do_SV, load_turned(v, t, T, v_strides[1], of_v, V), dP, input_precision="ieee")
        C_VK = load_turned(C_ahead + ahead * K * V, of_k, known, V, of_v, V)
        told = tl.dot(do_SV.to(C_VK.dtype), C_VK, told, input_precision="ieee" if EXACT else "tf32")
    fading = pair_fades(b, top, t[:, None] >= t[None, :], EXACT)
    P = tl.dot(q_SK, load_turned(k, t, T, k_strides[1], of_k, K), input_precision="ieee") * fading
    d = (tl.sum(P, 1) + before * tl.sum(q_SK.to(tl.float32) * n[None, :], 1)) * scale
    along = tl.sum(P * dP, 1) + before * tl.sum(q_SK.to(tl.float32) * told, 1)
    r, by_d, row = row_derivatives(d, along, m_t, scale)
    A = (dP * r[:, None] + by_d[:, None]) * fading
    k_SK = load_tile(k, t, T, k_strides[1], of_k, K)
    dq_SK = (told * r[:, None] + by_d[:, None] * n[None, :]) * before[:, None]
    dq_SK = tl.dot(A.to(k_SK.dtype), k_SK, dq_SK, input_precision="ieee")
    store_tile(dq + start * K, dq_SK, t, T, H * K, of_k, K)
    tl.store(r_ + sequence * T + t, r, mask=t < T)
    tl.store(by_d_ + sequence * T + t, by_d, mask=t < T)
    tl.store(row_ + sequence * T + t, row, mask=t < T)


@triton.jit(do_not_specialize=["T", "H", "N"])
def mlstm_columns_kernel(
    do, q, k, v, i, f, C_ahead, n_ahead, m_ahead, r_, by_d_, row_, dC_behind, dn_behind, mu_behind,
    dk, dv, di, df, do_strides, q_strides, k_strides, v_strides, i_strides, f_strides, scale, T, H, N,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BS: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The derivatives of one chunk's outputs, and of the state after it, by its keys, values and gates."""
    sequence, c = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = (sequence // H) * T * H + sequence % H
    q, k, v = head_of(q, q_strides, sequence, H), head_of(k, k_strides, sequence, H), head_of(v, v_strides, sequence, H)
    i, f, do = (
        head_of(i, i_strides, sequence, H),
        head_of(f, f_strides, sequence, H),
        head_of(do, do_strides, sequence, H),
    )
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
    b, top, _, _, write, kept, _, made_by, slope = chunk_gates(i, f, t, T, i_strides[1], f_strides[1], m, EXACT)

    k_SK = load_tile(k, t, T, k_strides[1], of_k, K)
    fading = pair_fades_turned(b, top, t[:, None] <= t[None, :], EXACT)
    P = tl.dot(k_SK, load_turned(q, t, T, q_strides[1], of_k, K), input_precision="ieee") * fading
    shares = (P * r[None, :]).to(k_SK.dtype)
    A = tl.zeros([BS, BS], tl.float32)
    dk_SK = tl.zeros([BS, BK], tl.float32)
    through = tl.sum(dn * n)
    for part in range(tl.cdiv(V, BV)):
        of_v = part * BV + tl.arange(0, BV)
        dC = load_tile(dC_behind + behind * K * V, of_k, K, V, of_v, V)
        dC_VK = load_turned(dC_behind + behind * K * V, of_k, K, V, of_v, V)
        C = load_tile(C_ahead + ahead * K * V, of_k, known, V, of_v, V)
        through += tl.sum(dC.to(tl.float32) * C.to(tl.float32))
        v_SV, do_SV = load_tile(v, t, T, v_strides[1], of_v, V), load_tile(do, t, T, do_strides[1], of_v, V)
        A = tl.dot(v_SV, load_turned(do, t, T, do_strides[1], of_v, V), A, input_precision="ieee")
        dv_SV = tl.dot(k_SK, dC, input_precision="ieee") * write[:, None]
        dv_SV = tl.dot(shares, do_SV, dv_SV, input_precision="ieee")
        store_tile(dv + start * V, dv_SV, t, T, H * V, of_v, V)
        dk_SK = tl.dot(v_SV, dC_VK, dk_SK, input_precision="ieee")
    A = A * r[None, :] + by_d[None, :]
    column = tl.sum(P * A, 1)
    dk_SK = (dk_SK + dn[None, :]) * write[:, None]
    final = tl.sum(k_SK.to(tl.float32) * dk_SK, 1)
    q_SK = load_tile(q, t, T, q_strides[1], of_k, K)
    dk_SK = tl.dot((A * fading).to(q_SK.dtype), q_SK, dk_SK, input_precision="ieee")
    store_tile(dk + start * K, dk_SK, t, T, H * K, of_k, K)
    mu = tl.load(mu_behind + behind)
    store_gate_derivatives(di + start, df + start, t, T, H, slope, made_by, row, column, final, through * kept, mu)
