"""The solve for the queries of a chunk, and what they read with the solutions."""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.mesa.fused.decay_factors import fades_from_start, pair_fades, write_strengths
from recallmap.arch.kernels.mesa.fused.solvers import regulariser, solve
from recallmap.arch.kernels.mesa.fused.tiles import dot, dot_halves, load, load_diagonal, load_halves, rough_dot, store


@triton.jit(do_not_specialize=["T", "H", "G", "N", "members", "steps", "start"])
def mesa_read_out_kernel(
    q, k, v, lam, log_decay, beta, sign, ahead_kk, low_kk, ahead_kv, low_kv, o, solution, taken, T, H, G, N, members, steps,
    enough, ridge, scale, start, q_b, q_t, k_b, k_t, v_b, v_t,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr, C: tl.constexpr, X0: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Solve for the queries of one chunk and read the state with the solutions."""
    AHEAD: tl.constexpr = ahead_kk is not None
    own, n = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, place = start + own, own * N + n
    b, h = sequence // H, sequence % H
    i, t = tl.arange(0, BK), n * C + tl.arange(0, C)
    at, there = b * T * H + h + t * H, t < T
    k_ = load(k + b * k_b + h % G * K, t, i, k_t, 1, T, K)
    kT = tl.trans(k_)
    lam_ = regulariser(lam, (b // members) * H + h, at, there, i, K, ridge)
    weights = pair_fades(log_decay, sign, at, there, C, 0, PRECISION) * write_strengths(beta, at, there, C)[None, :]
    fade, _ = fades_from_start(log_decay, sign, at, there, C)
    diagonal, kk_high, kk_low = tl.zeros((BK,), tl.float32), kT, kT
    if AHEAD:
        kk_high, kk_low = load_halves(ahead_kk, low_kk, place, i, i, K, K)
        diagonal = load_diagonal(ahead_kk, low_kk, place, i, K)
    rhs = load(q + b * q_b + h % G * K, t, i, q_t, 1, T, K).to(tl.float32)
    x, used = solve(
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
    store(solution + (b * T * H + h) * K, x, t, i, H * K, 1, T, K)
    tl.store(taken + at, used, mask=there)
    scores = dot(x, kT, PRECISION) * weights
    for first in range(0, V, BC):
        j = first + tl.arange(0, BC)
        read = rough_dot(scores, load(v + b * v_b + h * V, t, j, v_t, 1, T, V), PRECISION)
        if AHEAD:
            kv_high, kv_low = load_halves(ahead_kv, low_kv, place, i, j, K, V)
            read += fade[:, None] * dot_halves(x, kv_high, kv_low, PRECISION)
        store(o + (b * T * H + h) * V, read * scale, t, j, H * V, 1, T, V)
