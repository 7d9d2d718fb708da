"""Log decays by key channel taken out of the work along time: queries and keys faded, and scores made, by all chunks at once.

The kernels after it multiply what this one writes, and never take a power.

C tokens a chunk, K key width, BK its power of two
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.gated_linear.fused.decay_factors import LOG2_E, NEAR, fades, fades_by_middle, token_factors
from recallmap.arch.kernels.gated_linear.fused.tiles import RUN_TIME, dot, load, store, wide_dot


@triton.jit
def _doubled(to_token, to_end, g_CK, BLOCK: tl.constexpr, C: tl.constexpr):
    """Fades from the start of blocks of 2 BLOCK tokens, and to their end, from those of blocks of BLOCK."""
    place = tl.arange(0, C)[:, None]
    for pair in tl.static_range(C // (2 * BLOCK)):
        first, second = place // BLOCK == 2 * pair, place // BLOCK == 2 * pair + 1
        over_first = tl.exp2(tl.sum(tl.where(first, g_CK, 0.0), 0))
        over_second = tl.exp2(tl.sum(tl.where(second, g_CK, 0.0), 0))
        to_token *= tl.where(second, over_first[None, :], 1.0)
        to_end *= tl.where(first, over_second[None, :], 1.0)
    return to_token, to_end


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
    place, columns = tl.arange(0, C), tl.arange(0, BK)
    rows = n * C + place
    q_CK = load(q, rows, columns, T, K, q_t).to(tl.float32)
    g_CK = load(log_decay, rows, columns, T, K, g_t).to(tl.float32) * LOG2_E
    reads, writes, _, turn = token_factors(beta, sign, rows, scale, T, beta_t, sign_t, C)
    to_token, to_end = fades(log_decay, g_CK, rows, columns, T, K, g_t, NEAR, C, BK, DOT)
    if pairs is not None:
        k += b * k_b + h * k_h
        k_CK = load(k, rows, columns, T, K, k_t).to(tl.float32)
        near = (place[:, None] // NEAR == place[None, :] // NEAR) & (place[:, None] >= place[None, :])
        from_middle, to_middle = fades_by_middle(g_CK, C, DOT)
        scores = tl.where(near, wide_dot(q_CK * from_middle, tl.trans(k_CK * to_middle), DOT), 0.0)
    for level in tl.static_range(LEVELS):
        if pairs is not None:
            block = place // (NEAR * 2**level)
            siblings = (block[:, None] == block[None, :] + 1) & (block[:, None] % 2 == 1)
            scores += tl.where(siblings, dot(q_CK * to_token, tl.trans(k_CK * to_end), DOT), 0.0)
        to_token, to_end = _doubled(to_token, to_end, g_CK, NEAR * 2**level, C)
    store(faded_q + (b * T * H + h) * K, q_CK * to_token * reads[:, None], rows, columns, T, K, H * K)
    if pairs is not None:
        store(faded_k + (b * T * H + h) * K, k_CK * to_end * (writes * turn)[:, None], rows, columns, T, K, H * K)
        scores *= reads[:, None] * writes[None, :]
        store(pairs + pid.to(tl.int64) * T * C, scores, rows, place, T, C, C)
    over_K = tl.exp2(tl.sum(g_CK, 0)) * turn
    tl.store(left + (pid.to(tl.int64) * tl.cdiv(T, C) + n) * K + columns, over_K, mask=columns < K)
