"""Log decays by key channel taken out of the work along time: queries and keys faded, and scores made, by all chunks at once.

The kernels after it multiply what this one writes, and never take a power.

C tokens a chunk, K key width, BK key channels at a time
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.gated_linear.fused.decay_factors import (
    LOG2_E,
    NEAR,
    doubled,
    from_middle_of,
    sums_of,
    token_factors,
)
from recallmap.arch.kernels.gated_linear.fused.tiles import RUN_TIME, dot, load, store, wide_dot


@triton.jit(do_not_specialize=RUN_TIME)
def gated_linear_prepare_kernel(
    q, k, log_decay, beta, sign, faded_q, faded_k, pairs, left, scale, T, H,
    q_b, q_t, q_h, k_b, k_t, k_h, g_b, g_t, g_h, beta_b, beta_t, beta_h, sign_b, sign_t, sign_h,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr, GATE: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """Of one chunk, in 16 bits: queries faded from its start and keys to its end, with all other factors of their tokens,
    [B, T, H, K]; weights of each token's values in each output, [B, H, T, C]; and in fp32 what it leaves of the state,
    [B, H, N, K]. faded_k and pairs may be None."""
    pid, n = tl.program_id(0), tl.program_id(1)
    b, h = (pid // H).to(tl.int64), pid % H
    q += b * q_b + h * q_h
    log_decay += b * g_b + h * g_h
    if beta is not None:
        beta += b * beta_b + h * beta_h
    if sign is not None:
        sign += b * sign_b + h * sign_h
    if pairs is not None:
        k += b * k_b + h * k_h
    place = tl.arange(0, C)
    rows = n * C + place
    reads, writes, _, turn = token_factors(beta, sign, rows, scale, T, beta_t, sign_t, C)
    near = (place[:, None] // NEAR == place[None, :] // NEAR) & (place[:, None] >= place[None, :])
    scores = tl.zeros([C, C], tl.float32)
    for start in range(0, K, BK):
        columns = start + tl.arange(0, BK)
        q_CK = load(q, rows, columns, T, K, q_t).to(tl.float32)
        g_CK = load(log_decay, rows, columns, T, K, g_t).to(tl.float32) * LOG2_E
        sums, behind, over = sums_of(g_CK, C, BK)
        to_token, to_end = tl.exp2(sums), tl.exp2(behind)
        if pairs is not None:
            k_CK = load(k, rows, columns, T, K, k_t).to(tl.float32)
            from_middle = from_middle_of(g_CK, C, BK)
            scores += tl.where(near, wide_dot(q_CK * from_middle, tl.trans(k_CK / from_middle), DOT), 0.0)
        for level in tl.static_range(LEVELS):
            if pairs is not None:
                block = place // (NEAR * 2**level)
                siblings = (block[:, None] == block[None, :] + 1) & (block[:, None] % 2 == 1)
                rows_CK, columns_CK = q_CK * tl.reshape(to_token, (C, BK)), k_CK * tl.reshape(to_end, (C, BK))
                scores += tl.where(siblings, dot(rows_CK, tl.trans(columns_CK), DOT), 0.0)
            to_token, to_end = doubled(to_token, to_end, over, 2**level, C)
        store(
            faded_q + (b * T * H + h) * K,
            q_CK * tl.reshape(to_token, (C, BK)) * reads[:, None],
            rows,
            columns,
            T,
            K,
            H * K,
        )
        if pairs is not None:
            k_CK *= tl.reshape(to_end, (C, BK)) * (writes * turn)[:, None]
            store(faded_k + (b * T * H + h) * K, k_CK, rows, columns, T, K, H * K)
        over_K = tl.exp2(tl.reshape(tl.sum(over, 0), (BK,))) * turn
        tl.store(left + (pid.to(tl.int64) * tl.cdiv(T, C) + n) * K + columns, over_K, mask=columns < K)
    if pairs is not None:
        store(pairs + pid.to(tl.int64) * T * C, scores * reads[:, None] * writes[None, :], rows, place, T, C, C)
