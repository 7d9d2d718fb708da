"""A deep memory's first matrix: hidden units of the sights, what queries ask of them, what it learns, and the derivatives.

Features that fit, at most BD of them, are held for a chunk: the matrix then lies transposed, [hidden units, features]. More are
walked in blocks, with the matrix as it lies in memory. W and P are the matrix and its momentum at the chunk's start.

C tokens a chunk, S sights, D features, R hidden units; i features, j hidden units of a block
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.memory.fused.loss_gradient import gelu, gelu_bend
from recallmap.arch.kernels.memory.fused.tiles import dot, load, load_vector, outer, store


@triton.jit
def hidden_units(
    here, k, k_, m, i, j, seen, stride, D: tl.constexpr, R: tl.constexpr, BD: tl.constexpr, BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Hidden units j of the sights [S, rows], what was bent to make them, and the first matrix' columns [rows, D] where those
    are held whole."""
    if D <= BD:
        first = load(here, j, i, 1, R, R, D)
        bent = dot(k_, tl.trans(first), PRECISION)
    else:
        bent = tl.zeros((m.shape[0], j.shape[0]), tl.float32)
        for start in range(0, D, BD):
            keys = load(k, m, start + i, stride, 1, seen, D)
            bent += dot(keys, load(here, start + i, j, R, 1, D, R), PRECISION)
        first = bent
    if BIAS:
        bent += load_vector(here + D * R, j, R)[None, :]
    return gelu(bent), bent, first


# Features in blocks i: matrices [features, hidden units] as they lie in memory, k and q [tokens, features] from there too.


@triton.jit
def go_through(
    q, k, here, d_memory, t, m, i, j, count, seen, stride, D: tl.constexpr, R: tl.constexpr, BD: tl.constexpr,
    HALF: tl.constexpr, BIAS: tl.constexpr, MOMENTUM: tl.constexpr, ANSWER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Products of keys [S] and queries [C] with columns j of the first matrix, its momentum and the derivatives by both:
    k W (in the digits of ANSWER, its row of biases with it), q W, q P, k dW, k dP; and q k^T."""
    bent, asked = tl.zeros((m.shape[0], j.shape[0]), tl.float32), tl.zeros((t.shape[0], j.shape[0]), tl.float32)
    asked_p, taken, taken_p = asked, bent, bent
    pairs = tl.zeros((t.shape[0], m.shape[0]), tl.float32) + BIAS
    for start in range(0, D, BD):
        at = start + i
        keys, queries = load(k, m, at, stride, 1, seen, D), load(q, t, at, stride, 1, count, D)
        first = load(here, at, j, R, 1, D, R)
        bent += dot(keys, first, ANSWER)
        asked += dot(queries, first, PRECISION)
        pairs += dot(queries, tl.trans(keys), PRECISION)
        if MOMENTUM:
            asked_p += dot(queries, load(here + HALF, at, j, R, 1, D, R), PRECISION)
        if d_memory is not None:
            taken += dot(keys, load(d_memory, at, j, R, 1, D, R), PRECISION)
            if MOMENTUM:
                taken_p += dot(keys, load(d_memory + HALF, at, j, R, 1, D, R), PRECISION)
    if BIAS:
        bent += load_vector(here + D * R, j, R)[None, :]
    return bent, asked, asked_p, taken, taken_p, pairs


@triton.jit
def learn_features(
    k, here, following, changed, pushed, keep_last, move_last, slow_last, m, i, j, seen, stride,
    D: tl.constexpr, R: tl.constexpr, BD: tl.constexpr, HALF: tl.constexpr, MOMENTUM: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Columns j of the next first matrix and its momentum, by signals [S, rows] as they weigh in either."""
    for start in range(0, D, BD):
        at = start + i
        keys = load(k, m, at, stride, 1, seen, D)
        new = keep_last * load(here, at, j, R, 1, D, R) - dot(tl.trans(keys), changed, PRECISION)
        if MOMENTUM:
            p = load(here + HALF, at, j, R, 1, D, R)
            new -= move_last * p
            new_p = slow_last * p + dot(tl.trans(keys), pushed, PRECISION)
            store(following + HALF, new_p, at, j, R, 1, D, R, False)
        store(following, new, at, j, R, 1, D, R, False)


@triton.jit
def learn_features_backward(
    by_keep_last, by_move_last, by_slow_last, q, k, here, d_q, d_k, d_memory, changed, pushed, d_bent,
    d_kept_asked, d_moved_asked, d_pairs, keep_last, move_last, slow_last, t, m, i, j, count, seen, stride,
    D: tl.constexpr, R: tl.constexpr, BD: tl.constexpr, PAST: tl.constexpr, HALF: tl.constexpr, MOMENTUM: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The derivatives by keys and queries, and by columns j of the first matrix and its momentum, from those by what went
    through it and by q k^T. Those by keep_last, move_last and slow_last are added to what there is."""
    PART: tl.constexpr = j.shape[0] < R  # tokens take up what several blocks of hidden units give
    by_keep, by_move, by_slow = 0.0, 0.0, 0.0
    for start in range(0, D, BD):
        at = start + i
        keys, queries = load(k, m, at, stride, 1, seen, D), load(q, t, at, stride, 1, count, D)
        first, d_first = load(here, at, j, R, 1, D, R), load(d_memory, at, j, R, 1, D, R)
        by_query = dot(d_kept_asked, tl.trans(first), PRECISION) + dot(d_pairs, keys, PRECISION)
        by_key = dot(d_bent, tl.trans(first), PRECISION) - dot(changed, tl.trans(d_first), PRECISION)
        by_key += dot(tl.trans(d_pairs), queries, PRECISION)
        by_keep += tl.sum(d_first * first)
        new = keep_last * d_first + dot(tl.trans(queries), d_kept_asked, PRECISION)
        new += dot(tl.trans(keys), d_bent, PRECISION)
        if MOMENTUM:
            p, d_p = load(here + HALF, at, j, R, 1, D, R), load(d_memory + HALF, at, j, R, 1, D, R)
            by_query -= dot(d_moved_asked, tl.trans(p), PRECISION)
            by_key += dot(pushed, tl.trans(d_p), PRECISION)
            by_move -= tl.sum(d_first * p)
            by_slow += tl.sum(d_p * p)
            new_p = slow_last * d_p - move_last * d_first - dot(tl.trans(queries), d_moved_asked, PRECISION)
            store(d_memory + HALF, new_p, at, j, R, 1, D, R, False)
        store(d_memory, new, at, j, R, 1, D, R, False)
        store(d_q, by_query, t, at, stride, 1, count, D, PART)
        store(d_k, by_key, m, at, stride, 1, seen, D, PART or PAST > 0)
    if PART:
        tl.debug_barrier()  # the next block adds to what other threads have written
    return by_keep_last + by_keep, by_move_last + by_move, by_slow_last + by_slow


@triton.jit
def bend_backward(
    k, here, d_k, d_memory, d_bent, m, i, j, seen, stride, D: tl.constexpr, R: tl.constexpr, BD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The contribution of a further derivative by k W to those by keys and by columns j of the first matrix."""
    for start in range(0, D, BD):
        at = start + i
        first = load(here, at, j, R, 1, D, R)
        store(d_k, dot(d_bent, tl.trans(first), PRECISION), m, at, stride, 1, seen, D, True)
        keys = load(k, m, at, stride, 1, seen, D)
        store(d_memory, dot(tl.trans(keys), d_bent, PRECISION), at, j, R, 1, D, R, True)
    tl.debug_barrier()  # the next block adds to what other threads have written


# Features held whole: matrices [hidden units, features].


@triton.jit
def learn_whole(
    first, q_, k_, here, following, changed, pushed, keep_last, move_last, slow_last, i, j,
    D: tl.constexpr, R: tl.constexpr, HALF: tl.constexpr, MOMENTUM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Rows j of the next first matrix and its momentum, put down; and q W, q P of the ones that are."""
    asked = dot(q_, tl.trans(first), PRECISION)
    asked_p = asked
    new = keep_last * first - dot(tl.trans(changed), k_, PRECISION)
    if MOMENTUM:
        p_first = load(here + HALF, j, i, 1, R, R, D)
        asked_p = dot(q_, tl.trans(p_first), PRECISION)
        new -= move_last * p_first
        new_p = slow_last * p_first + dot(tl.trans(pushed), k_, PRECISION)
        store(following + HALF, new_p, j, i, 1, R, R, D, False)
    store(following, new, j, i, 1, R, R, D, False)
    return asked, asked_p


@triton.jit
def learn_first_biases(
    asked, asked_p, here, following, changed, pushed, keep_last, move_last, slow_last, j,
    D: tl.constexpr, R: tl.constexpr, HALF: tl.constexpr, MOMENTUM: tl.constexpr,
):  # fmt: skip
    """The first matrix' row of biases: what queries make of it, added to q W and q P, and what it becomes, put down."""
    row = load_vector(here + D * R, j, R)
    asked += row[None, :]
    new_row = keep_last * row - tl.sum(changed, 0)
    if MOMENTUM:
        p_row = load_vector(here + HALF + D * R, j, R)
        asked_p += p_row[None, :]
        new_row -= move_last * p_row
        new_p_row = slow_last * p_row + tl.sum(pushed, 0)
        tl.store(following + HALF + D * R + j, new_p_row, mask=j < R)
    tl.store(following + D * R + j, new_row, mask=j < R)
    return asked, asked_p


@triton.jit
def asked_again(
    asked_w, asked_p, first, q_, d, scores, here, d_memory, keep, move, i, j,
    D: tl.constexpr, R: tl.constexpr, HALF: tl.constexpr, WHOLE: tl.constexpr, MOMENTUM: tl.constexpr,
    BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The hidden units of queries, as in forward, with q W and q P; the momentum's rows, where they are held whole; the
    biases, their derivatives, and those of their momentum, where there are any."""
    p_first, row, d_row, p_row, d_p_row = first, d, d, d, d
    if WHOLE:
        asked_w = dot(q_, tl.trans(first), PRECISION)
        asked_p = asked_w
    if BIAS:
        row, d_row = load_vector(here + D * R, j, R), load_vector(d_memory + D * R, j, R)
        asked_w += row[None, :]
    asked = keep[:, None] * asked_w - dot(scores, d, PRECISION)
    if MOMENTUM:
        if WHOLE:
            p_first = load(here + HALF, j, i, 1, R, R, D)
            asked_p = dot(q_, tl.trans(p_first), PRECISION)
        if BIAS:
            p_row, d_p_row = load_vector(here + HALF + D * R, j, R), load_vector(d_memory + HALF + D * R, j, R)
            asked_p += p_row[None, :]
        asked -= move[:, None] * asked_p
    return asked, asked_w, asked_p, p_first, row, d_row, p_row, d_p_row


@triton.jit
def hidden_backward(
    d_asked, d_x, asked_w, asked_p, bent, before, slope, d, scores, signal, w, first, p_first, row, d_row, p_row, d_p_row,
    q_, k_, d_q_, d_k_, taken_d, taken_d_p, d_pairs, d_signal, new_d_w,
    by_keep, by_move, by_change, by_shove, by_keep_last, by_move_last, by_slow_last,
    keep, move, change, shove, keep_last, move_last, slow_last, d_memory, i, j,
    D: tl.constexpr, R: tl.constexpr, HALF: tl.constexpr, WHOLE: tl.constexpr, MOMENTUM: tl.constexpr,
    BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From the derivatives by what queries ask and by hidden units of the sights: those by what was bent to make these, by
    q k^T and by the signals; and where features are held whole, by the first matrix, its momentum, q and k."""
    d_kept_asked, changed_d = keep[:, None] * d_asked, change[:, None] * d
    d_moved_asked, pushed_d, new_d_first = d_kept_asked, changed_d, first
    by_keep += tl.sum(d_asked * asked_w, 1)
    more_d_pairs = -dot(d_asked, tl.trans(d), PRECISION)
    d_pairs += more_d_pairs
    if WHOLE:
        d_first = load(d_memory, j, i, 1, R, R, D)
        d_q_ += dot(d_kept_asked, first, PRECISION)
        d_k_ -= dot(changed_d, d_first, PRECISION)
        taken_d = dot(k_, tl.trans(d_first), PRECISION)
        by_keep_last += tl.sum(d_first * first)
        new_d_first = keep_last * d_first + dot(tl.trans(d_kept_asked), q_, PRECISION)
    if BIAS:
        taken_d += d_row[None, :]
        by_keep_last += tl.sum(d_row * row)
        new_d_row = keep_last * d_row + tl.sum(d_kept_asked, 0)
    by_change -= tl.sum(taken_d * d, 1)
    d_d = -change[:, None] * taken_d - dot(tl.trans(scores), d_asked, PRECISION)
    if MOMENTUM:
        d_moved_asked, pushed_d = move[:, None] * d_asked, shove[:, None] * d
        by_move -= tl.sum(d_asked * asked_p, 1)
        if WHOLE:
            d_p_first = load(d_memory + HALF, j, i, 1, R, R, D)
            d_q_ -= dot(d_moved_asked, p_first, PRECISION)
            d_k_ += dot(pushed_d, d_p_first, PRECISION)
            taken_d_p = dot(k_, tl.trans(d_p_first), PRECISION)
            by_move_last -= tl.sum(d_first * p_first)
            by_slow_last += tl.sum(d_p_first * p_first)
            new_d_p_first = slow_last * d_p_first - move_last * d_first
            new_d_p_first -= dot(tl.trans(d_moved_asked), q_, PRECISION)
            store(d_memory + HALF, new_d_p_first, j, i, 1, R, R, D, False)
        if BIAS:
            taken_d_p += d_p_row[None, :]
            by_move_last -= tl.sum(d_row * p_row)
            by_slow_last += tl.sum(d_p_row * p_row)
            new_d_p_row = slow_last * d_p_row - move_last * d_row - tl.sum(d_moved_asked, 0)
            tl.store(d_memory + HALF + D * R + j, new_d_p_row, mask=j < R)
        by_shove += tl.sum(taken_d_p * d, 1)
        d_d += shove[:, None] * taken_d_p
    d_before = d_d * slope
    d_signal += dot(d_before, w, PRECISION)
    new_d_w += outer(d_before, signal, PRECISION)
    d_bent = d_d * before * gelu_bend(bent) + d_x * slope
    if BIAS:
        tl.store(d_memory + D * R + j, new_d_row + tl.sum(d_bent, 0), mask=j < R)
    if WHOLE:
        d_k_ += dot(d_bent, first, PRECISION)
        new_d_first += dot(tl.trans(d_bent), k_, PRECISION)
        store(d_memory, new_d_first, j, i, 1, R, R, D, False)
    return (
        d_bent, d_kept_asked, d_moved_asked, changed_d, pushed_d, more_d_pairs, d_q_, d_k_, d_pairs, d_signal, new_d_w,
        by_keep, by_move, by_change, by_shove, by_keep_last, by_move_last, by_slow_last,
    )  # fmt: skip


@triton.jit
def pairs_backward(
    d_weights, d_pairs, pairs, weights, q_, k_, d_q_, d_k_, WHOLE: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """From the derivative by q k^T as it is weighed: by the weights, by q k^T, and where they are held by q and k."""
    d_weights += d_pairs * pairs
    d_pairs = d_pairs * weights
    if WHOLE:
        d_q_ += dot(d_pairs, k_, PRECISION)
        d_k_ += dot(tl.trans(d_pairs), q_, PRECISION)
    return d_weights, d_pairs, d_q_, d_k_
