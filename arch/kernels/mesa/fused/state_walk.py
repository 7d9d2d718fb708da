"""Walks of the states along the chunks of a sequence, and of their derivatives from its end.

A program has BR rows and BC columns of kk or of kv, and a segment of the chunks. Where there are several segments, a first
launch leaves what each adds to the state, and a second begins where those before end. A launch has the sequences from `start`
on, and room for their states alone. N chunks of C tokens, K key width, V value width, W the one or the other
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.mesa.fused.decay_factors import fades_from_start, fades_to_end, write_strengths
from recallmap.arch.kernels.mesa.fused.tiles import dot, dot_halves, load, load_halves, store, store_halves


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
    k, content, log_decay, beta, sign, initial, left, faded, ahead, low, final, i, j, T, H, N, length, start, k_t, content_t,
    K: tl.constexpr, W: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The states [K, W] of one content, of which rows i and columns j."""
    own, segment = tl.program_id(0).to(tl.int64), tl.program_id(2)
    sequence = start + own
    b, h = sequence // H, sequence % H
    state, all_over = tl.zeros((i.shape[0], j.shape[0]), tl.float32), tl.full((), 1.0, tl.float32)
    if ahead is not None:
        if initial is not None:
            state = load(initial + sequence * K * W, i, j, W, 1, K, W).to(tl.float32)
        if left is not None:
            for before in range(segment):
                place = own * tl.num_programs(2) + before
                state = state * tl.load(faded + place) + load(left + place * K * W, i, j, W, 1, K, W)
    for n in range(segment * length, min((segment + 1) * length, N)):
        if ahead is not None:
            store_halves(ahead, low, own * N + n, state, i, j, K, W)
        t = n * C + tl.arange(0, C)
        at, there = b * T * H + h + t * H, t < T
        _, over = fades_from_start(log_decay, sign, at, there, C)
        write = fades_to_end(log_decay, sign, at, there, H, T - n * C, C, PRECISION)
        write *= write_strengths(beta, at, there, C)
        written = load(k, i, t, 1, k_t, K, T).to(tl.float32) * write[None, :]
        state = state * over + dot(written, load(content, t, j, content_t, 1, T, W), PRECISION)
        all_over *= over
    if ahead is None:
        place = own * tl.num_programs(2) + segment
        store(left + place * K * W, state, i, j, W, 1, K, W)
        tl.store(faded + place, all_over)
    elif final is not None:
        if segment == tl.num_programs(2) - 1:
            store(final + sequence * K * W, state, i, j, W, 1, K, W)


@triton.jit(do_not_specialize=["T", "H", "G", "N", "length", "start"])
def mesa_states_kernel(
    k, v, log_decay, beta, sign, initial_kk, initial_kv, left_kk, left_kv, faded, ahead_kk, low_kk, ahead_kv, low_kv,
    final_kk, final_kv, T, H, G, N, length, start, k_b, k_t, v_b, v_t,
    K: tl.constexpr, V: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """States ahead of the chunks and behind the last; without `ahead_kk`, what segments of `length` chunks leave."""
    sequence = start + tl.program_id(0).to(tl.int64)
    b, h = sequence // H, sequence % H
    i, j, of_kk = _part(K, V, BR, BC)
    k += b * k_b + h % G * K
    v += b * v_b + h * V
    if of_kk:
        _walk_states(
            k, k, log_decay, beta, sign, initial_kk, left_kk, faded, ahead_kk, low_kk, final_kk, i, j, T, H, N, length, start,
            k_t, k_t, K, K, C, PRECISION,
        )  # fmt: skip
    else:
        _walk_states(
            k, v, log_decay, beta, sign, initial_kv, left_kv, faded, ahead_kv, low_kv, final_kv, i, j, T, H, N, length, start,
            k_t, v_t, K, V, C, PRECISION,
        )  # fmt: skip


@triton.jit
def _walk_behind(
    solution, content, content_low, log_decay, sign, ahead, low, d_final, left, faded, behind, d_initial, d_over, i, j,
    T, H, N, length, start, by, K: tl.constexpr, W: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
    OVER: tl.constexpr,
):  # fmt: skip
    """Derivatives by the states [K, W] which solutions read for `content`, times `by`, of which rows i and columns j. Where
    OVER they take the place of the states."""
    slot, segment, segments = tl.program_id(0).to(tl.int64), tl.program_id(2), tl.num_programs(2)
    sequence = start + slot
    b, h = sequence // H, sequence % H
    own = b * T * H + h
    d_state, all_over = tl.zeros((i.shape[0], j.shape[0]), tl.float32), tl.full((), 1.0, tl.float32)
    if behind is not None:
        if d_final is not None:
            d_state = load(d_final + sequence * K * W, i, j, W, 1, K, W).to(tl.float32)
        if left is not None:
            for back in range(segments - 1 - segment):
                place = slot * segments + segments - 1 - back
                d_state = d_state * tl.load(faded + place) + load(left + place * K * W, i, j, W, 1, K, W)
    end = min((segment + 1) * length, N)
    for back in range(end - segment * length):
        n = end - 1 - back
        t = n * C + tl.arange(0, C)
        at, there = own + t * H, t < T
        fade, over = fades_from_start(log_decay, sign, at, there, C)
        if behind is not None:
            place = slot * N + n
            if d_over is not None:
                first, second = load_halves(ahead, low, place, i, j, K, W)
                read = first.to(tl.float32)
                if low is not None:
                    read += second.to(tl.float32)
                by_over = over * tl.sum(tl.sum(d_state * read, 1), 0)
                tl.store(d_over + place * tl.num_programs(1) + tl.program_id(1), by_over)
                if OVER:
                    tl.debug_barrier()  # all of it is read
            store(behind + place * K * W, d_state, i, j, W, 1, K, W)
        readers = load(solution + own * K, i, t, 1, H * K, K, T) * (by * fade)[None, :]
        contents = load(content + own * W, t, j, H * W, 1, T, W)
        if content_low is None:
            d_state = d_state * over + dot(readers, contents, PRECISION)
        else:
            rest = load(content_low + own * W, t, j, H * W, 1, T, W)
            d_state = d_state * over + dot_halves(readers, contents, rest, PRECISION)
        all_over *= over
    if behind is None:
        place = slot * segments + segment
        store(left + place * K * W, d_state, i, j, W, 1, K, W)
        tl.store(faded + place, all_over)
    elif d_initial is not None:
        if segment == 0:
            store(d_initial + sequence * K * W, d_state, i, j, W, 1, K, W)


@triton.jit(do_not_specialize=["T", "H", "N", "length", "start"])
def mesa_behind_kernel(
    d_o, log_decay, sign, ahead_kk, low_kk, ahead_kv, low_kv, solution, adjoint, low_adjoint, d_final_kk, d_final_kv,
    left_kk, left_kv, faded, behind_kk, behind_kv, d_initial_kk, d_initial_kv, d_over, T, H, N, length, start, scale,
    K: tl.constexpr, V: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
    OVER: tl.constexpr,
):  # fmt: skip
    """Derivatives by the states behind the chunks and by the first: `mesa_states_kernel` backward. OVER: in its place."""
    i, j, of_kk = _part(K, V, BR, BC)
    if of_kk:
        _walk_behind(
            solution, adjoint, low_adjoint, log_decay, sign, ahead_kk, low_kk, d_final_kk, left_kk, faded, behind_kk,
            d_initial_kk, d_over, i, j, T, H, N, length, start, -1.0, K, K, C, PRECISION, OVER,
        )  # fmt: skip
    else:
        _walk_behind(
            solution, d_o, None, log_decay, sign, ahead_kv, low_kv, d_final_kv, left_kv, faded, behind_kv, d_initial_kv,
            d_over, i, j, T, H, N, length, start, scale, K, V, C, PRECISION, OVER,
        )  # fmt: skip
