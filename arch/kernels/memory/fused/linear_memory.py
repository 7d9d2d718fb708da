"""A linear memory: one matrix, which keys and queries go through as they are. A program walks the pieces of one head, with all
of its values where a norm binds them together, or else with a block of them.

A piece may hold several chunks. Their sights then depend on each other through one triangular system, whose inverse is made
before the walk. A matrix that fits is held in registers from piece to piece.

B batch, T time, H heads, N pieces of C tokens, CHUNK tokens a chunk and PAST of its window, S sights, D features, V value
width, P floats of a memory and its momentum
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

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
def _held(
    memory, c, D: tl.constexpr, V: tl.constexpr, BR: tl.constexpr, HALF: tl.constexpr, HELD: tl.constexpr,
    MOMENTUM: tl.constexpr,
):  # fmt: skip
    """A whole matrix and its momentum, or zeros where they are not held."""
    held = tl.zeros((BR, c.shape[0]), tl.float32)
    held_p = held
    if HELD:
        held = load_block(memory, tl.arange(0, BR), c, D, V, 0)
        if MOMENTUM:
            held_p = load_block(memory, tl.arange(0, BR), c, D, V, HALF)
    return held, held_p


@triton.jit
def _answer(
    here, held, own, k, places, c, seen, stride, rows, BS: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
    BR: tl.constexpr, HELD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Answers of a matrix to the keys [S, V]; it may be held."""
    y = tl.zeros((BS, c.shape[0]), tl.float32) + own[None, :]
    for start in range(0, D if D <= BR else rows, BR):
        j = start + tl.arange(0, BR)
        h = load(k, places, j, stride, 1, seen, D)
        w = held
        if not HELD:
            w = load_block(here, j, c, D, V, 0)
        y += dot(h, w, PRECISION)
    return y


@triton.jit
def _answer_ahead(
    y, kept, moved, here, held_p, own_p, k, places, ahead, chunk, c, count, seen, stride, rows,
    C: tl.constexpr, D: tl.constexpr, V: tl.constexpr, BR: tl.constexpr, HALF: tl.constexpr, HELD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Answers at each sight of the memory just ahead of its chunk, had the chunks before it in the piece learned nothing: y of
    the matrix, less that of the momentum. And the factors and answers that they are made of."""
    there = (ahead >= 0) & (ahead < count)
    keep_ahead = tl.load(kept + chunk * C + ahead, mask=there, other=1.0)
    alone = y
    y = keep_ahead[:, None] * y
    move_ahead, alone_p = keep_ahead, y
    if moved is not None:
        move_ahead = tl.load(moved + chunk * C + ahead, mask=there, other=0.0)
        alone_p = _answer(
            here + HALF, held_p, own_p, k, places, c, seen, stride, rows, y.shape[0], D, V, BR, HELD, PRECISION
        )
        y -= move_ahead[:, None] * alone_p
    return y, keep_ahead, move_ahead, alone, alone_p


@triton.jit
def _solve_backward(
    d_signal, signal, inverse, write, ahead, chunk, m, count, C: tl.constexpr, S: tl.constexpr
):  # fmt: skip
    """Derivatives by the right side of the system, by k k^T in it, and by the weights that it multiplies there."""
    solved = load(inverse + chunk * S * S, m, m, 1, S, S, S)
    d_signal = tl.dot(solved, d_signal, input_precision="ieee")
    d_coupling = -tl.dot(d_signal, tl.trans(signal), input_precision="ieee")
    coupling = load(write + chunk * C * S, tl.maximum(ahead, 0), m, S, 1, count, S)
    coupling = tl.where((ahead >= 0)[:, None], coupling, 0.0)
    return d_signal, d_coupling * coupling, d_coupling


@triton.jit
def _add_by_sights(pointer, x, m, columns, places, stride, seen, width, SOLVE: tl.constexpr, ADD: tl.constexpr):
    """Store what sights bring to the tokens that they see, or add it to what is there."""
    if SOLVE:  # several chunks may see the same token
        x = tl.dot((m[:, None] == places[None, :]).to(tl.float32), x, input_precision="ieee")
    store(pointer, x, m, columns, stride, 1, seen, width, ADD)


@triton.jit
def _matrix_backward(
    d_y, d_y_p, d_squares, held, held_p, held_d, held_d_p, held_d_x, here, d_memory, k, d_k, places, m, c, seen, stride, rows,
    D: tl.constexpr, V: tl.constexpr, BR: tl.constexpr, HALF: tl.constexpr, HELD: tl.constexpr, SOLVE: tl.constexpr,
    MOMENTUM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add derivatives through answers to those by the matrix, its momentum and the keys. And k k^T, where it was solved for."""
    squares = tl.zeros((m.shape[0], m.shape[0]), tl.float32)
    for start in range(0, D if D <= BR else rows, BR):
        j = start + tl.arange(0, BR)
        x = load(k, places, j, stride, 1, seen, D)
        w, p = held, held_p
        if not HELD:
            w = load_block(here, j, c, D, V, 0)
        d_x = dot(d_y, tl.trans(w), PRECISION)
        d_w = outer(x, d_y, PRECISION)
        if HELD:
            held_d += d_w
        else:
            store(d_memory, d_w, j, c, V, 1, D, V, True)
        if SOLVE:
            d_x += dot(d_squares + tl.trans(d_squares), x, PRECISION)
            squares += dot(x, tl.trans(x), PRECISION)
            if MOMENTUM:
                if not HELD:
                    p = load_block(here, j, c, D, V, HALF)
                d_x -= dot(d_y_p, tl.trans(p), PRECISION)
                d_p = -outer(x, d_y_p, PRECISION)
                if HELD:
                    held_d_p += d_p
                else:
                    store(d_memory + HALF, d_p, j, c, V, 1, D, V, True)
        if HELD:
            held_d_x += d_x
        else:
            _add_by_sights(d_k, d_x, m, j, places, stride, seen, D, SOLVE, True)
    return held_d, held_d_p, held_d_x, squares


@triton.jit
def _answer_backward(
    d_y, d_squares, d_coupling, d_weights, by_keep, by_move, d_own, d_own_p, keep_ahead, move_ahead, alone, alone_p,
    held, held_p, held_d, held_d_p, held_d_x, here, d_memory, k, d_k, places, t, m, ahead, c, seen, stride, rows,
    D: tl.constexpr, V: tl.constexpr, BR: tl.constexpr, HALF: tl.constexpr, HELD: tl.constexpr, SOLVE: tl.constexpr,
    MOMENTUM: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add derivatives through answers to those by all that answers are made of."""
    d_y_p = d_y
    if SOLVE:
        at_ahead = (t[:, None] == ahead[None, :]).to(tl.float32)
        by_keep += tl.sum(at_ahead * tl.sum(d_y * alone, 1)[None, :], 1)
        if MOMENTUM:
            by_move -= tl.sum(at_ahead * tl.sum(d_y * alone_p, 1)[None, :], 1)
            d_y_p = move_ahead[:, None] * d_y
            if BIAS:
                d_own_p -= tl.sum(d_y_p, 0)
        d_y = keep_ahead[:, None] * d_y
    if BIAS:
        d_own += tl.sum(d_y, 0)
    held_d, held_d_p, held_d_x, squares = _matrix_backward(
        d_y, d_y_p, d_squares, held, held_p, held_d, held_d_p, held_d_x, here, d_memory, k, d_k,
        places, m, c, seen, stride, rows, D, V, BR, HALF, HELD, SOLVE, MOMENTUM, PRECISION,
    )  # fmt: skip
    if SOLVE:
        d_weights += tl.dot(at_ahead, d_coupling * (squares + BIAS), input_precision="ieee")
    return held_d, held_d_p, held_d_x, d_own, d_own_p, by_keep, by_move, d_weights


@triton.jit(do_not_specialize=["T", "H", "N"])
def memory_inverse_kernel(
    k, write, inverse, T, H, N, D: tl.constexpr, C: tl.constexpr, S: tl.constexpr, CHUNK: tl.constexpr,
    PAST: tl.constexpr, BR: tl.constexpr, BS: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """(I + L)^-1 of one piece by forward substitution, L what errors of earlier chunks weigh in those of later ones."""
    chunk = tl.program_id(0).to(tl.int64)
    n, sequence = chunk % N, chunk // N
    m, row = tl.arange(0, BS), tl.arange(0, BS)[:, None]
    seen = PAST + tl.minimum(C, T - n * C)
    places = places_of_sights(m, S, C, CHUNK, PAST)
    ahead = m // (CHUNK + PAST) * CHUNK - 1  # the last token before the chunk of a sight
    k += ((sequence // H * (T + PAST) + n * C) * H + sequence % H) * D
    squares = tl.zeros((BS, BS), tl.float32) + BIAS
    for start in range(0, D, BR):
        j = start + tl.arange(0, BR)
        x = load(k, places, j, H * D, 1, seen, D)
        squares += tl.dot(x, load(k, j, places, 1, H * D, D, seen), input_precision="ieee")
    earlier = load(write + chunk * C * S, m, tl.maximum(ahead, 0), 1, S, S, seen - PAST)  # [of, at]
    earlier = tl.where((ahead >= 0)[None, :], earlier, 0.0) * squares
    solved = (row == m[None, :]).to(tl.float32)
    for at in range(1, S):
        of_row = tl.sum(tl.where(m[None, :] == at, earlier, 0.0), 1)
        solved -= tl.where(row == at, tl.sum(of_row[:, None] * solved, 0)[None, :], 0.0)
    store(inverse + chunk * S * S, solved, m, m, S, 1, S, S, False)


@triton.jit(do_not_specialize=["T", "H", "N", "per_group", "per_norm", "rows"])
def memory_linear_forward_kernel(
    q, k, v, q_skip, k_skip, memory, norm_weight, norm_bias, kept, write, moved, push, slowed, o, final, states, answer,
    inverse, T, H, N, per_group, per_norm, rows, eps,
    D: tl.constexpr, V: tl.constexpr, C: tl.constexpr, S: tl.constexpr, CHUNK: tl.constexpr, PAST: tl.constexpr,
    BR: tl.constexpr, BV: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr, BIAS: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Outputs, and the memory behind every piece: in `states`, that behind the last one in `final`."""
    NORM: tl.constexpr = norm_weight is not None
    # The norm magnifies what it is given where that is small, and what comes of it goes into the memory.
    ANSWER: tl.constexpr = "tf32x3" if NORM and PRECISION == "tf32" else PRECISION
    MOMENTUM: tl.constexpr = moved is not None
    HALF: tl.constexpr = (D + BIAS) * V
    P: tl.constexpr = 2 * HALF if MOMENTUM else HALF
    SOLVE: tl.constexpr = C != CHUNK
    HELD: tl.constexpr = D <= BR  # in registers from piece to piece
    sequence = tl.program_id(0).to(tl.int64)
    b, h = sequence // H, sequence % H
    t, m, c = tl.arange(0, BC), tl.arange(0, BS), tl.arange(0, BV)
    if BV < V:
        c += tl.program_id(1) * BV
    there = (c < V)[None, :]
    places = places_of_sights(m, S, C, CHUNK, PAST)
    ahead = m // (CHUNK + PAST) * CHUNK - 1  # the last token before the chunk of a sight
    here = memory + (b // per_group * H + h) * P
    weight, bias = load_norm(norm_weight, norm_bias, b // per_norm * H + h, c, V)
    own = tl.zeros((BV,), tl.float32)
    own_p = own
    held, held_p = _held(here, c, D, V, BR, HALF, HELD, MOMENTUM)
    if BIAS:
        own, own_p = load_biases(here, own, own_p, c, D * V, HALF, V, MOMENTUM)
    for n in range(N):
        count = tl.minimum(C, T - n * C)
        seen = PAST + count
        tokens = (b * T + n * C) * H + h
        keys = (b * (T + PAST) + n * C) * H + h
        chunk = sequence * N + n
        following = final + sequence * P
        if n + 1 < N:
            following = states + (sequence * (N - 1) + n) * P
        target = load_targets(v, k_skip, keys, places, c, H, seen, V)
        weights, change, keep, keep_last = load_weights(kept, write, chunk, t, m, count, C, S)
        move, move_last, slow_last, shove = load_momentum_weights(
            moved, push, slowed, keep, keep_last, change, chunk, t, m, count, C, S
        )
        y = _answer(here, held, own, k + keys * D, places, c, seen, H * D, rows, BS, D, V, BR, HELD, ANSWER)
        if SOLVE:
            y, _, _, _, _ = _answer_ahead(
                y, kept, moved, here, held_p, own_p, k + keys * D, places, ahead, chunk, c, count, seen, H * D, rows,
                C, D, V, BR, HALF, HELD, ANSWER,
            )  # fmt: skip
        signal = signal_of(y, target, weight, bias, there, eps, V, NORM, DOT)
        if SOLVE:
            signal = tl.dot(load(inverse + chunk * S * S, m, m, S, 1, S, S), signal, input_precision="ieee")
        changed, pushed = change[:, None] * signal, shove[:, None] * signal
        read = tl.zeros((BC, BV), tl.float32)
        gram = tl.zeros((BC, BS), tl.float32)
        for start in range(0, D if D <= BR else rows, BR):
            j = start + tl.arange(0, BR)
            x = load(k + keys * D, places, j, H * D, 1, seen, D)
            w, p = held, held_p
            if not HELD:
                w = load_block(here, j, c, D, V, 0)
                if MOMENTUM:
                    p = load_block(here, j, c, D, V, HALF)
            z = load(q + tokens * D, t, j, H * D, 1, count, D)
            gram, read, new_w, new_p = learn_block(
                gram, read, z, x, w, p, changed, pushed, keep, move, keep_last, move_last, slow_last, following, j, c,
                D, V, 0, HALF, MOMENTUM, PRECISION,
            )  # fmt: skip
            if HELD:
                held, held_p = new_w, new_p
        if BIAS:
            read, own, own_p = learn_biases(
                read, own, own_p, changed, pushed, keep, move, keep_last, move_last, slow_last, following, c,
                D * V, HALF, V, MOMENTUM,
            )  # fmt: skip
        read -= dot(weights * (gram + BIAS), signal, PRECISION)
        store_outputs(read, o, answer, q_skip, weight, bias, there, tokens, t, c, H, count, eps, V, NORM)
        here = following
        if not HELD:
            tl.debug_barrier()  # the next piece reads what other threads have written


@triton.jit(do_not_specialize=["T", "H", "N", "per_group", "per_norm", "rows"])
def memory_linear_backward_kernel(
    d_o, q, k, v, k_skip, memory, norm_weight, norm_bias, kept, write, moved, push, slowed, states, answer, inverse,
    d_q, d_k, d_v, d_memory, d_weight, d_bias, d_kept, d_write, d_moved, d_push, d_slowed,
    T, H, N, per_group, per_norm, rows, eps,
    D: tl.constexpr, V: tl.constexpr, C: tl.constexpr, S: tl.constexpr, CHUNK: tl.constexpr, PAST: tl.constexpr,
    BR: tl.constexpr, BV: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr, BIAS: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """All derivatives; d_memory holds that by the memory behind a piece, and then that by the one ahead of it."""
    NORM: tl.constexpr = norm_weight is not None
    # The norm magnifies what it is given where that is small, and what comes of it goes into the memory.
    ANSWER: tl.constexpr = "tf32x3" if NORM and PRECISION == "tf32" else PRECISION
    MOMENTUM: tl.constexpr = moved is not None
    HALF: tl.constexpr = (D + BIAS) * V
    P: tl.constexpr = 2 * HALF if MOMENTUM else HALF
    SOLVE: tl.constexpr = C != CHUNK
    HELD: tl.constexpr = D <= BR  # in registers from piece to piece
    LEARNS: tl.constexpr = NORM or not DOT  # what is learned depends on what is known
    sequence = tl.program_id(0).to(tl.int64)
    b, h = sequence // H, sequence % H
    t, m, c = tl.arange(0, BC), tl.arange(0, BS), tl.arange(0, BV)
    if BV < V:  # what all values bring together every block of them leaves apart
        block = tl.program_id(1)
        c += block * BV
        of_others = block * tl.num_programs(0).to(tl.int64)
        d_q, d_k = d_q + of_others * T * D, d_k + of_others * (T + PAST) * D
        d_kept, d_write = d_kept + of_others * N * C, d_write + of_others * N * C * S
        if MOMENTUM:
            d_moved, d_push, d_slowed = (
                d_moved + of_others * N * C,
                d_push + of_others * N * S,
                d_slowed + of_others * N,
            )
    there = (c < V)[None, :]
    places = places_of_sights(m, S, C, CHUNK, PAST)
    ahead = m // (CHUNK + PAST) * CHUNK - 1  # the last token before the chunk of a sight
    d_memory += sequence * P
    all_d_weight, all_d_bias = tl.zeros((BV,), tl.float32), tl.zeros((BV,), tl.float32)
    weight, bias = load_norm(norm_weight, norm_bias, b // per_norm * H + h, c, V)
    d_own = tl.zeros((BV,), tl.float32)
    own, own_p, d_own_p = d_own, d_own, d_own
    held_d, held_d_p = _held(d_memory, c, D, V, BR, HALF, HELD, MOMENTUM)
    if BIAS:
        d_own, d_own_p = load_biases(d_memory, d_own, d_own_p, c, D * V, HALF, V, MOMENTUM)
    for back in range(N):
        n = N - 1 - back
        count = tl.minimum(C, T - n * C)
        seen = PAST + count
        tokens = (b * T + n * C) * H + h
        keys = (b * (T + PAST) + n * C) * H + h
        chunk = sequence * N + n
        here = memory_ahead(memory + (b // per_group * H + h) * P, states, sequence, n, N, P)
        target = load_targets(v, k_skip, keys, places, c, H, seen, V)
        weights, change, keep, keep_last = load_weights(kept, write, chunk, t, m, count, C, S)
        move, move_last, slow_last, shove = load_momentum_weights(
            moved, push, slowed, keep, keep_last, change, chunk, t, m, count, C, S
        )
        held, held_p = _held(here, c, D, V, BR, HALF, HELD, MOMENTUM)
        held_d_x = tl.zeros((BS, BR), tl.float32)
        if BIAS:
            own, own_p = load_biases(here, own, own_p, c, D * V, HALF, V, MOMENTUM)
        y = tl.zeros((BS, BV), tl.float32)
        keep_ahead, move_ahead, alone, alone_p = change, change, y, y
        if LEARNS:
            y = _answer(here, held, own, k + keys * D, places, c, seen, H * D, rows, BS, D, V, BR, HELD, ANSWER)
        if SOLVE:
            y, keep_ahead, move_ahead, alone, alone_p = _answer_ahead(
                y, kept, moved, here, held_p, own_p, k + keys * D, places, ahead, chunk, c, count, seen, H * D, rows,
                C, D, V, BR, HALF, HELD, ANSWER,
            )  # fmt: skip
        signal = signal_of(y, target, weight, bias, there, eps, V, NORM, DOT)
        if SOLVE:
            signal = tl.dot(load(inverse + chunk * S * S, m, m, S, 1, S, S), signal, input_precision="ieee")
        changed, pushed = change[:, None] * signal, shove[:, None] * signal
        d_read, all_d_weight, all_d_bias = outputs_backward(
            d_o, answer, all_d_weight, all_d_bias, weight, there, tokens, t, c, H, count, eps, V, NORM
        )
        d_kept_read, d_moved_read = keep[:, None] * d_read, move[:, None] * d_read
        d_scores = -dot(d_read, tl.trans(signal), PRECISION)
        d_gram = d_scores * weights
        gram = tl.zeros((BC, BS), tl.float32)
        d_signal = tl.zeros((BS, BV), tl.float32)
        taken, taken_p = tl.zeros((BS, BV), tl.float32), tl.zeros((BS, BV), tl.float32)
        by_keep, by_move = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
        by_change, by_shove = tl.zeros((BS,), tl.float32), tl.zeros((BS,), tl.float32)
        by_keep_last, by_move_last, by_slow_last = 0.0, 0.0, 0.0
        for start in range(0, D if D <= BR else rows, BR):
            j = start + tl.arange(0, BR)
            x = load(k + keys * D, places, j, H * D, 1, seen, D)
            w, d_w, p, d_p = held, held_d, held_p, held_d_p
            if not HELD:
                w, d_w = load_block(here, j, c, D, V, 0), load_block(d_memory, j, c, D, V, 0)
                if MOMENTUM:
                    p, d_p = load_block(here, j, c, D, V, HALF), load_block(d_memory, j, c, D, V, HALF)
            d_z = dot(d_read, tl.trans(w), PRECISION)
            d_z_p = d_z
            if MOMENTUM:
                d_z_p = dot(d_read, tl.trans(p), PRECISION)
            z = load(q + tokens * D, t, j, H * D, 1, count, D)
            (
                gram, taken, taken_p, by_keep, by_move, by_keep_last, by_move_last, by_slow_last, d_z, d_x, new_d_w, new_d_p
            ) = block_backward(
                gram, taken, taken_p, by_keep, by_move, by_keep_last, by_move_last, by_slow_last, z, x, w, p, d_w, d_p,
                d_z, d_z_p, d_gram, changed, pushed, d_kept_read, d_moved_read, keep, move, keep_last, move_last, slow_last,
                MOMENTUM, PRECISION,
            )  # fmt: skip
            if HELD:
                held_d_p = new_d_p
            elif MOMENTUM:
                store(d_memory + HALF, new_d_p, j, c, V, 1, D, V, False)
            store(d_q + tokens * D, d_z, t, j, H * D, 1, count, D, False)
            if HELD:
                held_d_x, held_d = d_x, new_d_w
            else:
                _add_by_sights(d_k + keys * D, d_x, m, j, places, H * D, seen, D, SOLVE, True)
                store(d_memory, new_d_w, j, c, V, 1, D, V, False)
        if BIAS:
            taken, taken_p, by_keep, by_move, by_keep_last, by_move_last, by_slow_last, d_own, d_own_p = biases_backward(
                taken, taken_p, by_keep, by_move, by_keep_last, by_move_last, by_slow_last, d_own, d_own_p, own, own_p,
                d_read, d_kept_read, d_moved_read, keep_last, move_last, slow_last, MOMENTUM,
            )  # fmt: skip
        by_change, by_shove, d_signal, d_weights = changes_backward(
            by_change, by_shove, d_signal, taken, taken_p, signal, change, shove, weights, gram, d_read, d_scores,
            MOMENTUM, BIAS, PRECISION,
        )  # fmt: skip
        d_squares, d_coupling = d_weights, d_weights
        if SOLVE:
            d_signal, d_squares, d_coupling = _solve_backward(
                d_signal, signal, inverse, write, ahead, chunk, m, count, C, S
            )
        d_y, d_target, d_weight_, d_bias_ = signal_backward(d_signal, y, target, weight, bias, there, eps, V, NORM, DOT)
        all_d_weight += d_weight_
        all_d_bias += d_bias_
        if LEARNS:
            if not HELD:
                tl.debug_barrier()  # what other threads have written of d_memory and d_k is read here
            held_d, held_d_p, held_d_x, d_own, d_own_p, by_keep, by_move, d_weights = _answer_backward(
                d_y, d_squares, d_coupling, d_weights, by_keep, by_move, d_own, d_own_p, keep_ahead, move_ahead, alone, alone_p,
                held, held_p, held_d, held_d_p, held_d_x, here, d_memory, k + keys * D, d_k + keys * D, places, t, m, ahead, c,
                seen, H * D, rows, D, V, BR, HALF, HELD, SOLVE, MOMENTUM, BIAS, PRECISION,
            )  # fmt: skip
        if HELD:
            _add_by_sights(d_k + keys * D, held_d_x, m, tl.arange(0, BR), places, H * D, seen, D, SOLVE, PAST > 0)
        _add_by_sights(d_v + keys * V, d_target, m, c, places, H * V, seen, V, SOLVE, PAST > 0)
        store_weight_gradients(
            d_kept, d_write, d_moved, d_push, d_slowed, d_weights, by_change, by_shove, by_keep, by_move, by_keep_last,
            by_move_last, by_slow_last, chunk, t, m, count, C, S, MOMENTUM,
        )  # fmt: skip
        if PAST > 0 or not HELD:
            tl.debug_barrier()  # the next piece reads what other threads have written
    if HELD:
        store(d_memory, held_d, tl.arange(0, BR), c, V, 1, D, V, False)
        if MOMENTUM:
            store(d_memory + HALF, held_d_p, tl.arange(0, BR), c, V, 1, D, V, False)
    if BIAS:
        store_biases(d_memory, d_own, d_own_p, c, D * V, HALF, V, MOMENTUM)
    if NORM:
        store_norm_gradients(d_weight, d_bias, all_d_weight, all_d_bias, sequence, c, V)
