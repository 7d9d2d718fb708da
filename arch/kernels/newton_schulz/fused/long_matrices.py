"""Matrices far longer than short, of which only squares of their rows go through the steps.

    X_n = Q_n X_0,   Q' = P Q,   A' = P A P,   dX_0 = Q^T dY + (B + B^T) X_0,   B by A_0, with dQ = dY X_0^T at the last step
for all of these commute. A is made of the data anew every FRESH steps: small singular values lose their digits in it.

N matrices, R rows, C columns, RP the power of two of R, BC columns at a time
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.newton_schulz.fused.tiles import (
    CUBIC_TERM,
    EPSILON,
    LEAST_SQUARE,
    LINEAR_TERM,
    QUINTIC_TERM,
    dot,
    flat_places,
    nth_matrix,
)


@triton.jit
def _square(x, y):
    """A product of squares, few and small."""
    return tl.dot(x, y, input_precision="ieee")


@triton.jit
def _strip(
    x, first, x_row, x_column, R: tl.constexpr, C: tl.constexpr, RP: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """BC columns of a matrix from the first on, and where there are any."""
    row, column = tl.arange(0, RP)[:, None], first + tl.arange(0, BC)[None, :]
    there = (row < R) & (column < C)
    places = row * x_row + column * x_column
    return tl.load(x + places, mask=there, other=0.0).to(tl.float32), there, places


@triton.jit
def _scale(
    x, x_row, x_column, R: tl.constexpr, C: tl.constexpr, RP: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """The square of |x|, and |x| as it is divided by."""
    squares = tl.zeros([RP, BC], tl.float32)
    for first in range(0, C, BC):
        part, _there, _places = _strip(x, first, x_row, x_column, R, C, RP, BC)
        squares += part * part
    square = tl.sum(squares)
    return square, tl.sqrt(tl.maximum(square, LEAST_SQUARE))


@triton.jit
def _gram(
    factor, x, x_row, x_column, R: tl.constexpr, C: tl.constexpr, RP: tl.constexpr, BC: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A of factor x."""
    gram = tl.zeros([RP, RP], tl.float32)
    for first in range(0, C, BC):
        part, _there, _places = _strip(x, first, x_row, x_column, R, C, RP, BC)
        part = dot(factor, part, PRECISION)
        gram += dot(part, tl.trans(part), PRECISION)
    return gram


@triton.jit
def _unit(RP: tl.constexpr):
    return tl.where(tl.arange(0, RP)[:, None] == tl.arange(0, RP)[None, :], 1.0, 0.0)


@triton.jit
def _stepped(gram, RP: tl.constexpr):
    """a + P of A: by what X and Q are multiplied."""
    return _unit(RP) * LINEAR_TERM + gram * CUBIC_TERM + _square(gram, gram) * QUINTIC_TERM


@triton.jit(do_not_specialize=["inner", "steps"])
def newton_schulz_long_forward_kernel(
    x, y, inner, x_outer, x_inner, x_row, x_column, steps,
    R: tl.constexpr, C: tl.constexpr, RP: tl.constexpr, CP: tl.constexpr, TALL: tl.constexpr, PRECISION: tl.constexpr,
    BC: tl.constexpr, FRESH: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0)
    x = nth_matrix(x, n, inner, x_outer, x_inner)
    y += n.to(tl.int64) * (R * C)
    _square_of, size = _scale(x, x_row, x_column, R, C, RP, BC)
    factor = _unit(RP) / (size + EPSILON)  # Q, of x as it is
    for begun in range(0, steps, FRESH):
        gram = _gram(factor, x, x_row, x_column, R, C, RP, BC, PRECISION)
        for _ in range(begun, min(steps, begun + FRESH)):
            by = _stepped(gram, RP)
            factor = _square(by, factor)
            gram = _square(_square(by, gram), by)
    for first in range(0, C, BC):
        part, there, _places = _strip(x, first, x_row, x_column, R, C, RP, BC)
        row, column = tl.arange(0, RP)[:, None], first + tl.arange(0, BC)[None, :]
        at = column * R + row if TALL else row * C + column
        tl.store(y + at, dot(factor, part, PRECISION).to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["inner", "steps", "N"])
def newton_schulz_long_backward_kernel(
    dy, x, dx, scratch, inner, x_outer, x_inner, x_row, x_column, steps, N,
    R: tl.constexpr, C: tl.constexpr, RP: tl.constexpr, CP: tl.constexpr, TALL: tl.constexpr, PRECISION: tl.constexpr,
    BC: tl.constexpr, FRESH: tl.constexpr,
):  # fmt: skip
    first_n, hop = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64) * (R * C)
    row, column = (1, R) if TALL else (C, 1)  # distances in dy and dx
    here = flat_places(tl.arange(0, RP), tl.arange(0, RP), RP)
    scratch += first_n * steps * (2 * RP * RP)
    dy += first_n * (R * C)
    dx += first_n * (R * C)
    n = tl.program_id(0)
    for _ in range(tl.program_id(0), N, tl.num_programs(0)):
        of_n = nth_matrix(x, n, inner, x_outer, x_inner)
        square, size = _scale(of_n, x_row, x_column, R, C, RP, BC)
        shrunk = 1.0 / (size + EPSILON)
        factor = _unit(RP)
        for begun in range(0, steps, FRESH):
            gram = _gram(factor * shrunk, of_n, x_row, x_column, R, C, RP, BC, PRECISION)
            for step in range(begun, min(steps, begun + FRESH)):
                tl.store(scratch + step * (2 * RP * RP) + here, factor)
                tl.store(scratch + step * (2 * RP * RP) + RP * RP + here, gram)
                by = _stepped(gram, RP)
                factor = _square(by, factor)
                gram = _square(_square(by, gram), by)
        tl.debug_barrier()  # other threads read what these wrote
        d_factor = tl.zeros([RP, RP], tl.float32)
        for first in range(0, C, BC):
            part, _there, _places = _strip(of_n, first, x_row, x_column, R, C, RP, BC)
            d, _there, _places = _strip(dy, first, row, column, R, C, RP, BC)
            d_factor += dot(d, tl.trans(part * shrunk), PRECISION)
        first_gram = tl.load(scratch + RP * RP + here)
        d_first = tl.zeros([RP, RP], tl.float32)  # by A_0
        along = tl.sum(factor * d_factor)  # <dX_0, X_0>
        for back in range((steps + FRESH - 1) // FRESH):
            begun = ((steps - 1) // FRESH - back) * FRESH
            d_gram = tl.zeros([RP, RP], tl.float32)
            for again in range(begun, min(steps, begun + FRESH)):
                step = begun + min(steps, begun + FRESH) - 1 - again
                before = tl.load(scratch + step * (2 * RP * RP) + here)
                gram = tl.load(scratch + step * (2 * RP * RP) + RP * RP + here)
                by = _stepped(gram, RP)
                turn = _square(d_gram, _square(by, gram))
                d_by = _square(d_factor, tl.trans(before)) + turn + tl.trans(turn)
                d_by = (d_by + tl.trans(d_by)) * 0.5  # by is symmetric, and so is all that it is made of
                d_factor = _square(by, d_factor)
                turn = _square(d_by, gram)
                d_gram = _square(_square(by, d_gram), by) + d_by * CUBIC_TERM + (turn + tl.trans(turn)) * QUINTIC_TERM
            before = tl.load(scratch + begun * (2 * RP * RP) + here)
            d_square = _square(d_gram, before)  # of A = Q A_0 Q^T
            d_first += _square(tl.trans(before), d_square)
            d_factor += _square(d_square, first_gram) * 2.0
        along = tl.where(square >= LEAST_SQUARE, (along + 2.0 * tl.sum(d_first * first_gram)) / size, 0.0)
        d_first = (d_first + tl.trans(d_first)) * shrunk
        for first in range(0, C, BC):
            part, _there, _places = _strip(of_n, first, x_row, x_column, R, C, RP, BC)
            d, there, places = _strip(dy, first, row, column, R, C, RP, BC)
            d = dot(tl.trans(factor), d, PRECISION) + dot(d_first, part, PRECISION)
            tl.store(dx + places, ((d - part * along) * shrunk).to(dx.dtype.element_ty), mask=there)
        tl.debug_barrier()  # before these write again
        dy += hop
        dx += hop
        n += tl.num_programs(0)
