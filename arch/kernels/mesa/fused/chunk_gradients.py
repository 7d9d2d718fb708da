"""Derivatives by what a chunk writes."""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.mesa.fused.decay_factors import fades_to_end, pair_fades, write_strengths
from recallmap.arch.kernels.mesa.fused.tiles import dot, dot_halves, load, rough_dot, store


@triton.jit(do_not_specialize=["T", "H", "G", "N", "start"])
def mesa_gradient_kernel(
    d_o, k, v, log_decay, beta, sign, solution, adjoint, low_adjoint, behind_kk, behind_kv, d_fade, d_over,
    d_k, d_v, d_log_decay, d_beta, T, H, G, N, scale, start, k_b, k_t, v_b, v_t,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr, C: tl.constexpr, BLOCKS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Derivatives by what one chunk writes, from those by the state behind it and from the chunk's own readers.

    Scores are [s, t]: what is written at s and read at t.
    """
    BEHIND: tl.constexpr = behind_kk is not None
    place = tl.program_id(0).to(tl.int64) * N + tl.program_id(1)
    sequence, n = start + tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = sequence // H, sequence % H
    i, t = tl.arange(0, BK), n * C + tl.arange(0, C)
    at, there = b * T * H + h + t * H, t < T
    own = (b * T * H + h) * K
    k_ = load(k + b * k_b + h % G * K, t, i, k_t, 1, T, K)
    write = write_strengths(beta, at, there, C)
    pairs = pair_fades(log_decay, sign, at, there, C, 1, PRECISION)
    weights = pairs * write[:, None]
    to_end = fades_to_end(log_decay, sign, at, there, H, T - n * C, C, PRECISION)

    by_k = dot(k_, load(solution + own, i, t, 1, H * K, K, T), PRECISION)
    values = tl.zeros((C, C), tl.float32)
    behind = tl.zeros((C, BK), tl.float32)
    by_end = tl.zeros((C,), tl.float32)
    for first in range(0, V, BC):
        j = first + tl.arange(0, BC)
        v_ = load(v + b * v_b + h * V, t, j, v_t, 1, T, V)
        values += scale * dot(v_, load(d_o + (b * T * H + h) * V, j, t, 1, H * V, V, T), PRECISION)
        by_v = scale * rough_dot(weights * by_k, load(d_o + (b * T * H + h) * V, t, j, H * V, 1, T, V), PRECISION)
        if BEHIND:
            state = behind_kv + place * K * V
            kept = load(state, i, j, V, 1, K, V)
            behind += dot(v_, tl.trans(kept), PRECISION)
            through = dot(k_, kept, PRECISION)
            by_end += tl.sum(through * v_.to(tl.float32), 1)
            by_v += (write * to_end)[:, None] * through
        store(d_v + (b * T * H + h) * V, by_v, t, j, H * V, 1, T, V)
    adjoint_ = load(adjoint + own, i, t, 1, H * K, K, T)
    if low_adjoint is None:
        values -= dot(k_, adjoint_, PRECISION)
    else:
        values -= dot_halves(k_, adjoint_, load(low_adjoint + own, i, t, 1, H * K, K, T), PRECISION)

    by_key = rough_dot(weights * values, load(solution + own, t, i, H * K, 1, T, K), PRECISION)
    by_key -= rough_dot(weights * by_k, load(adjoint + own, t, i, H * K, 1, T, K), PRECISION)
    if BEHIND:
        state = behind_kk + place * K * K
        if BK > 64 and PRECISION != "split":  # a block at a time, since a factor in fp32 takes all registers
            through = tl.zeros((C, BK), tl.float32)
            for first in range(0, K, 32):
                m = first + tl.arange(0, 32)
                kept = load(state, m, i, K, 1, K, K) + load(state, m, i, 1, K, K, K)
                through += dot(load(k + b * k_b + h % G * K, t, m, k_t, 1, T, K), kept, PRECISION)
        else:
            kept = load(state, i, i, K, 1, K, K)
            through = dot(k_, tl.trans(kept), PRECISION) + dot(k_, kept, PRECISION)
        by_end += 0.5 * tl.sum(through * k_.to(tl.float32), 1)
        by_key += (write * to_end)[:, None] * (through + behind)
        by_end *= to_end
    store(d_k + own, by_key, t, i, H * K, 1, T, K)

    by_pair = pairs * by_k * values
    if d_beta is not None:
        tl.store(d_beta + at, tl.sum(by_pair, 1) + by_end, mask=there)
    if d_log_decay is not None:
        s_, t_ = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
        within, over, fading = by_pair * write[:, None], by_end * write, tl.load(d_fade + at, mask=there, other=0.0)
        if PRECISION == "split":  # differences of sums have digits enough
            within = tl.where(s_ < t_, within, 0.0)
            by_decay = (
                tl.cumsum(tl.sum(within, 0) - tl.sum(within, 1) + fading, 0, reverse=True) + tl.cumsum(over, 0) - over
            )
        else:
            later = tl.cumsum(within, 1, reverse=True)
            by_decay = tl.sum(tl.where(s_ < t_, later + over[:, None], fading[:, None]), 0)
        if d_over is not None:
            for block in range(BLOCKS):
                by_decay += tl.load(d_over + place * BLOCKS + block)
        tl.debug_barrier()  # d_fade is read, which may lie there
        tl.store(d_log_decay + at, by_decay, mask=there)
