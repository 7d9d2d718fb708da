"""Outputs of all chunks at once, or of a whole sequence or segment in one walk."""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.gated_linear.fused.channel_pairs import channel_scores
from recallmap.arch.kernels.gated_linear.fused.decay_factors import LOG2_E, fades, head_sums, pair_fades, token_factors
from recallmap.arch.kernels.gated_linear.fused.state_carry import state_ahead
from recallmap.arch.kernels.gated_linear.fused.tiles import RUN_TIME, dot, load, store


@triton.jit(do_not_specialize=RUN_TIME)
def gated_linear_read_out_kernel(
    q, k, v, log_decay, beta, sign, pairs, initial, totals, left, o, states, final, scale, T, H, L, M,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, g_b, g_t, g_h, beta_b, beta_t, beta_h, sign_b, sign_t, sign_h,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr,
    GATE: tl.constexpr, WALK: tl.constexpr, AHEAD: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Outputs: of all chunks of a segment, with their states, where WALK; otherwise of one chunk, whose state is there.

    pairs      where GATE is "ready" [B, H, T, C]: weights of each token's values in each output; q and k are faded then
    log_decay  where GATE is "ready" [B, H, N, K]: what a chunk leaves of the state
    totals     of segments, as `gated_linear_carry_kernel` has them, with `left`; None: one segment
    states     ahead of chunks; None where WALK and nothing reads them later
    """
    pid = tl.program_id(0)
    b, h = (pid // H).to(tl.int64), pid % H
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    o += (b * T * H + h) * V
    if beta is not None:
        beta += b * beta_b + h * beta_h
    if sign is not None:
        sign += b * sign_b + h * sign_h
    N = tl.cdiv(T, C)
    if states is not None:
        states += pid.to(tl.int64) * N * K * V
    columns = tl.arange(0, BK)
    columns_v = tl.program_id(2) * BV + tl.arange(0, BV)
    place = tl.arange(0, C)
    lower = place[:, None] >= place[None, :]
    if GATE == "ready":
        pairs += pid.to(tl.int64) * T * C
        log_decay += pid.to(tl.int64) * N * K
    elif log_decay is not None:
        log_decay += b * g_b + h * g_h
    segment = tl.program_id(1)
    if WALK:
        S_KV = state_ahead(initial, totals, left, pid, segment, M, columns, columns_v, K, V, BK, BV)
    begin, end = segment, segment + 1
    if WALK:
        begin, end = 0, N
        if totals is not None:
            begin, end = segment * L, tl.minimum(segment * L + L, N)
    for n in range(begin, end):
        rows = n * C + place
        q_CK = load(q, rows, columns, T, K, q_t)
        if GATE != "ready":
            k_CK = load(k, rows, columns, T, K, k_t)
        v_CV = load(v, rows, columns_v, T, V, v_t)
        if GATE == "ready":
            scores = load(pairs, rows, place, T, C, C)
            if AHEAD and not WALK:
                S_KV = load(states + n * K * V, columns, columns_v, K, V, V)
            o_CV = dot(scores, v_CV, DOT)
            if AHEAD:
                o_CV += dot(q_CK, S_KV, DOT)
            store(o, o_CV, rows, columns_v, T, V, H * V)
        else:
            reads, writes, _, turn = token_factors(beta, sign, rows, scale, T, beta_t, sign_t, C)
            to_token, to_end = tl.full([C, 1], 1.0, tl.float32), tl.full([C, 1], 1.0, tl.float32)
            if GATE == "head":
                high, low, behind, total = head_sums(log_decay, rows, T, g_t, tl.float32 == DOT)
                to_token, to_end = tl.exp2(high)[:, None], tl.exp2(behind)[:, None]
            if GATE == "channel":
                g_CK = load(log_decay, rows, columns, T, K, g_t).to(tl.float32) * LOG2_E
                scores = channel_scores(
                    q_CK.to(tl.float32), k_CK.to(tl.float32), g_CK, k, log_decay, rows, columns, T, K, k_t, g_t,
                    LEVELS, C, BK, DOT,
                )  # fmt: skip
                if AHEAD or WALK:
                    to_token, to_end = fades(log_decay, g_CK, rows, columns, T, K, g_t, C, C, BK, DOT)
            else:
                scores = dot(q_CK, tl.trans(k_CK), DOT)
                if GATE == "head":
                    scores *= pair_fades(
                        high[:, None], low[:, None], high[None, :], low[None, :], lower, tl.float32 == DOT
                    )
                else:
                    scores = tl.where(lower, scores, 0.0)
            if beta is not None or sign is not None:
                scores *= writes[None, :]
            o_CV = dot(scores, v_CV, DOT)
            if AHEAD:
                if not WALK:
                    S_KV = load(states + n * K * V, columns, columns_v, K, V, V)
                if GATE == "channel":
                    o_CV += dot(q_CK * to_token, S_KV, DOT)
                else:
                    o_CV += dot(q_CK, S_KV, DOT) * to_token
            store(o, o_CV * reads[:, None], rows, columns_v, T, V, H * V)
        if WALK:
            if states is not None:
                store(states + n * K * V, S_KV, columns, columns_v, K, V, V)
            if GATE == "ready":
                fade_K = tl.load(log_decay + n * K + columns, mask=columns < K, other=0.0)
                S_KV *= fade_K[:, None]
                S_KV += dot(tl.trans(load(k, rows, columns, T, K, k_t)), v_CV, DOT)
            elif AHEAD or final is not None:
                if GATE == "head":
                    S_KV *= tl.exp2(total)
                if GATE == "channel":
                    S_KV *= tl.exp2(tl.sum(g_CK, 0))[:, None]
                if GATE == "none" and beta is None and sign is None:
                    S_KV += dot(tl.trans(k_CK), v_CV, DOT)
                elif GATE != "channel" and BV < BK:  # the smaller of the two takes up their weights
                    weights_C = (to_end * (writes * turn)[:, None]).to(tl.float32)
                    S_KV = S_KV * turn + dot(tl.trans(k_CK), v_CV * weights_C, DOT)
                else:
                    weights_CK = to_end * (writes * turn)[:, None]
                    S_KV = S_KV * turn + dot(tl.trans((k_CK * weights_CK).to(DOT)), v_CV, DOT)
    if WALK and final is not None:
        if totals is None or segment == M - 1:
            store(final + pid.to(tl.int64) * K * V, S_KV, columns, columns_v, K, V, V)
