"""A memory's last matrix, a block of rows at a time: what tokens read through it, what it learns, and the derivatives of both.

It is all that a linear memory has, fed by keys and queries, and what a deep one has behind its hidden units. x are its inputs
at the sights, z at the tokens, w and p a block of it and of its momentum; FIRST and HALF say where matrix and momentum begin.

C tokens a chunk, S sights, R rows, V value width
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.memory.fused.tiles import dot, load, load_vector, outer, store


@triton.jit
def load_block(memory, j, c, R: tl.constexpr, V: tl.constexpr, FIRST: tl.constexpr):
    """Rows j of the last matrix of a memory, or of what is laid out like one."""
    return load(memory + FIRST, j, c, V, 1, R, V)


@triton.jit
def learn_block(
    gram, read, z, x, w, p, changed, pushed, keep, move, keep_last, move_last, slow_last, following, j, c,
    R: tl.constexpr, V: tl.constexpr, FIRST: tl.constexpr, HALF: tl.constexpr, MOMENTUM: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """z x^T and read-outs, added to what is there; and the rows behind the chunk, which are stored in `following`."""
    gram += dot(z, tl.trans(x), PRECISION)
    read += keep[:, None] * dot(z, w, PRECISION)
    new_w = keep_last * w - outer(x, changed, PRECISION)
    new_p = p
    if MOMENTUM:
        read -= move[:, None] * dot(z, p, PRECISION)
        new_w -= move_last * p
        new_p = slow_last * p + outer(x, pushed, PRECISION)
        store(following + HALF + FIRST, new_p, j, c, V, 1, R, V, False)
    store(following + FIRST, new_w, j, c, V, 1, R, V, False)
    return gram, read, new_w, new_p


@triton.jit
def load_biases(memory, own, own_p, c, BASE: tl.constexpr, HALF: tl.constexpr, V: tl.constexpr, MOMENTUM: tl.constexpr):
    """The row of biases [V] and its momentum, which begin at BASE, in place of own and own_p."""
    own = load_vector(memory + BASE, c, V)
    if MOMENTUM:
        own_p = load_vector(memory + HALF + BASE, c, V)
    return own, own_p


@triton.jit
def learn_biases(
    read, own, own_p, changed, pushed, keep, move, keep_last, move_last, slow_last, following, c,
    BASE: tl.constexpr, HALF: tl.constexpr, V: tl.constexpr, MOMENTUM: tl.constexpr,
):  # fmt: skip
    """`read` with what tokens read through the biases; and the biases behind the chunk, which are stored too."""
    read += keep[:, None] * own[None, :]
    own = keep_last * own - tl.sum(changed, 0)
    if MOMENTUM:
        read -= move[:, None] * own_p[None, :]
        own -= move_last * own_p
        own_p = slow_last * own_p + tl.sum(pushed, 0)
        tl.store(following + HALF + BASE + c, own_p, mask=c < V)
    tl.store(following + BASE + c, own, mask=c < V)
    return read, own, own_p


@triton.jit
def block_backward(
    gram, taken, taken_p, by_keep, by_move, by_keep_last, by_move_last, by_slow_last, z, x, w, p, d_w, d_p, d_z, d_z_p,
    d_gram, changed, pushed, d_kept_read, d_moved_read, keep, move, keep_last, move_last, slow_last,
    MOMENTUM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From the derivatives d_w, d_p by the rows behind the chunk, and d_z, d_z_p by z through the matrix and its momentum as
    they are: those by z and x, and by the rows ahead as far as tokens read them. All else is added to what there is."""
    gram += dot(z, tl.trans(x), PRECISION)
    by_keep += tl.sum(d_z * z, 1)
    d_z = keep[:, None] * d_z + dot(d_gram, x, PRECISION)
    d_x = dot(tl.trans(d_gram), z, PRECISION)
    d_x -= dot(changed, tl.trans(d_w), PRECISION)
    taken += dot(x, d_w, PRECISION)
    by_keep_last += tl.sum(d_w * w)
    new_d_w = keep_last * d_w + outer(z, d_kept_read, PRECISION)
    new_d_p = d_p
    if MOMENTUM:
        by_move -= tl.sum(d_z_p * z, 1)
        d_z -= move[:, None] * d_z_p
        d_x += dot(pushed, tl.trans(d_p), PRECISION)
        taken_p += dot(x, d_p, PRECISION)
        by_move_last -= tl.sum(d_w * p)
        by_slow_last += tl.sum(d_p * p)
        new_d_p = slow_last * d_p - move_last * d_w
        new_d_p -= outer(z, d_moved_read, PRECISION)
    return (
        gram, taken, taken_p, by_keep, by_move, by_keep_last, by_move_last, by_slow_last, d_z, d_x, new_d_w, new_d_p,
    )  # fmt: skip


@triton.jit
def biases_backward(
    taken, taken_p, by_keep, by_move, by_keep_last, by_move_last, by_slow_last, d_own, d_own_p, own, own_p, d_read,
    d_kept_read, d_moved_read, keep_last, move_last, slow_last, MOMENTUM: tl.constexpr,
):  # fmt: skip
    """The same of the biases."""
    by_keep += tl.sum(d_read * own[None, :], 1)
    taken += d_own[None, :]
    by_keep_last += tl.sum(d_own * own)
    if MOMENTUM:
        by_move -= tl.sum(d_read * own_p[None, :], 1)
        taken_p += d_own_p[None, :]
        by_move_last -= tl.sum(d_own * own_p)
        by_slow_last += tl.sum(d_own_p * own_p)
        d_own_p = slow_last * d_own_p - move_last * d_own - tl.sum(d_moved_read, 0)
    d_own = keep_last * d_own + tl.sum(d_kept_read, 0)
    return taken, taken_p, by_keep, by_move, by_keep_last, by_move_last, by_slow_last, d_own, d_own_p


@triton.jit
def changes_backward(
    by_change, by_shove, d_signal, taken, taken_p, signal, change, shove, weights, gram, d_read, d_scores,
    MOMENTUM: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Once all blocks are through: derivatives by what signals weigh, by signals, and by the weights of sights in tokens."""
    by_change -= tl.sum(taken * signal, 1)
    d_signal -= change[:, None] * taken
    d_signal -= dot(tl.trans(weights * (gram + BIAS)), d_read, PRECISION)
    d_weights = d_scores * (gram + BIAS)
    if MOMENTUM:
        by_shove += tl.sum(taken_p * signal, 1)
        d_signal += shove[:, None] * taken_p
    return by_change, by_shove, d_signal, d_weights


@triton.jit
def store_biases(
    d_memory, d_own, d_own_p, c, BASE: tl.constexpr, HALF: tl.constexpr, V: tl.constexpr, MOMENTUM: tl.constexpr
):  # fmt: skip
    """Store derivatives by the biases ahead of the sequence."""
    tl.store(d_memory + BASE + c, d_own, mask=c < V)
    if MOMENTUM:
        tl.store(d_memory + HALF + BASE + c, d_own_p, mask=c < V)
