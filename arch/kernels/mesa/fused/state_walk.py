"""Walks of the states along the chunks of a sequence, and of their derivatives from its end.

A program has BR rows and BC columns of kk or of kv, and a segment of the chunks. Where there are several segments, a first
launch leaves what each adds to the state, and a second begins where those before end. N chunks of C tokens, K key width, V
value width, W the one or the other
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.mesa.fused.decay_factors import fades_from_start, fades_to_end, write_strengths
from recallmap.arch.kernels.mesa.fused.tiles import dot, load, load_halves, store, store_halves


@triton.jit
def _part(K: tl.constexpr, V: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """The rows and columns of this program, and whether they are of kk."""
    blocks_of_kk: tl.constexpr = (K + BC - 1) // BC
    blocks: tl.constexpr = blocks_of_kk + (V + BC - 1) // BC
    block = tl.program_id(1) % blocks
    of_kk = block < blocks_of_kk
    column = tl.where(of_kk, block, block - blocks_of_kk) * BC
    return tl.program_id(1) // blocks * BR + tl.arange(0, BR), column + tl.arange(0, BC), of_kk


@triton.jit
def _walk_states(
    k, content, log_decay, beta, sign, initial, left, faded, ahead, final, i, j, T, H, N, length, k_t, content_t,
    K: tl.constexpr, W: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The states [K, W] of one content, of which rows i and columns j."""
    sequence, segment = tl.program_id(0).to(tl.int64), tl.program_id(2)
    b, h = sequence // H, sequence % H
    state, all_over = tl.zeros((i.shape[0], j.shape[0]), tl.float32), tl.full((), 1.0, tl.float32)
    if ahead is not None:
        if initial is not None:
            state = load(initial + sequence * K * W, i, j, W, 1, K, W).to(tl.float32)
        if left is not None:
            for before in range(segment):
                place = sequence * tl.num_programs(2) + before
                state = state * tl.load(faded + place) + load(left + place * K * W, i, j, W, 1, K, W)
    for n in range(segment * length, min((segment + 1) * length, N)):
        if ahead is not None:
            store_halves(ahead, sequence * N + n, state, i, j, K, W, PRECISION)
        t = n * C + tl.arange(0, C)
        at, there = b * T * H + h + t * H, t < T
        _, over = fades_from_start(log_decay, sign, at, there, C)
        write = fades_to_end(log_decay, sign, at, there, H, T - n * C, C, PRECISION)
        write *= write_strengths(beta, at, there, C)
        written = load(k, i, t, 1, k_t, K, T).to(tl.float32) * write[None, :]
        state = state * over + dot(written, load(content, t, j, content_t, 1, T, W), PRECISION)
        all_over *= over
    if ahead is None:
        place = sequence * tl.num_programs(2) + segment
        store(left + place * K * W, state, i, j, W, 1, K, W)
        tl.store(faded + place, all_over)
    elif final is not None:
        if segment == tl.num_programs(2) - 1:
            store(final + sequence * K * W, state, i, j, W, 1, K, W)


@triton.jit(do_not_specialize=["T", "H", "G", "N", "length"])
def mesa_states_kernel(
    k, v, log_decay, beta, sign, initial_kk, initial_kv, left_kk, left_kv, faded, ahead_kk, ahead_kv, final_kk, final_kv,
    T, H, G, N, length, k_b, k_t, v_b, v_t,
    K: tl.constexpr, V: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """States ahead of the chunks and behind the last; without `ahead_kk`, what segments of `length` chunks leave."""
    sequence = tl.program_id(0).to(tl.int64)
    b, h = sequence // H, sequence % H
    i, j, of_kk = _part(K, V, BR, BC)
    k += b * k_b + h % G * K
    v += b * v_b + h * V
    if of_kk:
        _walk_states(
            k, k, log_decay, beta, sign, initial_kk, left_kk, faded, ahead_kk, final_kk, i, j, T, H, N, length, k_t, k_t,
            K, K, C, PRECISION,
        )  # fmt: skip
    else:
        _walk_states(
            k, v, log_decay, beta, sign, initial_kv, left_kv, faded, ahead_kv, final_kv, i, j, T, H, N, length, k_t, v_t,
            K, V, C, PRECISION,
        )  # fmt: skip


@triton.jit
def _walk_behind(
    solution, content, log_decay, sign, ahead, d_final, left, faded, behind, d_initial, d_over, i, j, T, H, N, length, by,
    K: tl.constexpr, W: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Derivatives by the states [K, W] which solutions read for `content`, times `by`, of which rows i and columns j."""
    sequence, segment, segments = tl.program_id(0).to(tl.int64), tl.program_id(2), tl.num_programs(2)
    b, h = sequence // H, sequence % H
    own = b * T * H + h
    d_state, all_over = tl.zeros((i.shape[0], j.shape[0]), tl.float32), tl.full((), 1.0, tl.float32)
    if behind is not None:
        if d_final is not None:
            d_state = load(d_final + sequence * K * W, i, j, W, 1, K, W).to(tl.float32)
        if left is not None:
            for back in range(segments - 1 - segment):
                place = sequence * segments + segments - 1 - back
                d_state = d_state * tl.load(faded + place) + load(left + place * K * W, i, j, W, 1, K, W)
    end = min((segment + 1) * length, N)
    for back in range(end - segment * length):
        n = end - 1 - back
        t = n * C + tl.arange(0, C)
        at, there = own + t * H, t < T
        fade, over = fades_from_start(log_decay, sign, at, there, C)
        if behind is not None:
            place = sequence * N + n
            store(behind + place * K * W, d_state, i, j, W, 1, K, W)
            if d_over is not None:
                high, low = load_halves(ahead, place, i, j, K, W, PRECISION)
                read = high.to(tl.float32)
                if PRECISION == "split":
                    read += low.to(tl.float32)
                by_over = over * tl.sum(tl.sum(d_state * read, 1), 0)
                tl.store(d_over + place * tl.num_programs(1) + tl.program_id(1), by_over)
        readers = load(solution + own * K, i, t, 1, H * K, K, T) * (by * fade)[None, :]
        d_state = d_state * over + dot(readers, load(content + own * W, t, j, H * W, 1, T, W), PRECISION)
        all_over *= over
    if behind is None:
        place = sequence * segments + segment
        store(left + place * K * W, d_state, i, j, W, 1, K, W)
        tl.store(faded + place, all_over)
    elif d_initial is not None:
        if segment == 0:
            store(d_initial + sequence * K * W, d_state, i, j, W, 1, K, W)


@triton.jit(do_not_specialize=["T", "H", "N", "length"])
def mesa_behind_kernel(
    d_o, log_decay, sign, ahead_kk, ahead_kv, solution, adjoint, d_final_kk, d_final_kv, left_kk, left_kv, faded,
    behind_kk, behind_kv, d_initial_kk, d_initial_kv, d_over, T, H, N, length, scale,
    K: tl.constexpr, V: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Derivatives by the states behind the chunks and by the first: `mesa_states_kernel` backward."""
    i, j, of_kk = _part(K, V, BR, BC)
    if of_kk:
        _walk_behind(
            solution, adjoint, log_decay, sign, ahead_kk, d_final_kk, left_kk, faded, behind_kk, d_initial_kk, d_over, i, j,
            T, H, N, length, -1.0, K, K, C, PRECISION,
        )  # fmt: skip
    else:
        _walk_behind(
            solution, d_o, log_decay, sign, ahead_kv, d_final_kv, left_kv, faded, behind_kv, d_initial_kv, d_over, i, j,
            T, H, N, length, scale, K, V, C, PRECISION,
        )  # fmt: skip
