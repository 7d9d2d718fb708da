"""Derivatives of all chunks at once, or of a whole sequence in one walk from its end."""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.gated_linear.fused.channel_pairs import channel_gradients
from recallmap.arch.kernels.gated_linear.fused.decay_factors import head_sums, pair_fades, token_factors
from recallmap.arch.kernels.gated_linear.fused.tiles import RUN_TIME, dot, load, store


@triton.jit
def _score_gradients(
    v, do, rows, T, v_t, do_t, V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, GATE: tl.constexpr, DOT: tl.constexpr
):  # fmt: skip
    """Products of values and derivatives of outputs: [s, t], and [t, s] too where decays go by channel."""
    dA_CC, dAT_CC = tl.zeros([C, C], tl.float32), tl.zeros([C, C], tl.float32)
    for start in range(0, V, BV):
        block = start + tl.arange(0, BV)
        v_CV = load(v, rows, block, T, V, v_t)
        do_CV = load(do, rows, block, T, V, do_t)
        if GATE == "channel":
            dA_CC += dot(do_CV, tl.trans(v_CV), DOT)
        dAT_CC += dot(v_CV, tl.trans(do_CV), DOT)
    return dA_CC, dAT_CC


@triton.jit(do_not_specialize=RUN_TIME)
def gated_linear_gradient_kernel(
    do, d_final, q, k, v, log_decay, beta, sign, states, d_states, dq, dk, dv, dg, d_beta, d_initial, scale, T, H,
    do_b, do_t, do_h, q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, g_b, g_t, g_h,
    beta_b, beta_t, beta_h, sign_b, sign_t, sign_h,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr,
    GATE: tl.constexpr, WALK: tl.constexpr, AHEAD: tl.constexpr, BEHIND: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """Derivatives: of all chunks, the last one first, where WALK; otherwise of one chunk.

    states, d_states  ahead of the chunks, and the derivatives by those behind them; None where WALK
    AHEAD, BEHIND     whether there is a state ahead of some chunk, and whether anything depends on one behind some chunk
    """
    EXACT: tl.constexpr = tl.float32 == DOT
    # One number out of K V that may cancel.
    SUM: tl.constexpr = tl.float64 if EXACT and GATE == "head" and BK * BV <= 1024 else tl.float32
    pid = tl.program_id(0)
    b, h = (pid // H).to(tl.int64), pid % H
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    do += b * do_b + h * do_h
    dq += (b * T * H + h) * K
    dk += (b * T * H + h) * K
    dv += (b * T * H + h) * V
    if beta is not None:
        beta += b * beta_b + h * beta_h
        d_beta += b * T * H + h
    if sign is not None:
        sign += b * sign_b + h * sign_h
    N = tl.cdiv(T, C)
    if AHEAD:
        states += pid.to(tl.int64) * N * K * V
    columns = tl.arange(0, BK)
    place = tl.arange(0, C)
    lower, upper = place[:, None] >= place[None, :], place[:, None] <= place[None, :]
    if GATE == "head":
        dg += b * T * H + h
    if GATE == "channel":
        dg += (b * T * H + h) * K
    if log_decay is not None:
        log_decay += b * g_b + h * g_h
    if WALK:
        columns_v = tl.arange(0, BV)
        if d_final is not None:
            dS_KV = load(d_final + pid.to(tl.int64) * K * V, columns, columns_v, K, V, V).to(tl.float32)
        else:
            dS_KV = tl.zeros([BK, BV], tl.float32)
    for i in range(0, N if WALK else 1):
        n = N - 1 - i if WALK else tl.program_id(1)
        rows = n * C + place
        q_CK = load(q, rows, columns, T, K, q_t)
        k_CK = load(k, rows, columns, T, K, k_t)
        reads, writes, turned, turn = token_factors(beta, sign, rows, scale, T, beta_t, sign_t, C)

        dA_CC, dAT_CC = _score_gradients(v, do, rows, T, v_t, do_t, V, BV, C, GATE, DOT)
        dAT_CC *= writes[:, None] * turned[None, :]

        to_token, to_end = tl.full([C, 1], 1.0, tl.float32), tl.full([C, 1], 1.0, tl.float32)
        if GATE == "channel":
            dA_CC *= turned[:, None] * writes[None, :]
            dq_CK, dk_CK, dg_CK, scores, g_CK, to_token, to_end = channel_gradients(
                q_CK.to(tl.float32), k_CK.to(tl.float32), dA_CC, dAT_CC, q, k, log_decay, rows, columns, T, K,
                q_t, k_t, g_t, LEVELS, C, BK, DOT,
            )  # fmt: skip
        else:
            scores = dot(k_CK, tl.trans(q_CK), DOT)
            if GATE == "head":
                high, low, behind, total = head_sums(log_decay, rows, T, g_t, EXACT)
                to_token, to_end = tl.exp2(high)[:, None], tl.exp2(behind)[:, None]
                fade = pair_fades(high[None, :], low[None, :], high[:, None], low[:, None], upper, EXACT)
                dAT_CC *= fade
                if EXACT:
                    crossing = tl.where(place[:, None] < place[None, :], dAT_CC * scores, 0.0)
                    dg_C = tl.sum(crossing, 0) - tl.sum(crossing, 1)
                scores *= fade
            else:
                dAT_CC = tl.where(upper, dAT_CC, 0.0)
                scores = tl.where(upper, scores, 0.0)
            dk_CK = dot(dAT_CC, q_CK, DOT)
        scores = (scores * turned[None, :]).to(DOT)

        from_ahead, from_behind = tl.zeros([C, BK], tl.float32), tl.zeros([C, BK], tl.float32)
        through, d_writes = tl.zeros([BK], SUM), tl.zeros([C], tl.float32)
        for start in range(0, V, BV):
            block = start + tl.arange(0, BV)
            v_CV = load(v, rows, block, T, V, v_t)
            do_CV = load(do, rows, block, T, V, do_t)
            dv_CV = dot(scores, do_CV, DOT) * scale
            if GATE != "channel":
                dA_CC += dot(do_CV, tl.trans(v_CV), DOT)
            if AHEAD:
                S_KV = load(states + n * K * V, columns, block, K, V, V)
                from_ahead += dot(do_CV, tl.trans(S_KV), DOT)
                if states.dtype.element_ty != DOT:
                    # A few tokens' derivative by log decay may be the little that is left of K V numbers.
                    lost_KV = S_KV - S_KV.to(DOT).to(tl.float32)
                    from_ahead += dot(do_CV, tl.trans(lost_KV), DOT)
            if BEHIND:
                if not WALK:
                    at = d_states + (pid.to(tl.int64) * N + n) * K * V
                    dS_KV = load(at, columns, block, K, V, V)
                from_behind += dot(v_CV, tl.trans(dS_KV.to(DOT)), DOT)
                if GATE == "channel":
                    dv_CV += dot(k_CK * to_end, dS_KV, DOT) * turn
                else:
                    dv_CV += dot(k_CK, dS_KV, DOT) * (to_end * turn)
                if AHEAD:
                    through += tl.sum(S_KV.to(SUM) * dS_KV.to(SUM), 1)
            d_writes += tl.sum(v_CV * dv_CV, 1)
            store(dv, dv_CV * writes[:, None], rows, block, T, V, H * V)
        if beta is not None:
            tl.store(d_beta + rows * H, (d_writes * turned).to(d_beta.dtype.element_ty), mask=rows < T)
        from_ahead *= to_token * turned[:, None]
        from_behind *= to_end * (writes * turn)[:, None]
        if GATE != "channel":
            dA_CC *= turned[:, None] * writes[None, :]
            if GATE == "head":
                dA_CC *= pair_fades(high[:, None], low[:, None], high[None, :], low[None, :], lower, EXACT)
            else:
                dA_CC = tl.where(lower, dA_CC, 0.0)
            dq_CK = dot(dA_CC, k_CK, DOT)
            if GATE == "head" and not EXACT:  # a pair (t, t) adds nothing: its two products are the same numbers
                dg_C = tl.sum(q_CK.to(tl.float32) * dq_CK - k_CK.to(tl.float32) * dk_CK, 1)
        store(dq, (dq_CK + from_ahead) * scale, rows, columns, T, K, H * K)
        store(dk, dk_CK * scale + from_behind, rows, columns, T, K, H * K)

        if GATE == "head":
            written = tl.sum(k_CK.to(SUM) * from_behind.to(SUM), 1)
            dg_C = tl.cumsum((dg_C + tl.sum(q_CK.to(SUM) * from_ahead.to(SUM), 1)) * scale, 0, reverse=True)
            dg_C += tl.cumsum(written, 0) - written + tl.sum(through, 0) * (tl.exp2(total) * turn)
            tl.store(dg + rows * H, dg_C.to(dg.dtype.element_ty), mask=rows < T)
        if GATE == "channel":
            over = tl.exp2(tl.sum(g_CK, 0))
            written = k_CK * from_behind
            dg_CK = tl.cumsum((dg_CK + q_CK * from_ahead) * scale, 0, reverse=True)
            dg_CK += tl.cumsum(written, 0) - written + (through * over * turn)[None, :]
            store(dg, dg_CK, rows, columns, T, K, H * K)
        if WALK and (BEHIND or d_initial is not None):
            do_CV = load(do, rows, columns_v, T, V, do_t)
            faded_CK = q_CK * (to_token * reads[:, None])
            if GATE == "head":
                dS_KV *= tl.exp2(total)
            if GATE == "channel":
                dS_KV *= over[:, None]
            dS_KV = dS_KV * turn + dot(tl.trans(faded_CK.to(DOT)), do_CV, DOT)
    if WALK and d_initial is not None:
        store(d_initial + pid.to(tl.int64) * K * V, dS_KV, columns, columns_v, K, V, V)
