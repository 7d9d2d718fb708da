"""Small matrices, which stay in registers through all steps, of the smallest several in a tile.

N matrices, R rows, C columns, RP and CP their powers of two; OWN rows and columns of a block
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
    nth_matrix,
)
from recallmap.arch.kernels.triton_tiles.packed_matrices import apart, block_sums, in_own_block


@triton.jit
def _blocks_of(x, y, PRECISION: tl.constexpr, OWN: tl.constexpr, RP: tl.constexpr):
    """x y, nothing of which is beside the blocks."""
    return apart(dot(x, y, PRECISION), OWN, RP)


@triton.jit
def _entries(
    x, tile, N, inner, x_outer, x_inner, x_row, x_column,
    R: tl.constexpr, C: tl.constexpr, RP: tl.constexpr, CP: tl.constexpr, TALL: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """The offsets of a tile's entries in x and in dense memory, and a mask of those that exist."""
    row, column = tl.arange(0, RP)[:, None], tl.arange(0, CP)[None, :]
    if OWN < RP:
        n = tile * (RP // OWN) + column // OWN
        there = in_own_block(OWN, RP) & (row % OWN < R) & (column % OWN < C) & (n < N)
        n, row, column = tl.minimum(n, N - 1), row % OWN, column % OWN
    else:
        n, there = tile, (row < R) & (column < C)
    of_x = nth_matrix(x, n, inner, x_outer, x_inner) + row * x_row + column * x_column
    return of_x, n.to(tl.int64) * (R * C) + (column * R + row if TALL else row * C + column), there


@triton.jit
def _poly(x, PRECISION: tl.constexpr, OWN: tl.constexpr, RP: tl.constexpr):
    """A and P of X."""
    gram = _blocks_of(x, tl.trans(x), PRECISION, OWN, RP)
    return gram, gram * CUBIC_TERM + _blocks_of(gram, gram, PRECISION, OWN, RP) * QUINTIC_TERM


@triton.jit(do_not_specialize=["inner", "steps", "N"])
def newton_schulz_forward_kernel(
    x, y, inner, x_outer, x_inner, x_row, x_column, steps, N,
    R: tl.constexpr, C: tl.constexpr, RP: tl.constexpr, CP: tl.constexpr, TALL: tl.constexpr, PRECISION: tl.constexpr,
    OWN: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    of_x, at, there = _entries(x, tile, N, inner, x_outer, x_inner, x_row, x_column, R, C, RP, CP, TALL, OWN)
    z = tl.load(of_x, mask=there, other=0.0).to(tl.float32)
    z = apart(z / (tl.sqrt(tl.maximum(block_sums(z * z, OWN, RP), LEAST_SQUARE)) + EPSILON), OWN, RP)
    for _ in range(steps):
        z = z * LINEAR_TERM + _blocks_of(_poly(z, PRECISION, OWN, RP)[1], z, PRECISION, OWN, RP)
    tl.store(y + at, z.to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["inner", "steps", "N"])
def newton_schulz_backward_kernel(
    dy, x, dx, scratch, inner, x_outer, x_inner, x_row, x_column, steps, N,
    R: tl.constexpr, C: tl.constexpr, RP: tl.constexpr, CP: tl.constexpr, TALL: tl.constexpr, PRECISION: tl.constexpr,
    OWN: tl.constexpr,
):  # fmt: skip
    kept = tl.arange(0, RP)[:, None] * CP + tl.arange(0, CP)[None, :]
    scratch += tl.program_id(0).to(tl.int64) * steps * (RP * CP)
    tile = tl.program_id(0)
    for _ in range(tl.program_id(0), tl.cdiv(N, RP // OWN), tl.num_programs(0)):
        of_x, at, there = _entries(x, tile, N, inner, x_outer, x_inner, x_row, x_column, R, C, RP, CP, TALL, OWN)
        z = tl.load(of_x, mask=there, other=0.0).to(tl.float32)
        square = block_sums(z * z, OWN, RP)
        size = tl.sqrt(tl.maximum(square, LEAST_SQUARE))
        z = apart(z / (size + EPSILON), OWN, RP)
        tl.store(scratch + kept, z)
        for step in range(1, steps):
            z = z * LINEAR_TERM + _blocks_of(_poly(z, PRECISION, OWN, RP)[1], z, PRECISION, OWN, RP)
            tl.store(scratch + step * (RP * CP) + kept, z)
        tl.debug_barrier()  # other threads read what these wrote
        d = tl.load(dy + at, mask=there, other=0.0).to(tl.float32)
        for back in range(steps):
            z = tl.load(scratch + (steps - 1 - back) * (RP * CP) + kept)
            gram, poly = _poly(z, PRECISION, OWN, RP)
            half = _blocks_of(d, tl.trans(z), PRECISION, OWN, RP)
            both = half + tl.trans(half)
            turn = _blocks_of(both, gram, PRECISION, OWN, RP)
            d_gram = both * CUBIC_TERM + (turn + tl.trans(turn)) * QUINTIC_TERM
            d = d * LINEAR_TERM + _blocks_of(poly, d, PRECISION, OWN, RP) + _blocks_of(d_gram, z, PRECISION, OWN, RP)
        along = tl.where(square >= LEAST_SQUARE, block_sums(d * z, OWN, RP) / size, 0.0)
        tl.store(dx + at, (d / (size + EPSILON) - z * along).to(dx.dtype.element_ty), mask=there)
        tl.debug_barrier()  # before these write again
        tile += tl.num_programs(0)
