"""Walks of narrow heads over the chunks of a sequence with the state in registers: all of forward, all of backward."""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.mlstm.fused.gates import (
    chunk_gates,
    least_normaliser,
    pair_fades,
    pair_fades_turned,
    row_derivatives,
    store_gate_derivatives,
    store_powers,
)
from recallmap.arch.kernels.mlstm.fused.tiles import head_of, load_tile, load_turned, lost_digits, store_tile


@triton.jit(do_not_specialize=["T", "H", "N"])
def mlstm_forward_kernel(
    q, k, v, i, f, C_first, n_first, m_first, o, C_last, n_last, m_last, C_ahead, n_ahead, m_ahead,
    b_, top_, before_, write_, floor_, kept_, made_by_,
    q_strides, k_strides, v_strides, i_strides, f_strides, scale, T, H, N,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BS: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, EXACT: tl.constexpr, GATES: tl.constexpr,
):  # fmt: skip
    """Outputs, and the states ahead of every chunk, which are not written where they are known to be zero.

    GATES: with them what `mlstm_gates_kernel` tells of gates, in place of m
    """
    sequence = tl.program_id(0).to(tl.int64)
    start = (sequence // H) * T * H + sequence % H
    q, k, v = head_of(q, q_strides, sequence, H), head_of(k, k_strides, sequence, H), head_of(v, v_strides, sequence, H)
    i, f, o = head_of(i, i_strides, sequence, H), head_of(f, f_strides, sequence, H), o + start * V
    at, of_k, of_v = tl.arange(0, BS), tl.arange(0, BK), tl.arange(0, BV)
    states = N + 1 if LAST else N
    C_ahead, n_ahead, m_ahead = (
        C_ahead + sequence * states * K * V,
        n_ahead + sequence * states * K,
        m_ahead + sequence * states,
    )
    if FIRST:
        C = load_tile(C_first + sequence * K * V, of_k, K, V, of_v, V)
        n = tl.load(n_first + sequence * K + of_k, mask=of_k < K, other=0.0)
        m = tl.load(m_first + sequence)
    else:
        C = tl.zeros([BK, BV], tl.float32)
        n = tl.zeros([BK], tl.float32)
        m = tl.full([], 0.0, tl.float32)
    made_by = tl.full([], -1, tl.int32)
    for c in range(N):
        if (c > 0) | FIRST:
            store_tile(C_ahead + c * K * V, C, of_k, K, V, of_v, V)
            tl.store(n_ahead + c * K + of_k, n, mask=of_k < K)
            if not GATES:
                tl.store(m_ahead + c, m)
        t = c * BS + at
        q_SK, k_KS = load_tile(q, t, T, q_strides[1], of_k, K), load_turned(k, t, T, k_strides[1], of_k, K)
        v_SV = load_tile(v, t, T, v_strides[1], of_v, V)
        b, top, m_t, before, write, kept, m, maker, _ = chunk_gates(i, f, t, T, i_strides[1], f_strides[1], m, EXACT)
        floor = least_normaliser(m_t)
        if GATES:
            made_by = tl.where(maker < 0, made_by, maker)
            store_powers(b_ + sequence * T, t, T, b, EXACT)
            store_powers(top_ + sequence * T, t, T, top, EXACT)
            tl.store(before_ + sequence * T + t, before, mask=t < T)
            tl.store(write_ + sequence * T + t, write, mask=t < T)
            tl.store(floor_ + sequence * T + t, floor, mask=t < T)
            tl.store(kept_ + sequence * N + c, kept)
        P = tl.dot(q_SK, k_KS, input_precision="ieee") * pair_fades(b, top, t[:, None] >= t[None, :], EXACT)
        d = (tl.sum(P, 1) + before * tl.sum(q_SK.to(tl.float32) * n[None, :], 1)) * scale
        read = tl.dot(q_SK, C.to(q_SK.dtype), input_precision="ieee")
        if not EXACT:
            read = tl.dot(q_SK, lost_digits(C, q_SK), read)
        read = tl.dot(P.to(v_SV.dtype), v_SV, read * before[:, None], input_precision="ieee")
        if not EXACT:
            read = tl.dot(lost_digits(P, v_SV), v_SV, read)
        r = scale / tl.maximum(tl.abs(d), floor)
        store_tile(o, read * r[:, None], t, T, H * V, of_v, V)
        written = v_SV * write[:, None]
        C = tl.dot(k_KS, written.to(v_SV.dtype), C * kept, input_precision="ieee")
        if not EXACT:
            C = tl.dot(k_KS, lost_digits(written, v_SV), C)
        n = n * kept + tl.sum(k_KS.to(tl.float32) * write[None, :], 1)
    if GATES:
        tl.store(made_by_ + sequence, made_by)
    if LAST:
        store_tile(C_last + sequence * K * V, C, of_k, K, V, of_v, V)
        store_tile(C_ahead + N * K * V, C, of_k, K, V, of_v, V)
        tl.store(n_last + sequence * K + of_k, n, mask=of_k < K)
        tl.store(n_ahead + N * K + of_k, n, mask=of_k < K)
        tl.store(m_last + sequence, m)


@triton.jit(do_not_specialize=["T", "H", "N"])
def mlstm_backward_kernel(
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
    q, k, v = head_of(q, q_strides, sequence, H), head_of(k, k_strides, sequence, H), head_of(v, v_strides, sequence, H)
    i, f, do = (
        head_of(i, i_strides, sequence, H),
        head_of(f, f_strides, sequence, H),
        head_of(do, do_strides, sequence, H),
    )
    dq, dk, dv, di, df = dq + start * K, dk + start * K, dv + start * V, di + start, df + start
    at, of_k, of_v = tl.arange(0, BS), tl.arange(0, BK), tl.arange(0, BV)
    states = N + 1 if LAST else N
    C_ahead, n_ahead, m_ahead = (
        C_ahead + sequence * states * K * V,
        n_ahead + sequence * states * K,
        m_ahead + sequence * states,
    )
    if LAST:
        dC = load_tile(dC_last + sequence * K * V, of_k, K, V, of_v, V)
        dC_VK = load_turned(dC_last + sequence * K * V, of_k, K, V, of_v, V)
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
        C_VK = load_turned(C_ahead + c * K * V, of_k, known, V, of_v, V)
        n = tl.load(n_ahead + c * K + of_k, mask=of_k < known, other=0.0)
        m = tl.load(m_ahead + c, mask=known > 0, other=0.0)
        b, top, m_t, before, write, kept, _, made_by, slope = chunk_gates(
            i, f, t, T, i_strides[1], f_strides[1], m, EXACT
        )

        through = kept * (tl.sum(dC_VK * C_VK) + tl.sum(dn * n))

        q_SK, k_SK = load_tile(q, t, T, q_strides[1], of_k, K), load_tile(k, t, T, k_strides[1], of_k, K)
        do_SV = load_tile(do, t, T, do_strides[1], of_v, V)
        from_state = tl.sum(q_SK.to(tl.float32) * n[None, :], 1)
        told = tl.dot(do_SV, C_VK.to(do_SV.dtype), input_precision="ieee")
        if not EXACT:
            told = tl.dot(do_SV, lost_digits(C_VK, do_SV), told)
        along_state = tl.sum(q_SK.to(tl.float32) * told, 1)
        fading = pair_fades(b, top, t[:, None] >= t[None, :], EXACT)
        P = tl.dot(q_SK, load_turned(k, t, T, k_strides[1], of_k, K), input_precision="ieee") * fading
        dP = tl.dot(do_SV, load_turned(v, t, T, v_strides[1], of_v, V), input_precision="ieee")
        d = (tl.sum(P, 1) + before * from_state) * scale
        along = tl.sum(P * dP, 1) + before * along_state
        r, by_d, row = row_derivatives(d, along, least_normaliser(m_t), scale)
        A = (dP * r[:, None] + by_d[:, None]) * fading
        dq_SK = (told * r[:, None] + by_d[:, None] * n[None, :]) * before[:, None]
        dq_SK = tl.dot(A.to(k_SK.dtype), k_SK, dq_SK, input_precision="ieee")
        store_tile(dq, dq_SK, t, T, H * K, of_k, K)

        # Loaded again, not kept: registers are what is short here.
        q_SK, k_SK = load_tile(q, t, T, q_strides[1], of_k, K), load_tile(k, t, T, k_strides[1], of_k, K)
        do_SV, v_SV = load_tile(do, t, T, do_strides[1], of_v, V), load_tile(v, t, T, v_strides[1], of_v, V)
        q_KS = load_turned(q, t, T, q_strides[1], of_k, K)
        do_VS = load_turned(do, t, T, do_strides[1], of_v, V)
        fading = pair_fades_turned(b, top, t[:, None] <= t[None, :], EXACT)
        P = tl.dot(k_SK, q_KS, input_precision="ieee") * fading
        A = tl.dot(v_SV, do_VS, input_precision="ieee") * r[None, :] + by_d[None, :]
        column = tl.sum(P * A, 1)
        dv_SV = tl.dot(k_SK, dC.to(k_SK.dtype), input_precision="ieee") * write[:, None]
        dv_SV = tl.dot((P * r[None, :]).to(do_SV.dtype), do_SV, dv_SV, input_precision="ieee")
        store_tile(dv, dv_SV, t, T, H * V, of_v, V)
        dk_SK = (tl.dot(v_SV, dC_VK.to(v_SV.dtype), input_precision="ieee") + dn[None, :]) * write[:, None]
        final = tl.sum(k_SK.to(tl.float32) * dk_SK, 1)
        dk_SK = tl.dot((A * fading).to(q_SK.dtype), q_SK, dk_SK, input_precision="ieee")
        store_tile(dk, dk_SK, t, T, H * K, of_k, K)

        if LAST and step == 0:
            mu = tl.load(dm_last + sequence) - (tl.sum(final, 0) + through)
        store_gate_derivatives(di, df, t, T, H, slope, made_by, row, column, final, through, mu)
        mu = tl.where(made_by < 0, mu, 0.0)
        share = before * r
        dC = tl.dot(q_KS, (do_SV * share[:, None]).to(do_SV.dtype), dC * kept, input_precision="ieee")
        dC_VK = tl.dot((do_VS * share[None, :]).to(do_VS.dtype), q_SK, dC_VK * kept, input_precision="ieee")
        dn = dn * kept + tl.sum(q_KS.to(tl.float32) * (before * by_d)[None, :], 1)
    if FIRST:
        store_tile(dC_first + sequence * K * V, dC, of_k, K, V, of_v, V)
        tl.store(dn_first + sequence * K + of_k, dn, mask=of_k < K)
        tl.store(dm_first + sequence, mu)
