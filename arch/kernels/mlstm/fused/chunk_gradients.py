"""Derivatives of all chunks at once, by tiles: by queries ahead of the walk of the state's derivative, the rest behind it."""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.mlstm.fused.gates import (
    NEVER,
    forget,
    gates_of_rows,
    load_powers,
    pair_fades,
    pair_fades_turned,
    row_derivatives,
    store_gate_derivatives,
)
from recallmap.arch.kernels.mlstm.fused.tiles import head_of, load_tile, store_tile


@triton.jit(do_not_specialize=["T", "H", "N"])
def mlstm_by_queries_kernel(
    do, q, k, v, b_, top_, before_, floor_, C_ahead, n_ahead, dq, r_, by_d_, row_,
    do_strides, q_strides, k_strides, v_strides, scale, T, H, N,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BS: tl.constexpr, BR: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The derivatives of BR outputs by their queries; r, the derivatives of d, and those of rows by G, all [B, H, T]."""
    sequence, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    q, k, v = head_of(q, q_strides, sequence, H), head_of(k, k_strides, sequence, H), head_of(v, v_strides, sequence, H)
    do = head_of(do, do_strides, sequence, H)
    c = tile // (BS // BR)
    t, s, of_k = tile * BR + tl.arange(0, BR), c * BS + tl.arange(0, BS), tl.arange(0, BK)
    known = tl.where((c > 0) | FIRST, K, 0)
    ahead = sequence * (N + 1 if LAST else N) + c
    b, top, before, floor, n = gates_of_rows(
        b_, top_, before_, floor_, n_ahead + ahead * K, sequence, t, s, of_k, known, T, EXACT
    )  # fmt: skip

    q_RK = load_tile(q, t, T, q_strides[1], of_k, K)
    told = tl.zeros([BR, BK], tl.float32)
    dP = tl.zeros([BR, BS], tl.float32)
    for part in range(tl.cdiv(V, BV)):
        of_v = part * BV + tl.arange(0, BV)
        do_RV = load_tile(do, t, T, do_strides[1], of_v, V)
        dP = tl.dot(do_RV, tl.trans(load_tile(v, s, T, v_strides[1], of_v, V)), dP, input_precision="ieee")
        C = load_tile(C_ahead + ahead * K * V, of_k, known, V, of_v, V)
        told = tl.dot(do_RV.to(tl.float32), tl.trans(C), told, input_precision="ieee" if EXACT else "tf32")
    fading = pair_fades(b, top, t[:, None] >= s[None, :], EXACT)
    k_SK = load_tile(k, s, T, k_strides[1], of_k, K)
    P = tl.dot(q_RK, tl.trans(k_SK), input_precision="ieee") * fading
    d = (tl.sum(P, 1) + before * tl.sum(q_RK.to(tl.float32) * n[None, :], 1)) * scale
    along = tl.sum(P * dP, 1) + before * tl.sum(q_RK.to(tl.float32) * told, 1)
    r, by_d, row = row_derivatives(d, along, floor, scale)
    A = (dP * r[:, None] + by_d[:, None]) * fading
    dq_RK = (told * r[:, None] + by_d[:, None] * n[None, :]) * before[:, None]
    dq_RK = tl.dot(A.to(k_SK.dtype), k_SK, dq_RK, input_precision="ieee")
    start = (sequence // H) * T * H + sequence % H
    store_tile(dq + start * K, dq_RK, t, T, H * K, of_k, K)
    tl.store(r_ + sequence * T + t, r, mask=t < T)
    tl.store(by_d_ + sequence * T + t, by_d, mask=t < T)
    tl.store(row_ + sequence * T + t, row, mask=t < T)


@triton.jit(do_not_specialize=["T", "H", "N"])
def mlstm_by_keys_kernel(
    do, q, k, v, b_, top_, write_, C_ahead, n_ahead, r_, by_d_, dC_behind, dn_behind, dk, dv, column_, final_, through_,
    do_strides, q_strides, k_strides, v_strides, T, H, N,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BS: tl.constexpr, BR: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The derivatives by BR keys and values of their chunk's outputs and of the state behind it.

    Of what they give to gates: sums over the rows that read a token, and the share of the state behind, both [B, H, T]; and,
    of one part of the keys a tile, <dC, C> + <dn, n> of dC and dn behind the chunk, C and n ahead of it.
    """
    sequence, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    q, k, v = head_of(q, q_strides, sequence, H), head_of(k, k_strides, sequence, H), head_of(v, v_strides, sequence, H)
    do = head_of(do, do_strides, sequence, H)
    tiles: tl.constexpr = BS // BR
    c = tile // tiles
    s, t, of_k = tile * BR + tl.arange(0, BR), c * BS + tl.arange(0, BS), tl.arange(0, BK)
    known, told = tl.where((c > 0) | FIRST, K, 0), tl.where((c < N - 1) | LAST, K, 0)
    ahead, behind = sequence * (N + 1 if LAST else N) + c, sequence * N + c
    C_ahead, dC_behind = C_ahead + ahead * K * V, dC_behind + behind * K * V
    n_ahead, dn_behind = n_ahead + ahead * K, dn_behind + behind * K
    dn = tl.load(dn_behind + of_k, mask=of_k < told, other=0.0)
    r = tl.load(r_ + sequence * T + t, mask=t < T, other=0.0)
    by_d = tl.load(by_d_ + sequence * T + t, mask=t < T, other=0.0)
    write = tl.load(write_ + sequence * T + s, mask=s < T, other=0.0)
    b, top = load_powers(b_ + sequence * T, s, T, NEVER, EXACT), load_powers(top_ + sequence * T, t, T, -NEVER, EXACT)

    k_RK, q_SK = load_tile(k, s, T, k_strides[1], of_k, K), load_tile(q, t, T, q_strides[1], of_k, K)
    fading = pair_fades_turned(b, top, s[:, None] <= t[None, :], EXACT)
    P = tl.dot(k_RK, tl.trans(q_SK), input_precision="ieee") * fading
    shares = (P * r[None, :]).to(k_RK.dtype)
    A = tl.zeros([BR, BS], tl.float32)
    dk_RK = tl.zeros([BR, BK], tl.float32)
    own = (tile % tiles) * (BK // tiles) + tl.arange(0, BK // tiles)
    through = tl.sum(
        tl.load(dn_behind + own, mask=own < told, other=0.0) * tl.load(n_ahead + own, mask=own < known, other=0.0)
    )
    start = (sequence // H) * T * H + sequence % H
    for part in range(tl.cdiv(V, BV)):
        of_v = part * BV + tl.arange(0, BV)
        own_dC, own_C = load_tile(dC_behind, own, told, V, of_v, V), load_tile(C_ahead, own, known, V, of_v, V)
        through += tl.sum(own_dC.to(tl.float32) * own_C)
        dC = load_tile(dC_behind, of_k, told, V, of_v, V)
        v_RV, do_SV = load_tile(v, s, T, v_strides[1], of_v, V), load_tile(do, t, T, do_strides[1], of_v, V)
        A = tl.dot(v_RV, tl.trans(do_SV), A, input_precision="ieee")
        dv_RV = tl.dot(k_RK, dC, input_precision="ieee") * write[:, None]
        dv_RV = tl.dot(shares, do_SV, dv_RV, input_precision="ieee")
        store_tile(dv + start * V, dv_RV, s, T, H * V, of_v, V)
        dk_RK = tl.dot(v_RV, tl.trans(dC), dk_RK, input_precision="ieee")
    A = A * r[None, :] + by_d[None, :]
    dk_RK = (dk_RK + dn[None, :]) * write[:, None]
    tl.store(column_ + sequence * T + s, tl.sum(P * A, 1), mask=s < T)
    tl.store(final_ + sequence * T + s, tl.sum(k_RK.to(tl.float32) * dk_RK, 1), mask=s < T)
    tl.store(through_ + sequence * N * tiles + tile, through)
    dk_RK = tl.dot((A * fading).to(q_SK.dtype), q_SK, dk_RK, input_precision="ieee")
    store_tile(dk + start * K, dk_RK, s, T, H * K, of_k, K)


@triton.jit(do_not_specialize=["T", "H", "N"])
def mlstm_by_gates_kernel(
    f, row_, column_, final_, through_, kept_, made_by_, mu_, di, df, f_strides, T, H, N,
    BS: tl.constexpr, TILES: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """The derivatives by the gates of one chunk, of what its rows, its columns and the states on both sides give to them."""
    sequence, c = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = (sequence // H) * T * H + sequence % H
    t, of_tile = c * BS + tl.arange(0, BS), tl.arange(0, TILES)
    row = tl.load(row_ + sequence * T + t, mask=t < T, other=0.0)
    column = tl.load(column_ + sequence * T + t, mask=t < T, other=0.0)
    final = tl.load(final_ + sequence * T + t, mask=t < T, other=0.0)
    chunk = sequence * N + c
    through = tl.sum(tl.load(through_ + chunk * TILES + of_tile), 0) * tl.load(kept_ + chunk)
    f = head_of(f, f_strides, sequence, H)
    _, slope = forget(tl.load(f + t * f_strides[1], mask=t < T, other=0.0).to(tl.float32))
    if LAST:
        made_by, mu = tl.load(made_by_ + sequence), tl.load(mu_ + sequence)
    else:
        made_by, mu = tl.full([], -1, tl.int32), tl.full([], 0.0, tl.float32)
    store_gate_derivatives(di + start, df + start, t, T, H, slope, made_by, row, column, final, through, mu)
