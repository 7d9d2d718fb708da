"""Walks of the states along the chunks of a sequence, and of their derivatives from its end.

A program has BC columns of kk or of kv. N chunks of C tokens, K key width, V value width
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.mesa.fused.decay_factors import fades_from_start, fades_to_end, write_strengths
from recallmap.arch.kernels.mesa.fused.tiles import dot, load, store


@triton.jit(do_not_specialize=["T", "H", "G", "N"])
def mesa_states_kernel(
    k, v, log_decay, beta, sign, initial_kk, initial_kv, ahead_kk, ahead_kv, final_kk, final_kv, T, H, G, N,
    k_b, k_t, v_b, v_t,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """States ahead of the chunks and behind the last: a program has BC columns of kk or of kv, and walks the chunks."""
    sequence = tl.program_id(0).to(tl.int64)
    b, h = sequence // H, sequence % H
    blocks_of_kk = tl.cdiv(K, BC)
    of_kk = tl.program_id(1) < blocks_of_kk
    i, j = tl.arange(0, BK), tl.program_id(1) * BC + tl.arange(0, BC)
    if tl.program_id(1) >= blocks_of_kk:
        j -= blocks_of_kk * BC
    k += b * k_b + h % G * K
    v += b * v_b + h * V
    state = tl.zeros((BK, BC), tl.float32)
    if initial_kk is not None:
        if of_kk:
            state = load(initial_kk + sequence * K * K, i, j, K, 1, K, K)
        else:
            state = load(initial_kv + sequence * K * V, i, j, V, 1, K, V)
    for n in range(N):
        if of_kk:
            store(ahead_kk + (sequence * N + n) * K * K, state, i, j, K, 1, K, K)
        else:
            store(ahead_kv + (sequence * N + n) * K * V, state, i, j, V, 1, K, V)
        t = n * C + tl.arange(0, C)
        at, there = b * T * H + h + t * H, t < T
        _, over = fades_from_start(log_decay, sign, at, there, C)
        write = fades_to_end(log_decay, sign, at, there, H, T - n * C, C) * write_strengths(beta, at, there, C)
        written = load(k, i, t, 1, k_t, K, T).to(tl.float32) * write[None, :]
        content = load(k, t, j, k_t, 1, T, K) if of_kk else load(v, t, j, v_t, 1, T, V)
        state = state * over + dot(written, content, PRECISION)
    if final_kk is not None:
        if of_kk:
            store(final_kk + sequence * K * K, state, i, j, K, 1, K, K)
        else:
            store(final_kv + sequence * K * V, state, i, j, V, 1, K, V)


@triton.jit
def _leave(
    d_state, ahead_kk, ahead_kv, behind_kk, behind_kv, d_over, over, place, of_kk, i, j, K: tl.constexpr, V: tl.constexpr
):  # fmt: skip
    """Put down the derivative by the state behind a chunk, and what it says of the decay over the chunk."""
    if of_kk:
        ahead = load(ahead_kk + place * K * K, i, j, K, 1, K, K)
        store(behind_kk + place * K * K, d_state, i, j, K, 1, K, K)
    else:
        ahead = load(ahead_kv + place * K * V, i, j, V, 1, K, V)
        store(behind_kv + place * K * V, d_state, i, j, V, 1, K, V)
    if d_over is not None:
        by_over = over * tl.sum(tl.sum(d_state * ahead, 1), 0)
        tl.store(d_over + place * tl.num_programs(1) + tl.program_id(1), by_over)


@triton.jit(do_not_specialize=["T", "H", "N"])
def mesa_behind_kernel(
    d_o, log_decay, sign, ahead_kk, ahead_kv, solution, adjoint, d_final_kk, d_final_kv,
    behind_kk, behind_kv, d_initial_kk, d_initial_kv, d_over, T, H, N, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Derivatives by the states behind the chunks and by the first: `mesa_states_kernel` backward."""
    sequence = tl.program_id(0).to(tl.int64)
    b, h = sequence // H, sequence % H
    blocks_of_kk = tl.cdiv(K, BC)
    of_kk = tl.program_id(1) < blocks_of_kk
    i, j = tl.arange(0, BK), tl.program_id(1) * BC + tl.arange(0, BC)
    if tl.program_id(1) >= blocks_of_kk:
        j -= blocks_of_kk * BC
    own = (b * T * H + h) * K
    d_state = tl.zeros((BK, BC), tl.float32)
    if d_final_kk is not None:
        if of_kk:
            d_state = load(d_final_kk + sequence * K * K, i, j, K, 1, K, K)
        else:
            d_state = load(d_final_kv + sequence * K * V, i, j, V, 1, K, V)
    for back in range(N):
        n = N - 1 - back
        t = n * C + tl.arange(0, C)
        at, there = b * T * H + h + t * H, t < T
        fade, over = fades_from_start(log_decay, sign, at, there, C)
        place = sequence * N + n
        _leave(d_state, ahead_kk, ahead_kv, behind_kk, behind_kv, d_over, over, place, of_kk, i, j, K, V)
        if of_kk:
            content = -load(adjoint + own, t, j, H * K, 1, T, K)
        else:
            content = scale * load(d_o + (b * T * H + h) * V, t, j, H * V, 1, T, V).to(tl.float32)
        readers = load(solution + own, i, t, 1, H * K, K, T) * fade[None, :]
        d_state = d_state * over + dot(readers, content, PRECISION)
    if d_initial_kk is not None:
        if of_kk:
            store(d_initial_kk + sequence * K * K, d_state, i, j, K, 1, K, K)
        else:
            store(d_initial_kv + sequence * K * V, d_state, i, j, V, 1, K, V)
