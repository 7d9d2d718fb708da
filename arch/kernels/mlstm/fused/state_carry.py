"""The walk of the state's derivative alone, by blocks of value columns."""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.mlstm.fused.gates import chunk_gates
from recallmap.arch.kernels.mlstm.fused.tiles import head_of, load_tile, load_turned, store_tile


@triton.jit(do_not_specialize=["T", "H", "N"])
def mlstm_carry_kernel(
    do, q, i, f, m_ahead, r_, by_d_, dC_last, dn_last, mu_last,
    dC_behind, dn_behind, mu_behind, dC_first, dn_first, dm_first,
    do_strides, q_strides, i_strides, f_strides, scale, T, H, N,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BS: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The derivatives of the states behind every chunk, and of the first state, by blocks of value columns."""
    sequence, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    q, do = head_of(q, q_strides, sequence, H), head_of(do, do_strides, sequence, H)
    i, f = head_of(i, i_strides, sequence, H), head_of(f, f_strides, sequence, H)
    r_, by_d_ = r_ + sequence * T, by_d_ + sequence * T
    at, of_k, of_v = tl.arange(0, BS), tl.arange(0, BK), part * BV + tl.arange(0, BV)
    m_ahead += sequence * (N + 1 if LAST else N)
    dC_behind, dn_behind, mu_behind = (
        dC_behind + sequence * N * K * V,
        dn_behind + sequence * N * K,
        mu_behind + sequence * N,
    )
    if LAST:
        dC = load_tile(dC_last + sequence * K * V, of_k, K, V, of_v, V)
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
        store_tile(dC_behind + c * K * V, dC, of_k, K, V, of_v, V)
        _, _, _, before, _, kept, _, made_by, _ = chunk_gates(i, f, t, T, i_strides[1], f_strides[1], m, EXACT)
        q_KS, do_SV = load_turned(q, t, T, q_strides[1], of_k, K), load_tile(do, t, T, do_strides[1], of_v, V)
        share = before * tl.load(r_ + t, mask=t < T, other=0.0)
        if part == 0:
            tl.store(dn_behind + c * K + of_k, dn, mask=of_k < K)
            tl.store(mu_behind + c, mu)
            by_d = tl.load(by_d_ + t, mask=t < T, other=0.0)
            dn = dn * kept + tl.sum(q_KS.to(tl.float32) * (before * by_d)[None, :], 1)
            mu = tl.where(made_by < 0, mu, 0.0)
        dC = tl.dot(q_KS, (do_SV * share[:, None]).to(do_SV.dtype), dC * kept, input_precision="ieee")
    if FIRST:
        store_tile(dC_first + sequence * K * V, dC, of_k, K, V, of_v, V)
        if part == 0:
            tl.store(dn_first + sequence * K + of_k, dn, mask=of_k < K)
            tl.store(dm_first + sequence, mu)
