"""The solve for the derivatives by the solutions of a chunk."""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.mesa.fused.decay_factors import fades_from_start, pair_fades, write_strengths
from recallmap.arch.kernels.mesa.fused.solvers import regulariser, solve
from recallmap.arch.kernels.mesa.fused.tiles import (
    dot,
    dot_halves,
    high_of,
    load,
    load_diagonal,
    load_halves,
    low_of,
    store,
)


@triton.jit(do_not_specialize=["T", "H", "G", "N", "members", "steps", "start"])
def mesa_adjoint_kernel(
    d_o, k, v, lam, log_decay, beta, sign, ahead_kk, low_kk, ahead_kv, low_kv, solution, adjoint, low_adjoint, d_q, d_lam,
    d_fade, T, H, G, N, members, steps, enough, ridge, scale, start, k_b, k_t, v_b, v_t,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr, C: tl.constexpr, X0: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Solve for the derivatives by the solutions of one chunk: `adjoint`, whole or in halves; d_fade is f_t df_t."""
    AHEAD: tl.constexpr = ahead_kk is not None
    HELD: tl.constexpr = BK <= 64  # kk, through the solve; wider ones are read anew behind it, as registers are too few
    place = tl.program_id(0).to(tl.int64) * N + tl.program_id(1)
    sequence, n = start + tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = sequence // H, sequence % H
    i, t = tl.arange(0, BK), n * C + tl.arange(0, C)
    at, there = b * T * H + h + t * H, t < T
    own = (b * T * H + h) * K
    k_ = load(k + b * k_b + h % G * K, t, i, k_t, 1, T, K)
    kT = tl.trans(k_)
    lam_ = regulariser(lam, (b // members) * H + h, at, there, i, K, ridge)
    weights = pair_fades(log_decay, sign, at, there, C, 0, PRECISION) * write_strengths(beta, at, there, C)[None, :]
    fade, _ = fades_from_start(log_decay, sign, at, there, C)

    scores = tl.zeros((C, C), tl.float32)
    read = tl.zeros((C, BK), tl.float32)
    for first in range(0, V, BC):
        j = first + tl.arange(0, BC)
        d_o_ = load(d_o + (b * T * H + h) * V, t, j, H * V, 1, T, V)
        scores += dot(d_o_, tl.trans(load(v + b * v_b + h * V, t, j, v_t, 1, T, V)), PRECISION)
        if AHEAD:
            kv_high, kv_low = load_halves(ahead_kv, low_kv, place, i, j, K, V)
            read += dot_halves(d_o_, tl.trans(kv_high), tl.trans(kv_low), PRECISION)
    rhs = scale * dot(scores * weights, k_, PRECISION)
    diagonal, kk_high, kk_low = tl.zeros((BK,), tl.float32), kT, kT
    by_fade = tl.zeros((C,), tl.float32)
    if AHEAD:
        read = scale * fade[:, None] * read
        rhs += read
        by_fade = tl.sum(read * load(solution + own, t, i, H * K, 1, T, K), 1)
        if not HELD:
            tl.debug_barrier()  # or the compiler holds kk beside what comes before it
        kk_high, kk_low = load_halves(ahead_kk, low_kk, place, i, i, K, K)
        diagonal = load_diagonal(ahead_kk, low_kk, place, i, K)
    e, _ = solve(
        rhs,
        k_,
        kT,
        weights,
        fade,
        lam_,
        diagonal[None, :],
        kk_high,
        kk_low,
        steps,
        enough,
        ridge,
        X0,
        AHEAD,
        PRECISION,
    )
    x = load(solution + own, t, i, H * K, 1, T, K)
    if low_adjoint is None:
        store(adjoint + own, e, t, i, H * K, 1, T, K)
    else:
        store(adjoint + own, high_of(e), t, i, H * K, 1, T, K)
        store(low_adjoint + own, low_of(e), t, i, H * K, 1, T, K)
    if d_q is not None:
        store(d_q + own, e, t, i, H * K, 1, T, K)
    if ridge is None:
        row = ((b // members) * H + h) * K + i
        tl.store(d_lam + (row * members + b % members) * N + n, -tl.sum(x * e, 0), mask=i < K)
    else:
        tl.store(d_lam + at, -tl.sum(x * e, 1), mask=there)
    if d_fade is not None:
        if AHEAD:
            if not HELD:
                kk_high, kk_low = load_halves(ahead_kk, low_kk, place, i, i, K, K)
            by_fade -= fade * tl.sum(dot_halves(x, kk_high, kk_low, PRECISION) * e, 1)
        tl.store(d_fade + at, by_fade, mask=there)
