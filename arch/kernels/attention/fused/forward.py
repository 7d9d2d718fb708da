"""The forward pass: blocks of queries, each over the keys that it sees.

T time, S keys, H heads, K key width, V value width; BT queries and BS keys of a tile
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.attention.fused.gates import load_leading, load_sums, scores, without_rest
from recallmap.arch.kernels.attention.fused.tiles import hide, load_rows, rows_of, span, store_rows, store_tokens

RUN_TIME = ("T", "S", "H", "window", "prefix")


@triton.jit
def _absorb(
    q_TK, k_at, v_at, sums_at, k_t, v_t, begin, query, S, window, prefix, scale, leading, rest, acc_TV, top_T, sum_T,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BS: tl.constexpr,
    BANDED: tl.constexpr, MASKED: tl.constexpr, FADES: tl.constexpr,
):  # fmt: skip
    """The running softmax over one more block of keys. leading, rest: see `scores`."""
    key = begin + tl.arange(0, BS)
    k_SK = load_rows(k_at, key, k_t, S, K, BK, not MASKED)
    v_SV = load_rows(v_at, key, v_t, S, V, BV, not MASKED)
    s_TS = scores(q_TK, k_SK, sums_at, key, S, scale, leading, rest, MASKED, FADES)
    if MASKED:
        s_TS = hide(s_TS, query[:, None], key[None, :], window, prefix, BANDED)
    higher_T = tl.maximum(top_T, tl.max(s_TS, 1))
    p_TS = tl.exp2(s_TS - higher_T[:, None])
    fade_T = tl.exp2(top_T - higher_T)
    acc_TV = tl.dot(p_TS.to(v_SV.dtype), v_SV, acc_TV * fade_T[:, None], input_precision="ieee")
    return acc_TV, higher_T, sum_T * fade_T + tl.sum(p_TS, 1)


@triton.jit(do_not_specialize=RUN_TIME)
def attention_forward_kernel(
    q, k, v, sums, o, lse, q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, T, S, H, window, prefix, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
    BANDED: tl.constexpr, LONG: tl.constexpr, FADES: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(T, BT)
    sequences = tl.num_programs(0) // blocks
    block = blocks - 1 - tl.program_id(0) // sequences  # those with most keys go first
    sequence = tl.program_id(0) % sequences
    b, h = (sequence // H).to(tl.int64), sequence % H
    k_at, v_at = k + b * k_b + h * k_h, v + b * v_b + h * v_h
    sums_at = sums
    if FADES:
        sums_at = sums + sequence.to(tl.int64) * 2 * S
    t = block * BT + tl.arange(0, BT)
    first = block * BT + S - T
    query = t + S - T
    q_TK = load_rows(q + b * q_b + h * q_h, t, q_t, T, K, BK, False)

    acc_TV = tl.zeros([BT, BV], tl.float32)
    top_T = tl.full([BT], -1e30, tl.float32)  # finite: a block may hide all its keys from a query
    sum_T = tl.zeros([BT], tl.float32)
    leading_T = top_T
    if FADES:
        leading_T = load_leading(sums_at, query, S, False)
    ahead, low, high = span(first, S, window, prefix, BT, BS, BANDED)
    if LONG:
        leading, rest = 0.0, 0.0
        if FADES:
            leading, rest = load_sums(sums_at, first, S, True)
        edge = tl.minimum((first + 1) // BS, high)  # the blocks below are seen whole by all of these queries
        for i in range(0, edge):
            acc_TV, top_T, sum_T = _absorb(
                q_TK, k_at, v_at, sums_at, k_t, v_t, i * BS, query, S, window, prefix, scale, leading, rest, acc_TV,
                top_T, sum_T, K, V, BK, BV, BS, BANDED, False, FADES,
            )  # fmt: skip
        low = edge
        if FADES:
            top_T += without_rest(leading_T, leading, rest)
    for i in range(0, ahead + high - low):
        begin = tl.where(i < ahead, i, i - ahead + low) * BS
        acc_TV, top_T, sum_T = _absorb(
            q_TK, k_at, v_at, sums_at, k_t, v_t, begin, query, S, window, prefix, scale, leading_T, 0.0, acc_TV,
            top_T, sum_T, K, V, BK, BV, BS, BANDED, True, FADES,
        )  # fmt: skip

    sum_T = tl.where(t < T, sum_T, 1.0)  # past the end a query may see nothing
    store_rows(o + (b * T * H + h) * V, t, H * V, T, acc_TV / sum_T[:, None], V, BV)
    lse_T = top_T + tl.log2(sum_T)
    store_tokens(lse + sequence.to(tl.int64) * rows_of(T), t, T, block, lse_T, float("inf"), BT)
