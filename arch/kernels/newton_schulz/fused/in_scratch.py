"""Matrices that have no room in registers, multiplied in tiles from scratch memory, where they lie row by row.

A program uses its own again for every matrix that it takes: all of it stays in the caches. Every function here ends in a
barrier: the next one reads what this one wrote.

N matrices, R rows, C columns, RP and CP their powers of two, BM, BN, BK rows, columns and inner columns of a tile
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
    entries_of_rows,
    flat_places,
    nth_matrix,
    places_of_rows,
)


@triton.jit
def _multiplied(
    acc, x, y, rows, columns, INNER: tl.constexpr, WIDTH: tl.constexpr, TURNED: tl.constexpr, BOTH: tl.constexpr,
    BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """These rows and columns of acc + x y, or x y^T where TURNED; with x + x^T for x where BOTH. y is WIDTH wide."""
    for first in range(0, INNER, BK):
        inner = first + tl.arange(0, BK)
        a = tl.load(x + flat_places(rows, inner, INNER))
        if BOTH:
            a += tl.trans(tl.load(x + flat_places(inner, rows, INNER)))
        if TURNED:
            b = tl.trans(tl.load(y + flat_places(columns, inner, WIDTH)))
        else:
            b = tl.load(y + flat_places(inner, columns, WIDTH))
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def _product(
    out, x, y, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, TURNED: tl.constexpr, BOTH: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out = x y, or as _multiplied has it."""
    WIDTH: tl.constexpr = INNER if TURNED else COLUMNS
    ACROSS: tl.constexpr = COLUMNS // BN
    for tile in range(ROWS // BM * ACROSS):
        rows, columns = tile // ACROSS * BM + tl.arange(0, BM), tile % ACROSS * BN + tl.arange(0, BN)
        acc = tl.zeros([BM, BN], tl.float32)
        acc = _multiplied(acc, x, y, rows, columns, INNER, WIDTH, TURNED, BOTH, BK, PRECISION)
        tl.store(out + flat_places(rows, columns, COLUMNS), acc)
    tl.debug_barrier()


@triton.jit
def _grown(
    out, poly, x, d_gram, z, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out = a x + P x, and + d_gram z where there is any."""
    ACROSS: tl.constexpr = COLUMNS // BN
    for tile in range(ROWS // BM * ACROSS):
        rows, columns = tile // ACROSS * BM + tl.arange(0, BM), tile % ACROSS * BN + tl.arange(0, BN)
        acc = tl.load(x + flat_places(rows, columns, COLUMNS)) * LINEAR_TERM
        acc = _multiplied(acc, poly, x, rows, columns, ROWS, COLUMNS, False, False, BK, PRECISION)
        if d_gram is not None:
            acc = _multiplied(acc, d_gram, z, rows, columns, ROWS, COLUMNS, False, False, BK, PRECISION)
        tl.store(out + flat_places(rows, columns, COLUMNS), acc)
    tl.debug_barrier()


@triton.jit
def _mixed(out, x, y, ROWS: tl.constexpr, BOTH: tl.constexpr, BM: tl.constexpr):
    """out = b x + c y; of x + x^T and y + y^T where BOTH."""
    ACROSS: tl.constexpr = ROWS // BM
    for tile in range(ACROSS * ACROSS):
        rows, columns = tile // ACROSS * BM + tl.arange(0, BM), tile % ACROSS * BM + tl.arange(0, BM)
        here, there = flat_places(rows, columns, ROWS), flat_places(columns, rows, ROWS)
        u, v = tl.load(x + here), tl.load(y + here)
        if BOTH:
            u += tl.trans(tl.load(x + there))
            v += tl.trans(tl.load(y + there))
        tl.store(out + here, u * CUBIC_TERM + v * QUINTIC_TERM)
    tl.debug_barrier()


@triton.jit
def _polynomial(
    poly, gram, squared, z, RP: tl.constexpr, CP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A, A^2 and P of X."""
    _product(gram, z, z, RP, RP, CP, True, False, BM, BN, BK, PRECISION)
    _product(squared, gram, gram, RP, RP, RP, False, False, BM, BN, BK, PRECISION)
    _mixed(poly, gram, squared, RP, False, BM)


@triton.jit
def _begun(
    out, x, x_row, x_column,
    R: tl.constexpr, C: tl.constexpr, RP: tl.constexpr, CP: tl.constexpr, TALL: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """out = x / (|x| + eps). Gives the square of |x|, and |x| as it is divided by."""
    squares = tl.zeros([BM, CP], tl.float32)
    for first in range(0, RP, BM):
        row, column, there, _at, _kept = entries_of_rows(first, R, C, BM, CP, TALL)
        z = tl.load(x + row * x_row + column * x_column, mask=there, other=0.0).to(tl.float32)
        squares += z * z
    square = tl.sum(squares)
    size = tl.sqrt(tl.maximum(square, LEAST_SQUARE))
    for first in range(0, RP, BM):
        row, column, there, _at, kept = entries_of_rows(first, R, C, BM, CP, TALL)
        z = tl.load(x + row * x_row + column * x_column, mask=there, other=0.0).to(tl.float32)
        tl.store(out + kept, z / (size + EPSILON))
    tl.debug_barrier()
    return square, size


@triton.jit(do_not_specialize=["inner", "steps", "N"])
def newton_schulz_tiled_forward_kernel(
    x, y, scratch, inner, x_outer, x_inner, x_row, x_column, steps, N,
    R: tl.constexpr, C: tl.constexpr, RP: tl.constexpr, CP: tl.constexpr, TALL: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    start, hop = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64) * (R * C)
    gram = scratch + start * (3 * RP * RP + 2 * RP * CP)
    squared, poly, pair = gram + RP * RP, gram + 2 * RP * RP, gram + 3 * RP * RP
    y += start * (R * C)
    n = tl.program_id(0)
    for _ in range(tl.program_id(0), N, tl.num_programs(0)):
        _begun(pair, nth_matrix(x, n, inner, x_outer, x_inner), x_row, x_column, R, C, RP, CP, TALL, BM)
        for step in range(steps):
            now, later = pair + step % 2 * (RP * CP), pair + (step + 1) % 2 * (RP * CP)
            _polynomial(poly, gram, squared, now, RP, CP, BM, BN, BK, PRECISION)
            _grown(later, poly, now, None, None, RP, CP, BM, BN, BK, PRECISION)
        for first in range(0, RP, BM):
            there, at, kept = places_of_rows(first, R, C, BM, CP, TALL)
            z = tl.load(pair + steps % 2 * (RP * CP) + kept)
            tl.store(y + at, z.to(y.dtype.element_ty), mask=there)
        tl.debug_barrier()
        y += hop
        n += tl.num_programs(0)


@triton.jit(do_not_specialize=["inner", "steps", "N"])
def newton_schulz_tiled_backward_kernel(
    dy, x, dx, scratch, inner, x_outer, x_inner, x_row, x_column, steps, N,
    R: tl.constexpr, C: tl.constexpr, RP: tl.constexpr, CP: tl.constexpr, TALL: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    start, hop = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64) * (R * C)
    gram = scratch + start * (5 * RP * RP + (2 + steps) * RP * CP)
    squared, poly = gram + RP * RP, gram + 2 * RP * RP
    half, d_gram = gram + 3 * RP * RP, gram + 4 * RP * RP
    pair = gram + 5 * RP * RP
    zs = pair + 2 * RP * CP
    dy += start * (R * C)
    dx += start * (R * C)
    n = tl.program_id(0)
    for _ in range(tl.program_id(0), N, tl.num_programs(0)):
        for first in range(0, RP, BM):
            there, at, kept = places_of_rows(first, R, C, BM, CP, TALL)
            tl.store(pair + kept, tl.load(dy + at, mask=there, other=0.0).to(tl.float32))
        of_n = nth_matrix(x, n, inner, x_outer, x_inner)
        square, size = _begun(zs, of_n, x_row, x_column, R, C, RP, CP, TALL, BM)
        for step in range(1, steps):
            before = zs + (step - 1) * (RP * CP)
            _polynomial(poly, gram, squared, before, RP, CP, BM, BN, BK, PRECISION)
            _grown(before + RP * CP, poly, before, None, None, RP, CP, BM, BN, BK, PRECISION)
        for back in range(steps):
            now, later = pair + back % 2 * (RP * CP), pair + (back + 1) % 2 * (RP * CP)
            begun = zs + (steps - 1 - back) * (RP * CP)
            _polynomial(poly, gram, squared, begun, RP, CP, BM, BN, BK, PRECISION)
            _product(half, now, begun, RP, RP, CP, True, False, BM, BN, BK, PRECISION)
            _product(squared, half, gram, RP, RP, RP, False, True, BM, BN, BK, PRECISION)
            _mixed(d_gram, half, squared, RP, True, BM)
            _grown(later, poly, now, d_gram, begun, RP, CP, BM, BN, BK, PRECISION)
        ended = pair + steps % 2 * (RP * CP)
        sums = tl.zeros([BM, CP], tl.float32)
        for first in range(0, RP, BM):
            _there, _at, kept = places_of_rows(first, R, C, BM, CP, TALL)
            sums += tl.load(ended + kept) * tl.load(zs + kept)
        along = tl.where(square >= LEAST_SQUARE, tl.sum(sums) / size, 0.0)
        for first in range(0, RP, BM):
            there, at, kept = places_of_rows(first, R, C, BM, CP, TALL)
            d = tl.load(ended + kept) / (size + EPSILON) - tl.load(zs + kept) * along
            tl.store(dx + at, d.to(dx.dtype.element_ty), mask=there)
        tl.debug_barrier()
        dy += hop
        dx += hop
        n += tl.num_programs(0)
