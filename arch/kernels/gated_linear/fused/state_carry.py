"""The walk of the state over the chunks of a sequence, and of its derivative."""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.gated_linear.fused.decay_factors import LOG2_E, fades, head_sums, token_factors
from recallmap.arch.kernels.gated_linear.fused.tiles import RUN_TIME, dot, load, store


@triton.jit(do_not_specialize=RUN_TIME)
def gated_linear_carry_kernel(
    x, y, log_decay, beta, sign, first, states, last, scale, T, H, x_b, x_t, x_h, y_b, y_t, y_h,
    g_b, g_t, g_h, beta_b, beta_t, beta_h, sign_b, sign_t, sign_h,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, GATE: tl.constexpr,
    REVERSE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """States [B, H, N, K, V] ahead of every chunk; where REVERSE, derivatives by those behind it.

    x, y         k and v; where REVERSE q and the derivative by o
    first, last  the states ahead of the sequence and behind it; where REVERSE the derivatives by those behind it and ahead
    """
    pid = tl.program_id(0)
    b, h = (pid // H).to(tl.int64), pid % H
    x += b * x_b + h * x_h
    y += b * y_b + h * y_h
    if beta is not None:
        beta += b * beta_b + h * beta_h
    if sign is not None:
        sign += b * sign_b + h * sign_h
    columns = tl.program_id(1) * BK + tl.arange(0, BK)
    columns_v = tl.program_id(2) * BV + tl.arange(0, BV)
    N = tl.cdiv(T, C)
    if states is not None:
        states += pid.to(tl.int64) * N * K * V
    if log_decay is not None:
        log_decay += b * g_b + h * g_h
    if first is not None:
        S_KV = load(first + pid.to(tl.int64) * K * V, columns, columns_v, K, V, V).to(tl.float32)
    else:
        S_KV = tl.zeros([BK, BV], tl.float32)
    for i in range(N):
        n = N - 1 - i if REVERSE else i
        rows = n * C + tl.arange(0, C)
        if states is not None:
            store(states + n * K * V, S_KV, columns, columns_v, K, V, V)
        x_CK = load(x, rows, columns, T, K, x_t)
        y_CV = load(y, rows, columns_v, T, V, y_t)
        reads, writes, _, turn = token_factors(beta, sign, rows, scale, T, beta_t, sign_t, C)
        weights_CK = (reads if REVERSE else writes * turn)[:, None]
        if GATE == "head":
            high, _, behind, total = head_sums(log_decay, rows, T, g_t, tl.float32 == DOT)
            weights_CK = weights_CK * tl.exp2(high if REVERSE else behind)[:, None]
            S_KV *= tl.exp2(total)
        if GATE == "channel":
            g_CK = load(log_decay, rows, columns, T, K, g_t).to(tl.float32) * LOG2_E
            to_token, to_end = fades(log_decay, g_CK, rows, columns, T, K, g_t, C, C, BK, DOT)
            weights_CK = weights_CK * (to_token if REVERSE else to_end)
            S_KV *= tl.exp2(tl.sum(g_CK, 0))[:, None]
        S_KV = S_KV * turn + dot(tl.trans((x_CK * weights_CK).to(DOT)), y_CV, DOT)
    if last is not None:
        store(last + pid.to(tl.int64) * K * V, S_KV, columns, columns_v, K, V, V)
