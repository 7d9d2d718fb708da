"""The backward passes: one over blocks of queries for dq, one over blocks of keys for dk, dv and the derivative by C.

The passes over keys hold scores as [keys, queries], so that no product has to be turned around.

T time, S keys, H heads, K key width, V value width; BT queries and BS keys of a tile
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.attention.fused.gates import between, load_leading, load_sums, scores, without_rest
from recallmap.arch.kernels.attention.fused.tiles import hide, load_rows, rows_of, span, store_rows, store_tokens

RUN_TIME = ("T", "S", "H", "window", "prefix")


@triton.jit
def _query_step(
    q_TK, do_TV, lse_T, delta_T, k_at, v_at, sums_at, k_t, v_t, begin, query, S, window, prefix, scale, leading, rest,
    dq_TK, slip_T,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BS: tl.constexpr,
    BANDED: tl.constexpr, MASKED: tl.constexpr, FADES: tl.constexpr,
):  # fmt: skip
    """dq / scale and the sum of ds with what one more block of keys brings. leading, rest: see `scores`; not MASKED, lse lacks
    what scores lack."""
    key = begin + tl.arange(0, BS)
    k_SK = load_rows(k_at, key, k_t, S, K, BK, not MASKED)
    v_SV = load_rows(v_at, key, v_t, S, V, BV, not MASKED)
    s_TS = scores(q_TK, k_SK, sums_at, key, S, scale, leading, rest, MASKED, FADES)
    dp_TS = tl.dot(do_TV, tl.trans(v_SV), input_precision="ieee")
    if MASKED:
        s_TS = hide(s_TS, query[:, None], key[None, :], window, prefix, BANDED)
    ds_TS = tl.exp2(s_TS - lse_T[:, None]) * (dp_TS - delta_T[:, None])
    if FADES:
        slip_T += tl.sum(ds_TS, 1)
    return tl.dot(ds_TS.to(k_SK.dtype), k_SK, dq_TK, input_precision="ieee"), slip_T


@triton.jit(do_not_specialize=RUN_TIME)
def attention_backward_queries_kernel(
    do, q, k, v, sums, o, lse, delta, slip, dq, do_b, do_t, do_h, q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h,
    T, S, H, window, prefix, scale, natural,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
    BANDED: tl.constexpr, LONG: tl.constexpr, FADES: tl.constexpr,
):  # fmt: skip
    """dq, and for the pass over keys d and the sum of ds."""
    blocks = tl.cdiv(T, BT)
    sequences = tl.num_programs(0) // blocks
    block = blocks - 1 - tl.program_id(0) // sequences
    sequence = tl.program_id(0) % sequences
    b, h = (sequence // H).to(tl.int64), sequence % H
    k_at, v_at = k + b * k_b + h * k_h, v + b * v_b + h * v_h
    sums_at = sums
    if FADES:
        sums_at = sums + sequence.to(tl.int64) * 2 * S
    t = block * BT + tl.arange(0, BT)
    first = block * BT + S - T
    query = t + S - T
    kept = sequence.to(tl.int64) * rows_of(T)
    do_TV = load_rows(do + b * do_b + h * do_h, t, do_t, T, V, BV, False)
    o_TV = load_rows(o + (b * T * H + h) * V, t, H * V, T, V, BV, False)
    delta_T = tl.sum(do_TV.to(tl.float32) * o_TV.to(tl.float32), 1)
    store_tokens(delta + kept, t, T, block, delta_T, 0.0, BT)
    lse_T = tl.load(lse + kept + t)
    q_TK = load_rows(q + b * q_b + h * q_h, t, q_t, T, K, BK, False)

    dq_TK = tl.zeros([BT, BK], tl.float32)
    slip_T = tl.zeros([BT], tl.float32)
    leading_T = slip_T
    if FADES:
        leading_T = load_leading(sums_at, query, S, False)
    ahead, low, high = span(first, S, window, prefix, BT, BS, BANDED)
    if LONG:
        leading, rest, shifted_T = 0.0, 0.0, lse_T
        if FADES:
            leading, rest = load_sums(sums_at, first, S, True)
            shifted_T = lse_T - without_rest(leading_T, leading, rest)
        edge = tl.minimum((first + 1) // BS, high)
        for i in range(0, edge):
            dq_TK, slip_T = _query_step(
                q_TK, do_TV, shifted_T, delta_T, k_at, v_at, sums_at, k_t, v_t, i * BS, query, S, window, prefix, scale,
                leading, rest, dq_TK, slip_T, K, V, BK, BV, BS, BANDED, False, FADES,
            )  # fmt: skip
        low = edge
    for i in range(0, ahead + high - low):
        begin = tl.where(i < ahead, i, i - ahead + low) * BS
        dq_TK, slip_T = _query_step(
            q_TK, do_TV, lse_T, delta_T, k_at, v_at, sums_at, k_t, v_t, begin, query, S, window, prefix, scale,
            leading_T, 0.0, dq_TK, slip_T, K, V, BK, BV, BS, BANDED, True, FADES,
        )  # fmt: skip
    store_rows(dq + (b * T * H + h) * K, t, H * K, T, dq_TK * natural, K, BK)
    if FADES:
        tl.store(slip + kept + t, slip_T, mask=t < T)


@triton.jit
def _key_step(
    k_SK, v_SV, key, sums_at, do_at, q_at, lse_at, delta_at, dq_at, do_t, q_t, begin, T, S, H, window, prefix, scale,
    natural, leading, rest, leading_S, rest_S, dk_SK, dv_SV, dsum_S,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr,
    BANDED: tl.constexpr, MASKED: tl.constexpr, FADES: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """dk / scale, dv and the sum of ds with what one more block of queries brings; WHOLE: these are all keys, and dq is at hand
    too. leading, rest: C of the last key. leading_S, rest_S: of the keys; not MASKED, the first is what there is between the
    last key and them."""
    t = begin + tl.arange(0, BT)
    q_TK = load_rows(q_at, t, q_t, T, K, BK, False)
    do_TV = load_rows(do_at, t, do_t, T, V, BV, False)
    # Infinite past the end anyway. WHOLE spills registers without the mask (heads of 16, Triton 3.6).
    lse_T = tl.load(lse_at + t, mask=t < T, other=float("inf")) if WHOLE else tl.load(lse_at + t)
    s_ST = tl.dot(k_SK, tl.trans(q_TK), input_precision="ieee") * scale
    if FADES:
        leading_T = load_leading(sums_at, t + S - T, S, not MASKED)  # past the end, rests: their queries have no part
        if MASKED:
            s_ST += without_rest(leading_T[None, :], leading_S[:, None], rest_S[:, None])
        else:
            s_ST += leading_S[:, None]
            lse_T -= without_rest(leading_T, leading, rest)
    dp_ST = tl.dot(v_SV, tl.trans(do_TV), input_precision="ieee")
    if MASKED:
        s_ST = hide(s_ST, (t + S - T)[None, :], key[:, None], window, prefix, BANDED)
    p_ST = tl.exp2(s_ST - lse_T[None, :])
    if WHOLE:
        delta_T = tl.sum(p_ST * dp_ST, 0)
    else:
        delta_T = tl.load(delta_at + t)
    ds_ST = p_ST * (dp_ST - delta_T[None, :])
    if FADES:
        dsum_S += tl.sum(ds_ST, 1)
    ds_ST = ds_ST.to(k_SK.dtype)
    dv_SV = tl.dot(p_ST.to(do_TV.dtype), do_TV, dv_SV, input_precision="ieee")
    dk_SK = tl.dot(ds_ST, q_TK, dk_SK, input_precision="ieee")
    if WHOLE:
        dq_KT = tl.dot(tl.trans(k_SK), ds_ST, input_precision="ieee") * natural
        store_rows(dq_at, t, H * K, T, tl.trans(dq_KT), K, BK)
    return dk_SK, dv_SV, dsum_S


@triton.jit(do_not_specialize=RUN_TIME)
def attention_backward_keys_kernel(
    do, q, k, v, sums, lse, delta, slip, dq, dk, dv, dsums, do_b, do_t, do_h, q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h,
    T, S, H, window, prefix, scale, natural,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
    BANDED: tl.constexpr, LONG: tl.constexpr, FADES: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """dk, dv and the derivative by C; WHOLE: dq too."""
    sequences = tl.num_programs(0) // tl.cdiv(S, BS)
    first = tl.program_id(0) // sequences * BS
    sequence = tl.program_id(0) % sequences
    b, h = (sequence // H).to(tl.int64), sequence % H
    do_at, q_at = do + b * do_b + h * do_h, q + b * q_b + h * q_h
    kept = sequence.to(tl.int64) * rows_of(T)
    lse_at, delta_at = lse + kept, delta + kept
    dq_at = dq + (b * T * H + h) * K
    sums_at = sums
    if FADES:
        sums_at = sums + sequence.to(tl.int64) * 2 * S
    key = first + tl.arange(0, BS)
    k_SK = load_rows(k + b * k_b + h * k_h, key, k_t, S, K, BK, False)
    v_SV = load_rows(v + b * v_b + h * v_h, key, v_t, S, V, BV, False)

    dk_SK = tl.zeros([BS, BK], tl.float32)
    dv_SV = tl.zeros([BS, BV], tl.float32)
    dsum_S = tl.zeros([BS], tl.float32)
    leading, rest, leading_S, rest_S, faded_S = 0.0, 0.0, dsum_S, dsum_S, dsum_S
    if FADES:
        leading_S, rest_S = load_sums(sums_at, key, S, False)
        if LONG:
            leading, rest = load_sums(sums_at, tl.minimum(first + BS, S) - 1, S, True)
            faded_S = between(leading, rest, leading_S, rest_S)
    end = T
    if BANDED:
        end = tl.where(first < prefix, T, tl.minimum(T, first + BS - 1 + window - S + T))
    low, high = tl.maximum(first - S + T, 0) // BT, tl.cdiv(end, BT)
    edge = high
    if LONG:
        edge = tl.minimum(high, tl.cdiv(tl.maximum(first + BS - 1 - S + T, 0), BT))
    for i in range(low, edge):
        dk_SK, dv_SV, dsum_S = _key_step(
            k_SK, v_SV, key, sums_at, do_at, q_at, lse_at, delta_at, dq_at, do_t, q_t, i * BT, T, S, H, window, prefix,
            scale, natural, leading, rest, leading_S, rest_S, dk_SK, dv_SV, dsum_S,
            K, V, BK, BV, BT, BANDED, True, FADES, WHOLE,
        )  # fmt: skip
    if LONG:  # these see all keys of the block
        for i in range(edge, high):
            dk_SK, dv_SV, dsum_S = _key_step(
                k_SK, v_SV, key, sums_at, do_at, q_at, lse_at, delta_at, dq_at, do_t, q_t, i * BT, T, S, H, window, prefix,
                scale, natural, leading, rest, faded_S, rest_S, dk_SK, dv_SV, dsum_S,
                K, V, BK, BV, BT, BANDED, False, FADES, WHOLE,
            )  # fmt: skip
    store_rows(dk + (b * S * H + h) * K, key, H * K, S, dk_SK * natural, K, BK)
    store_rows(dv + (b * S * H + h) * V, key, H * V, S, dv_SV, V, BV)
    if FADES:
        slip_S = tl.zeros([BS], tl.float32)
        if not WHOLE:
            own = key - S + T
            slip_S = tl.load(slip + kept + own, mask=(own >= 0) & (own < T), other=0.0)
        tl.store(dsums + sequence.to(tl.int64) * S + key, slip_S - dsum_S, mask=key < S)
