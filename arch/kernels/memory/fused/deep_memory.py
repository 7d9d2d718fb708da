"""A deep memory: hidden units behind a first matrix, and a last matrix. A program walks the chunks of one head.

Features that fit, at most BD of them, are held for a chunk. More are walked in blocks, once for what goes through the first
matrix and once for what comes back: for all hidden units at once where these fit (ONCE), else for each block of them. Neither
matrix is held from chunk to chunk.

B batch, T time, H heads, N chunks of C tokens, PAST tokens of a window, S sights, D features, R hidden units, V value width, P
floats of a memory and its momentum; i features, j hidden units, c values of a block
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.memory.fused.first_matrix import (
    asked_again,
    bend_backward,
    go_through,
    hidden_backward,
    hidden_units,
    learn_features,
    learn_features_backward,
    learn_first_biases,
    learn_whole,
    pairs_backward,
)
from recallmap.arch.kernels.memory.fused.last_matrix import (
    biases_backward,
    block_backward,
    changes_backward,
    learn_biases,
    learn_block,
    load_biases,
    load_block,
    store_biases,
)
from recallmap.arch.kernels.memory.fused.loss_gradient import (
    gelu,
    gelu_slope,
    load_norm,
    outputs_backward,
    signal_backward,
    signal_of,
    store_norm_gradients,
    store_outputs,
)
from recallmap.arch.kernels.memory.fused.tiles import (
    dot,
    load,
    load_targets,
    load_vector,
    memory_ahead,
    outer,
    places_of_sights,
    store,
)
from recallmap.arch.kernels.memory.fused.token_weights import (
    load_momentum_weights,
    load_weights,
    store_weight_gradients,
)


@triton.jit
def _held_features(
    q, k, like, t, places, i, count, seen, stride, D: tl.constexpr, WHOLE: tl.constexpr
):  # fmt: skip
    """A chunk's keys [S, D] and queries [C, D], where they are held."""
    k_, q_ = like, like
    if WHOLE:
        k_ = load(k, places, i, stride, 1, seen, D)
        q_ = load(q, t, i, stride, 1, count, D)
    return k_, q_


@triton.jit
def _answer(
    here, own, k, k_, m, i, c, seen, stride, rows, D: tl.constexpr, R: tl.constexpr, V: tl.constexpr, BD: tl.constexpr,
    BR: tl.constexpr, FIRST: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Answers to the keys [S, V] of the memory as it is at the chunk's start."""
    y = tl.zeros((m.shape[0], c.shape[0]), tl.float32) + own[None, :]
    for start in range(0, R if R <= BR else rows, BR):
        j = start + tl.arange(0, BR)
        h, _, _ = hidden_units(here, k, k_, m, i, j, seen, stride, D, R, BD, BIAS, PRECISION)
        y += dot(h, load_block(here, j, c, R, V, FIRST), PRECISION)
    return y


@triton.jit(do_not_specialize=["T", "H", "N", "per_group", "per_norm", "rows"])
def memory_deep_forward_kernel(
    q, k, v, q_skip, k_skip, memory, norm_weight, norm_bias, kept, write, moved, push, slowed, o, final, states, answer,
    T, H, N, per_group, per_norm, rows, eps,
    D: tl.constexpr, R: tl.constexpr, V: tl.constexpr, C: tl.constexpr, S: tl.constexpr, PAST: tl.constexpr,
    BD: tl.constexpr, BR: tl.constexpr, BV: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr, BIAS: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Outputs, and the memory behind every chunk: in `states`, that behind the last one in `final`."""
    NORM: tl.constexpr = norm_weight is not None
    # The norm magnifies what it is given where that is small, and what comes of it goes into the memory.
    ANSWER: tl.constexpr = "tf32x3" if NORM and PRECISION == "tf32" else PRECISION
    MOMENTUM: tl.constexpr = moved is not None
    FIRST: tl.constexpr = (D + BIAS) * R
    HALF: tl.constexpr = FIRST + (R + BIAS) * V
    P: tl.constexpr = 2 * HALF if MOMENTUM else HALF
    WHOLE: tl.constexpr = D <= BD  # features, held for a chunk
    ONCE: tl.constexpr = D > BD and R <= BR  # what goes through the first matrix is made ahead of all else
    sequence = tl.program_id(0).to(tl.int64)
    b, h = sequence // H, sequence % H
    t, m, i, c = tl.arange(0, BC), tl.arange(0, BS), tl.arange(0, BD), tl.arange(0, BV)
    there = (c < V)[None, :]
    places = places_of_sights(m, S, C, C, PAST)
    here = memory + (b // per_group * H + h) * P
    weight, bias = load_norm(norm_weight, norm_bias, b // per_norm * H + h, c, V)
    own = tl.zeros((BV,), tl.float32)
    own_p = own
    if BIAS:
        own, own_p = load_biases(here, own, own_p, c, FIRST + R * V, HALF, V, MOMENTUM)
    for n in range(N):
        count = tl.minimum(C, T - n * C)
        seen = PAST + count
        tokens, keys = (b * T + n * C) * H + h, (b * (T + PAST) + n * C) * H + h
        q_here, k_here = q + tokens * D, k + keys * D
        chunk = sequence * N + n
        following = final + sequence * P
        if n + 1 < N:
            following = states + (sequence * (N - 1) + n) * P
        target = load_targets(v, k_skip, keys, places, c, H, seen, V)
        weights, change, keep, keep_last = load_weights(kept, write, chunk, t, m, count, C, S)
        k_, q_ = _held_features(q_here, k_here, weights, t, places, i, count, seen, H * D, D, WHOLE)
        move, move_last, slow_last, shove = load_momentum_weights(
            moved, push, slowed, keep, keep_last, change, chunk, t, m, count, C, S
        )
        if ONCE:
            bent, asked, asked_p, _, _, pairs = go_through(
                q_here, k_here, here, None, t, places, i, tl.arange(0, BR), count, seen, H * D,
                D, R, BD, HALF, BIAS, MOMENTUM, ANSWER, PRECISION,
            )  # fmt: skip
            y = own[None, :] + dot(gelu(bent), load_block(here, tl.arange(0, BR), c, R, V, FIRST), ANSWER)
        else:
            y = _answer(here, own, k_here, k_, places, i, c, seen, H * D, rows, D, R, V, BD, BR, FIRST, BIAS, ANSWER)
        signal = signal_of(y, target, weight, bias, there, eps, V, NORM, DOT)
        changed, pushed = change[:, None] * signal, shove[:, None] * signal
        if WHOLE:
            pairs = dot(q_, tl.trans(k_), PRECISION) + BIAS
        read = tl.zeros((BC, BV), tl.float32)
        gram = tl.zeros((BC, BS), tl.float32)
        for start in range(0, R if R <= BR else rows, BR):
            j = start + tl.arange(0, BR)
            if WHOLE:
                x, bent, first = hidden_units(here, k_here, k_, places, i, j, seen, H * D, D, R, BD, BIAS, PRECISION)
            else:
                if not ONCE:
                    bent, asked, asked_p, _taken, _taken_p, pairs = go_through(
                        q_here, k_here, here, None, t, places, i, j, count, seen, H * D,
                        D, R, BD, HALF, BIAS, MOMENTUM, PRECISION, PRECISION,
                    )  # fmt: skip
                x = gelu(bent)
            w = load_block(here, j, c, R, V, FIRST)
            p = w
            if MOMENTUM:
                p = load_block(here, j, c, R, V, HALF + FIRST)
            d = dot(signal, tl.trans(w), PRECISION) * gelu_slope(bent)
            changed_d, pushed_d = change[:, None] * d, shove[:, None] * d
            if WHOLE:
                asked, asked_p = learn_whole(
                    first, q_, k_, here, following, changed_d, pushed_d, keep_last, move_last, slow_last, i, j,
                    D, R, HALF, MOMENTUM, PRECISION,
                )  # fmt: skip
            else:
                learn_features(
                    k_here, here, following, changed_d, pushed_d, keep_last, move_last, slow_last, places, i, j,
                    seen, H * D, D, R, BD, HALF, MOMENTUM, PRECISION,
                )  # fmt: skip
            if BIAS:
                asked, asked_p = learn_first_biases(
                    asked, asked_p, here, following, changed_d, pushed_d, keep_last, move_last, slow_last, j,
                    D, R, HALF, MOMENTUM,
                )  # fmt: skip
            asked = keep[:, None] * asked - dot(weights * pairs, d, PRECISION)
            if MOMENTUM:
                asked -= move[:, None] * asked_p
            gram, read, _new_w, _new_p = learn_block(
                gram, read, gelu(asked), x, w, p, changed, pushed, keep, move, keep_last, move_last, slow_last, following,
                j, c, R, V, FIRST, HALF, MOMENTUM, PRECISION,
            )  # fmt: skip
        if BIAS:
            read, own, own_p = learn_biases(
                read, own, own_p, changed, pushed, keep, move, keep_last, move_last, slow_last, following, c,
                FIRST + R * V, HALF, V, MOMENTUM,
            )  # fmt: skip
        read -= dot(weights * (gram + BIAS), signal, PRECISION)
        store_outputs(read, o, answer, q_skip, weight, bias, there, tokens, t, c, H, count, eps, V, NORM)
        here = following
        tl.debug_barrier()  # the next chunk reads what other threads have written


@triton.jit
def _answer_backward(
    d_own, d_y, d_bent, bent, here, d_memory, k, k_, d_k, d_k_, places, i, c, seen, stride, rows,
    D: tl.constexpr, R: tl.constexpr, V: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, FIRST: tl.constexpr,
    WHOLE: tl.constexpr, ONCE: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add derivatives through answers to those by both matrices, the biases and the keys, or to what was bent where that is
    kept for the end."""
    tl.debug_barrier()  # what other threads have written of d_memory and d_k is read here
    if BIAS:
        d_own += tl.sum(d_y, 0)
    for start in range(0, R if R <= BR else rows, BR):
        j = start + tl.arange(0, BR)
        if ONCE:
            x, bent_here = gelu(bent), bent
        else:
            x, bent_here, first = hidden_units(here, k, k_, places, i, j, seen, stride, D, R, BD, BIAS, PRECISION)
        d_x = dot(d_y, tl.trans(load_block(here, j, c, R, V, FIRST)), PRECISION)
        store(d_memory + FIRST, outer(x, d_y, PRECISION), j, c, V, 1, R, V, True)
        more_d_bent = d_x * gelu_slope(bent_here)
        if WHOLE:
            d_k_ += dot(more_d_bent, first, PRECISION)
            d_first = dot(tl.trans(more_d_bent), k_, PRECISION)
            store(d_memory, d_first, j, i, 1, R, R, D, True)
        elif ONCE:
            d_bent += more_d_bent
        else:
            bend_backward(k, here, d_k, d_memory, more_d_bent, places, i, j, seen, stride, D, R, BD, PRECISION)
        if BIAS:
            d_row = load_vector(d_memory + D * R, j, R) + tl.sum(more_d_bent, 0)
            tl.store(d_memory + D * R + j, d_row, mask=j < R)
    return d_own, d_bent, d_k_


@triton.jit
def _units_backward(
    x, bent, first, asked_w, asked_p, taken_d, taken_d_p, pairs, q_, k_, here, d_memory, i, j, c, weights,
    signal, changed, pushed, d_read, d_kept_read, d_moved_read, d_gram,
    keep, move, change, shove, keep_last, move_last, slow_last, gram, taken, taken_p,
    d_q_, d_k_, d_pairs, d_signal, by_keep, by_move, by_change, by_shove, by_keep_last, by_move_last, by_slow_last,
    D: tl.constexpr, R: tl.constexpr, V: tl.constexpr, FIRST: tl.constexpr, HALF: tl.constexpr, WHOLE: tl.constexpr,
    MOMENTUM: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Derivatives through a block of hidden units: those of `hidden_backward`, those by its rows of the last matrix as far as
    they are known, and all that is summed over blocks."""
    w, d_w = load_block(here, j, c, R, V, FIRST), load_block(d_memory, j, c, R, V, FIRST)
    p, d_p = w, d_w
    if MOMENTUM:
        p, d_p = load_block(here, j, c, R, V, HALF + FIRST), load_block(d_memory, j, c, R, V, HALF + FIRST)
    d_z = dot(d_read, tl.trans(w), PRECISION)
    d_z_p = d_z
    if MOMENTUM:
        d_z_p = dot(d_read, tl.trans(p), PRECISION)
    before, slope = dot(signal, tl.trans(w), PRECISION), gelu_slope(bent)
    d, scores = before * slope, pairs * weights
    asked, asked_w, asked_p, p_first, row, d_row, p_row, d_p_row = asked_again(
        asked_w, asked_p, first, q_, d, scores, here, d_memory, keep, move, i, j,
        D, R, HALF, WHOLE, MOMENTUM, BIAS, PRECISION,
    )  # fmt: skip
    (
        gram, taken, taken_p, by_keep, by_move, by_keep_last, by_move_last, by_slow_last, d_z, d_x, new_d_w, new_d_p
    ) = block_backward(
        gram, taken, taken_p, by_keep, by_move, by_keep_last, by_move_last, by_slow_last, gelu(asked), x, w, p,
        d_w, d_p, d_z, d_z_p, d_gram, changed, pushed, d_kept_read, d_moved_read, keep, move,
        keep_last, move_last, slow_last, MOMENTUM, PRECISION,
    )  # fmt: skip
    if MOMENTUM:
        store(d_memory + HALF + FIRST, new_d_p, j, c, V, 1, R, V, False)
    (
        d_bent, d_kept_asked, d_moved_asked, changed_d, pushed_d, more_d_pairs, d_q_, d_k_, d_pairs, d_signal, new_d_w,
        by_keep, by_move, by_change, by_shove, by_keep_last, by_move_last, by_slow_last,
    ) = hidden_backward(
        d_z * gelu_slope(asked), d_x, asked_w, asked_p, bent, before, slope, d, scores, signal, w, first, p_first,
        row, d_row, p_row, d_p_row, q_, k_, d_q_, d_k_, taken_d, taken_d_p, d_pairs, d_signal, new_d_w,
        by_keep, by_move, by_change, by_shove, by_keep_last, by_move_last, by_slow_last,
        keep, move, change, shove, keep_last, move_last, slow_last, d_memory, i, j,
        D, R, HALF, WHOLE, MOMENTUM, BIAS, PRECISION,
    )  # fmt: skip
    return (
        d_bent, d_kept_asked, d_moved_asked, changed_d, pushed_d, more_d_pairs, new_d_w, gram, taken, taken_p,
        d_q_, d_k_, d_pairs, d_signal, by_keep, by_move, by_change, by_shove, by_keep_last, by_move_last, by_slow_last,
    )  # fmt: skip


@triton.jit(do_not_specialize=["T", "H", "N", "per_group", "per_norm", "rows"])
def memory_deep_backward_kernel(
    d_o, q, k, v, k_skip, memory, norm_weight, norm_bias, kept, write, moved, push, slowed, states, answer,
    d_q, d_k, d_v, d_memory, d_weight, d_bias, d_kept, d_write, d_moved, d_push, d_slowed,
    T, H, N, per_group, per_norm, rows, eps,
    D: tl.constexpr, R: tl.constexpr, V: tl.constexpr, C: tl.constexpr, S: tl.constexpr, PAST: tl.constexpr,
    BD: tl.constexpr, BR: tl.constexpr, BV: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr, BIAS: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All derivatives; d_memory holds that by the memory behind a chunk, and then that by the one ahead of it."""
    NORM: tl.constexpr = norm_weight is not None
    # The norm magnifies what it is given where that is small, and what comes of it goes into the memory.
    ANSWER: tl.constexpr = "tf32x3" if NORM and PRECISION == "tf32" else PRECISION
    MOMENTUM: tl.constexpr = moved is not None
    FIRST: tl.constexpr = (D + BIAS) * R
    HALF: tl.constexpr = FIRST + (R + BIAS) * V
    P: tl.constexpr = 2 * HALF if MOMENTUM else HALF
    WHOLE: tl.constexpr = D <= BD  # features, held for a chunk
    ONCE: tl.constexpr = D > BD and R <= BR  # what goes through the first matrix is made ahead of all else
    LEARNS: tl.constexpr = NORM or not DOT  # what is learned depends on what is known
    sequence = tl.program_id(0).to(tl.int64)
    b, h = sequence // H, sequence % H
    t, m, i, c = tl.arange(0, BC), tl.arange(0, BS), tl.arange(0, BD), tl.arange(0, BV)
    there = (c < V)[None, :]
    places = places_of_sights(m, S, C, C, PAST)
    d_memory += sequence * P
    all_d_weight, all_d_bias = tl.zeros((BV,), tl.float32), tl.zeros((BV,), tl.float32)
    weight, bias = load_norm(norm_weight, norm_bias, b // per_norm * H + h, c, V)
    d_own = tl.zeros((BV,), tl.float32)
    own, own_p, d_own_p = d_own, d_own, d_own
    if BIAS:
        d_own, d_own_p = load_biases(d_memory, d_own, d_own_p, c, FIRST + R * V, HALF, V, MOMENTUM)
    for back in range(N):
        n = N - 1 - back
        count = tl.minimum(C, T - n * C)
        seen = PAST + count
        tokens, keys = (b * T + n * C) * H + h, (b * (T + PAST) + n * C) * H + h
        q_here, k_here, d_q_here, d_k_here = q + tokens * D, k + keys * D, d_q + tokens * D, d_k + keys * D
        chunk = sequence * N + n
        here = memory_ahead(memory + (b // per_group * H + h) * P, states, sequence, n, N, P)
        target = load_targets(v, k_skip, keys, places, c, H, seen, V)
        weights, change, keep, keep_last = load_weights(kept, write, chunk, t, m, count, C, S)
        k_, q_ = _held_features(q_here, k_here, weights, t, places, i, count, seen, H * D, D, WHOLE)
        move, move_last, slow_last, shove = load_momentum_weights(
            moved, push, slowed, keep, keep_last, change, chunk, t, m, count, C, S
        )
        if BIAS:
            own, own_p = load_biases(here, own, own_p, c, FIRST + R * V, HALF, V, MOMENTUM)
        y = tl.zeros((BS, BV), tl.float32)
        if ONCE:
            bent, asked_w, asked_p, taken_d, taken_d_p, pairs = go_through(
                q_here, k_here, here, d_memory, t, places, i, tl.arange(0, BR), count, seen, H * D,
                D, R, BD, HALF, BIAS, MOMENTUM, ANSWER, PRECISION,
            )  # fmt: skip
            y = own[None, :] + dot(gelu(bent), load_block(here, tl.arange(0, BR), c, R, V, FIRST), ANSWER)
        elif LEARNS:
            y = _answer(here, own, k_here, k_, places, i, c, seen, H * D, rows, D, R, V, BD, BR, FIRST, BIAS, ANSWER)
        signal = signal_of(y, target, weight, bias, there, eps, V, NORM, DOT)
        changed, pushed = change[:, None] * signal, shove[:, None] * signal
        d_read, all_d_weight, all_d_bias = outputs_backward(
            d_o, answer, all_d_weight, all_d_bias, weight, there, tokens, t, c, H, count, eps, V, NORM
        )
        d_kept_read, d_moved_read = keep[:, None] * d_read, move[:, None] * d_read
        d_scores = -dot(d_read, tl.trans(signal), PRECISION)
        d_gram = d_scores * weights
        gram, d_pairs = tl.zeros((BC, BS), tl.float32), tl.zeros((BC, BS), tl.float32)
        d_signal = tl.zeros((BS, BV), tl.float32)
        taken, taken_p = tl.zeros((BS, BV), tl.float32), tl.zeros((BS, BV), tl.float32)
        by_keep, by_move = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
        by_change, by_shove = tl.zeros((BS,), tl.float32), tl.zeros((BS,), tl.float32)
        by_keep_last, by_move_last, by_slow_last = 0.0, 0.0, 0.0
        d_q_, d_k_ = tl.zeros((BC, BD), tl.float32), tl.zeros((BS, BD), tl.float32)
        if WHOLE:
            pairs = dot(q_, tl.trans(k_), PRECISION) + BIAS
        elif ONCE:  # kept for the end, when all there is to be learned of them is known
            d_kept_asked, changed_d = tl.zeros((BC, BR), tl.float32), tl.zeros((BS, BR), tl.float32)
            d_moved_asked, pushed_d, d_bent = d_kept_asked, changed_d, changed_d
        else:
            pairs = d_pairs
        for start in range(0, R if R <= BR else rows, BR):
            j = start + tl.arange(0, BR)
            if WHOLE:
                x, bent, first = hidden_units(here, k_here, k_, places, i, j, seen, H * D, D, R, BD, BIAS, PRECISION)
                asked_w, asked_p, taken_d, taken_d_p = bent, bent, bent, bent
            else:
                if not ONCE:
                    bent, asked_w, asked_p, taken_d, taken_d_p, pairs = go_through(
                        q_here, k_here, here, d_memory, t, places, i, j, count, seen, H * D,
                        D, R, BD, HALF, BIAS, MOMENTUM, PRECISION, PRECISION,
                    )  # fmt: skip
                x, first = gelu(bent), bent
            (
                d_bent, d_kept_asked, d_moved_asked, changed_d, pushed_d, more_d_pairs, new_d_w, gram, taken, taken_p,
                d_q_, d_k_, d_pairs, d_signal, by_keep, by_move, by_change, by_shove, by_keep_last, by_move_last, by_slow_last,
            ) = _units_backward(
                x, bent, first, asked_w, asked_p, taken_d, taken_d_p, pairs, q_, k_, here, d_memory, i, j, c, weights,
                signal, changed, pushed, d_read, d_kept_read, d_moved_read, d_gram,
                keep, move, change, shove, keep_last, move_last, slow_last, gram, taken, taken_p,
                d_q_, d_k_, d_pairs, d_signal, by_keep, by_move, by_change, by_shove, by_keep_last, by_move_last, by_slow_last,
                D, R, V, FIRST, HALF, WHOLE, MOMENTUM, BIAS, PRECISION,
            )  # fmt: skip
            if not WHOLE and not ONCE:
                by_keep_last, by_move_last, by_slow_last = learn_features_backward(
                    by_keep_last, by_move_last, by_slow_last, q_here, k_here, here,
                    d_q_here, d_k_here, d_memory, changed_d, pushed_d, d_bent, d_kept_asked, d_moved_asked,
                    more_d_pairs * weights, keep_last, move_last, slow_last, t, places, i, j, count, seen, H * D,
                    D, R, BD, PAST, HALF, MOMENTUM, PRECISION,
                )  # fmt: skip
            store(d_memory + FIRST, new_d_w, j, c, V, 1, R, V, False)
        if BIAS:
            taken, taken_p, by_keep, by_move, by_keep_last, by_move_last, by_slow_last, d_own, d_own_p = biases_backward(
                taken, taken_p, by_keep, by_move, by_keep_last, by_move_last, by_slow_last, d_own, d_own_p, own, own_p,
                d_read, d_kept_read, d_moved_read, keep_last, move_last, slow_last, MOMENTUM,
            )  # fmt: skip
        by_change, by_shove, d_signal, d_weights = changes_backward(
            by_change, by_shove, d_signal, taken, taken_p, signal, change, shove, weights, gram, d_read, d_scores,
            MOMENTUM, BIAS, PRECISION,
        )  # fmt: skip
        d_weights, d_pairs, d_q_, d_k_ = pairs_backward(
            d_weights, d_pairs, pairs, weights, q_, k_, d_q_, d_k_, WHOLE, PRECISION
        )
        d_y, d_target, d_weight_, d_bias_ = signal_backward(d_signal, y, target, weight, bias, there, eps, V, NORM, DOT)
        all_d_weight += d_weight_
        all_d_bias += d_bias_
        if LEARNS:
            if not ONCE:
                bent, d_bent = d_y, d_y
            d_own, d_bent, d_k_ = _answer_backward(
                d_own, d_y, d_bent, bent, here, d_memory, k_here, k_, d_k_here, d_k_, places, i, c, seen, H * D, rows,
                D, R, V, BD, BR, FIRST, WHOLE, ONCE, BIAS, PRECISION,
            )  # fmt: skip
        if WHOLE:
            store(d_q_here, d_q_, t, i, H * D, 1, count, D, False)
            store(d_k_here, d_k_, m, i, H * D, 1, seen, D, PAST > 0)
        elif ONCE:
            by_keep_last, by_move_last, by_slow_last = learn_features_backward(
                by_keep_last, by_move_last, by_slow_last, q_here, k_here, here,
                d_q_here, d_k_here, d_memory, changed_d, pushed_d, d_bent, d_kept_asked, d_moved_asked, d_pairs,
                keep_last, move_last, slow_last, t, places, i, tl.arange(0, BR), count, seen, H * D,
                D, R, BD, PAST, HALF, MOMENTUM, PRECISION,
            )  # fmt: skip
        store(d_v + keys * V, d_target, m, c, H * V, 1, seen, V, PAST > 0)
        store_weight_gradients(
            d_kept, d_write, d_moved, d_push, d_slowed, d_weights, by_change, by_shove, by_keep, by_move, by_keep_last,
            by_move_last, by_slow_last, chunk, t, m, count, C, S, MOMENTUM,
        )  # fmt: skip
        tl.debug_barrier()  # the next chunk reads what other threads have written
    if BIAS:
        store_biases(d_memory, d_own, d_own_p, c, FIRST + R * V, HALF, V, MOMENTUM)
    if NORM:
        store_norm_gradients(d_weight, d_bias, all_d_weight, all_d_bias, sequence, c, V)
