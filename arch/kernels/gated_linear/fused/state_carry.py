"""The walk of the state over the chunks of a sequence, and of its derivative, whole or in segments side by side.

Segments take three steps: what each adds to a state of zero and leaves of the one ahead of it (totals), the state ahead of each
from the totals of those before, and the walk through each from there.

M segments, N chunks, L chunks a segment
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.gated_linear.fused.decay_factors import LOG2_E, fades, head_sums, token_factors
from recallmap.arch.kernels.gated_linear.fused.tiles import RUN_TIME, dot, load, store


@triton.jit
def state_ahead(
    first, totals, left, pid, segment, M, columns, columns_v,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The state [BK, BV] ahead of a segment, from that ahead of the sequence and, where there are any, the totals before it."""
    if first is not None:
        S_KV = load(first + pid.to(tl.int64) * K * V, columns, columns_v, K, V, V).to(tl.float32)
    else:
        S_KV = tl.zeros([BK, BV], tl.float32)
    if totals is not None:
        for m in tl.range(0, segment, num_stages=1, loop_unroll_factor=2):
            at = pid.to(tl.int64) * (M - 1) + m
            fade = tl.load(left + at * K + columns, mask=columns < K, other=0.0)
            S_KV = S_KV * fade[:, None] + load(totals + at * K * V, columns, columns_v, K, V, V)
    return S_KV


@triton.jit(do_not_specialize=RUN_TIME)
def gated_linear_carry_kernel(
    x, y, log_decay, beta, sign, first, totals, left, states, last, scale, T, H, L, M, x_b, x_t, x_h, y_b, y_t, y_h,
    g_b, g_t, g_h, beta_b, beta_t, beta_h, sign_b, sign_t, sign_h,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, GATE: tl.constexpr,
    REVERSE: tl.constexpr, TOTALS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """States [B, H, N, K, V] ahead of every chunk; where REVERSE, derivatives by those behind it.

    x, y         k and v; where REVERSE q and the derivative by o
    log_decay    where GATE is "ready" [B, H, N, K]: what a chunk leaves of the state; x is faded then
    first, last  the states ahead of the sequence and behind it; where REVERSE the derivatives by those behind it and ahead
    totals       [B, H, M - 1, K, V] what segments add to the state, but for the one that is walked last; None: one segment
    left         [B, H, M - 1, K] what they leave of it; both are the results where TOTALS
    """
    pid, segment = tl.program_id(0), tl.program_id(1)
    b, h = (pid // H).to(tl.int64), pid % H
    x += b * x_b + h * x_h
    y += b * y_b + h * y_h
    if beta is not None:
        beta += b * beta_b + h * beta_h
    if sign is not None:
        sign += b * sign_b + h * sign_h
    BLOCKS: tl.constexpr = (V + BV - 1) // BV
    columns = (tl.program_id(2) // BLOCKS) * BK + tl.arange(0, BK)
    columns_v = (tl.program_id(2) % BLOCKS) * BV + tl.arange(0, BV)
    N = tl.cdiv(T, C)
    if states is not None:
        states += pid.to(tl.int64) * N * K * V
    if GATE == "ready":
        log_decay += pid.to(tl.int64) * N * K
    elif log_decay is not None:
        log_decay += b * g_b + h * g_h
    if TOTALS:
        S_KV, over_K = tl.zeros([BK, BV], tl.float32), tl.full([BK], 1.0, tl.float32)
    else:
        S_KV = state_ahead(first, totals, left, pid, segment, M, columns, columns_v, K, V, BK, BV)
    begin = (M - 1 - segment if REVERSE else segment) * L
    end = tl.minimum(begin + L, N)
    for i in range(0, end - begin):
        n = end - 1 - i if REVERSE else begin + i
        rows = n * C + tl.arange(0, C)
        if states is not None:
            store(states + n * K * V, S_KV, columns, columns_v, K, V, V)
        x_CK = load(x, rows, columns, T, K, x_t)
        y_CV = load(y, rows, columns_v, T, V, y_t)
        reads, writes, _, turn = token_factors(beta, sign, rows, scale, T, beta_t, sign_t, C)
        if GATE == "ready":
            fade_K = tl.load(log_decay + n * K + columns, mask=columns < K, other=0.0)
            S_KV *= fade_K[:, None]
        else:
            weights_CK = (reads if REVERSE else writes * turn)[:, None]
            fade_K = tl.full([BK], 1.0, tl.float32) * turn
            if GATE == "head":
                high, _, behind, total = head_sums(log_decay, rows, T, g_t, tl.float32 == DOT)
                weights_CK = weights_CK * tl.exp2(high if REVERSE else behind)[:, None]
                S_KV *= tl.exp2(total)
                fade_K *= tl.exp2(total)
            if GATE == "channel":
                g_CK = load(log_decay, rows, columns, T, K, g_t).to(tl.float32) * LOG2_E
                to_token, to_end = fades(log_decay, g_CK, rows, columns, T, K, g_t, C, C, BK, DOT)
                weights_CK = weights_CK * (to_token if REVERSE else to_end)
                S_KV *= tl.exp2(tl.sum(g_CK, 0))[:, None]
                fade_K *= tl.exp2(tl.sum(g_CK, 0))
            S_KV *= turn
            if REVERSE or GATE != "none" or beta is not None or sign is not None:
                x_CK = (x_CK * weights_CK).to(DOT)
        S_KV += dot(tl.trans(x_CK), y_CV, DOT)
        if TOTALS:
            over_K *= fade_K
    if TOTALS:
        at = pid.to(tl.int64) * (M - 1) + segment
        store(totals + at * K * V, S_KV, columns, columns_v, K, V, V)
        if tl.program_id(2) % BLOCKS == 0:
            tl.store(left + at * K + columns, over_K, mask=columns < K)
    elif last is not None:
        if segment == M - 1:
            store(last + pid.to(tl.int64) * K * V, S_KV, columns, columns_v, K, V, V)
