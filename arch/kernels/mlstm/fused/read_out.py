"""Outputs of all chunks at once, by tiles of rows."""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.mlstm.fused.gates import gates_of_rows, pair_fades
from recallmap.arch.kernels.mlstm.fused.tiles import head_of, load_tile, lost_digits, store_tile


@triton.jit(do_not_specialize=["T", "H", "N"])
def mlstm_outputs_kernel(
    q, k, v, b_, top_, before_, floor_, C_ahead, n_ahead, o, q_strides, k_strides, v_strides, scale, T, H, N,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BS: tl.constexpr, BR: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Outputs of BR tokens, of what their chunk holds up to them and of the state ahead of it."""
    sequence, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    q, k, v = head_of(q, q_strides, sequence, H), head_of(k, k_strides, sequence, H), head_of(v, v_strides, sequence, H)
    o += ((sequence // H) * T * H + sequence % H) * V
    c = tile // (BS // BR)
    t, s, of_k = tile * BR + tl.arange(0, BR), c * BS + tl.arange(0, BS), tl.arange(0, BK)
    known = tl.where((c > 0) | FIRST, K, 0)
    ahead = sequence * (N + 1 if LAST else N) + c
    b, top, before, floor, n = gates_of_rows(
        b_, top_, before_, floor_, n_ahead + ahead * K, sequence, t, s, of_k, known, T, EXACT
    )  # fmt: skip

    q_RK, k_SK = load_tile(q, t, T, q_strides[1], of_k, K), load_tile(k, s, T, k_strides[1], of_k, K)
    P = tl.dot(q_RK, tl.trans(k_SK), input_precision="ieee") * pair_fades(b, top, t[:, None] >= s[None, :], EXACT)
    d = (tl.sum(P, 1) + before * tl.sum(q_RK.to(tl.float32) * n[None, :], 1)) * scale
    r = scale / tl.maximum(tl.abs(d), floor)
    for part in range(tl.cdiv(V, BV)):
        of_v = part * BV + tl.arange(0, BV)
        v_SV, C = load_tile(v, s, T, v_strides[1], of_v, V), load_tile(C_ahead + ahead * K * V, of_k, known, V, of_v, V)
        # 11 bits of C and 16 of P: where a normaliser is near 0, the 8 of bf16 leave more error than is tolerated.
        read = tl.dot(q_RK.to(tl.float32), C, input_precision="ieee" if EXACT else "tf32")
        read = tl.dot(P.to(v_SV.dtype), v_SV, read * before[:, None], input_precision="ieee")
        if not EXACT:
            read = tl.dot(lost_digits(P, v_SV), v_SV, read)
        store_tile(o, read * r[:, None], t, T, H * V, of_v, V)
