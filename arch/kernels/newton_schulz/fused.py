"""Newton-Schulz with a tile a program through all steps; one launch forward and one backward.

X_0 = x / n,  n = |x|_F + eps,    X' = a X + P X,   P = b A + c A^2,   A = X X^T
dX = a dX' + P dX' + (b S + c (S A + A S)) X,   S = dX' X^T + X dX'^T,    dx = dX_0 / n - X_0 <dX_0, X_0> / |x|_F

Tall matrices are read as their transposes. Small matrices stay in registers, of the smallest several in a tile; larger ones
have no room there, and are multiplied in tiles from scratch memory. Backward goes through the steps again and keeps what each
begins with in scratch memory, too. A program uses its own again for every matrix that it takes: all of it stays in the caches.

Of a matrix far longer than short, a memory's over many features, only squares of its short side go through the steps:
    X_n = Q_n X_0,   Q' = P Q,   A' = P A P,   dX_0 = Q^T dY + (B + B^T) X_0,   B by A_0, with dQ = dY X_0^T at the last step
for all of these commute. A is made of the data anew every few steps: small singular values lose their digits in it.

N matrices, R rows, C columns (R <= C), RP and CP their powers of two, BM, BN, BK rows, columns and inner columns of a tile,
BC columns at a time of a long matrix
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from arch.kernels.newton_schulz.recurrent import CUBIC, EPS, LEAST, LINEAR, QUINTIC
from arch.kernels.op_interface.custom_op import matrices, opaque, padded, scratch
from arch.kernels.triton_tiles.packed_matrices import apart, block_of, block_sums, in_own_block

WIDEST = 128
WIDEST_FLAT = 1024  # of matrices of 32 rows at most: a memory's, over the quadratic features of up to 43 channels
FRESH = 3  # steps that A goes without being made anew
SCRATCH = 22 * 2**20  # floats of scratch memory for all programs

_LINEAR, _CUBIC, _QUINTIC = tl.constexpr(LINEAR), tl.constexpr(CUBIC), tl.constexpr(QUINTIC)
_EPS, _LEAST = tl.constexpr(EPS), tl.constexpr(LEAST)


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """What these kernels cannot do."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    shortest, widest = sorted((sizes.get("heads", 1), sizes.get("value_width", 1)))
    most = WIDEST_FLAT if shortest <= 32 else WIDEST
    return f"holds matrices up to {most} wide, got {widest}" if widest > most else None


def fused(x: Tensor, *, steps: int) -> Tensor:
    """All matrices [..., rows, columns]."""
    (y,) = _newton_schulz(x[None] if x.ndim == 2 else x, steps)
    return y[0] if x.ndim == 2 else y


class _Form(NamedTuple):
    """How one matrix is computed.

    precision  of products of fp32: "ieee"; "tf32x3", three tensor-core products that keep 21 bits
    warps      of a program
    tile       BM, BN, BK of a product from scratch memory
    block      BC, where only squares go through the steps; None of both: all in registers
    """

    precision: str
    warps: int
    tile: tuple[int, int, int] | None = None
    block: int | None = None

    def options(self) -> dict[str, Any]:
        """What kernels are compiled with."""
        tile = {} if self.tile is None else dict(zip(("BM", "BN", "BK"), self.tile, strict=True))
        block = {} if self.block is None else {"BC": self.block, "FRESH": FRESH}
        return {"PRECISION": self.precision, **tile, **block, "num_warps": self.warps, "num_stages": 1}


def _table(rows: int, columns: int) -> _Form:
    """The form for matrices of so many rows and columns, powers of two."""
    if rows <= 32 and rows * columns <= 2048:
        return _Form("tf32x3", rows * columns // 256)
    if rows <= 32:
        return _Form("tf32x3", 1 if rows <= 16 else 4, block=32)
    return _Form("tf32x3", 4, (32, min(rows, 64), 16))  # not 64 rows: Triton 3.6 gets those wrong on Hopper


@triton.jit
def _where(first, R: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, CP: tl.constexpr, TALL: tl.constexpr):
    """ROWS rows from the first on, and columns, of a matrix or of its transpose; which are there; where dense memory and where
    scratch has them."""
    row, column = first + tl.arange(0, ROWS)[:, None], tl.arange(0, CP)[None, :]
    at = column * R + row if TALL else row * C + column
    return row, column, (row < R) & (column < C), at, row * CP + column


@triton.jit
def _rows(first, R: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, CP: tl.constexpr, TALL: tl.constexpr):
    """As _where, but rows and columns."""
    _row, _column, there, at, kept = _where(first, R, C, ROWS, CP, TALL)
    return there, at, kept


@triton.jit
def _matrix(x, n, inner, x_outer, x_inner):
    """Where the n-th matrix begins. There are `inner` at equal distances, again and again."""
    return x + (n // inner).to(tl.int64) * x_outer + (n % inner).to(tl.int64) * x_inner


# Matrices in registers. -----------------------------------------------------------------------------------------------


@triton.jit
def _dot(x, y, PRECISION: tl.constexpr):
    return tl.dot(x, y, input_precision=PRECISION)


@triton.jit
def _blocks_of(x, y, PRECISION: tl.constexpr, OWN: tl.constexpr, RP: tl.constexpr):
    """x y, nothing of which is beside the blocks."""
    return apart(_dot(x, y, PRECISION), OWN, RP)


@triton.jit
def _entries(
    x, tile, N, inner, x_outer, x_inner, x_row, x_column,
    R: tl.constexpr, C: tl.constexpr, RP: tl.constexpr, CP: tl.constexpr, TALL: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """Of a tile's entries: where in x they are, where dense memory has them, and which are there."""
    row, column = tl.arange(0, RP)[:, None], tl.arange(0, CP)[None, :]
    if OWN < RP:
        n = tile * (RP // OWN) + column // OWN
        there = in_own_block(OWN, RP) & (row % OWN < R) & (column % OWN < C) & (n < N)
        n, row, column = tl.minimum(n, N - 1), row % OWN, column % OWN
    else:
        n, there = tile, (row < R) & (column < C)
    of_x = _matrix(x, n, inner, x_outer, x_inner) + row * x_row + column * x_column
    return of_x, n.to(tl.int64) * (R * C) + (column * R + row if TALL else row * C + column), there


@triton.jit
def _poly(x, PRECISION: tl.constexpr, OWN: tl.constexpr, RP: tl.constexpr):
    """A and P of X."""
    gram = _blocks_of(x, tl.trans(x), PRECISION, OWN, RP)
    return gram, gram * _CUBIC + _blocks_of(gram, gram, PRECISION, OWN, RP) * _QUINTIC


@triton.jit(do_not_specialize=["inner", "steps", "N"])
def _forward_kernel(
    x, y, inner, x_outer, x_inner, x_row, x_column, steps, N,
    R: tl.constexpr, C: tl.constexpr, RP: tl.constexpr, CP: tl.constexpr, TALL: tl.constexpr, PRECISION: tl.constexpr,
    OWN: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    of_x, at, there = _entries(x, tile, N, inner, x_outer, x_inner, x_row, x_column, R, C, RP, CP, TALL, OWN)
    z = tl.load(of_x, mask=there, other=0.0).to(tl.float32)
    z = apart(z / (tl.sqrt(tl.maximum(block_sums(z * z, OWN, RP), _LEAST)) + _EPS), OWN, RP)
    for _ in range(steps):
        z = z * _LINEAR + _blocks_of(_poly(z, PRECISION, OWN, RP)[1], z, PRECISION, OWN, RP)
    tl.store(y + at, z.to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["inner", "steps", "N"])
def _backward_kernel(
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
        size = tl.sqrt(tl.maximum(square, _LEAST))
        z = apart(z / (size + _EPS), OWN, RP)
        tl.store(scratch + kept, z)
        for step in range(1, steps):
            z = z * _LINEAR + _blocks_of(_poly(z, PRECISION, OWN, RP)[1], z, PRECISION, OWN, RP)
            tl.store(scratch + step * (RP * CP) + kept, z)
        tl.debug_barrier()  # other threads read what these wrote
        d = tl.load(dy + at, mask=there, other=0.0).to(tl.float32)
        for back in range(steps):
            z = tl.load(scratch + (steps - 1 - back) * (RP * CP) + kept)
            gram, poly = _poly(z, PRECISION, OWN, RP)
            half = _blocks_of(d, tl.trans(z), PRECISION, OWN, RP)
            both = half + tl.trans(half)
            turn = _blocks_of(both, gram, PRECISION, OWN, RP)
            d_gram = both * _CUBIC + (turn + tl.trans(turn)) * _QUINTIC
            d = d * _LINEAR + _blocks_of(poly, d, PRECISION, OWN, RP) + _blocks_of(d_gram, z, PRECISION, OWN, RP)
        along = tl.where(square >= _LEAST, block_sums(d * z, OWN, RP) / size, 0.0)
        tl.store(dx + at, (d / (size + _EPS) - z * along).to(dx.dtype.element_ty), mask=there)
        tl.debug_barrier()  # before these write again
        tile += tl.num_programs(0)


# Matrices in scratch memory, row by row. Every function here ends in a barrier: the next one reads what this one wrote. -------


@triton.jit
def _tile(rows, columns, WIDTH: tl.constexpr):
    return rows[:, None] * WIDTH + columns[None, :]


@triton.jit
def _multiplied(
    acc, x, y, rows, columns, INNER: tl.constexpr, WIDTH: tl.constexpr, TURNED: tl.constexpr, BOTH: tl.constexpr,
    BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """These rows and columns of acc + x y, or x y^T where TURNED; with x + x^T for x where BOTH. y is WIDTH wide."""
    for first in range(0, INNER, BK):
        inner = first + tl.arange(0, BK)
        a = tl.load(x + _tile(rows, inner, INNER))
        if BOTH:
            a += tl.trans(tl.load(x + _tile(inner, rows, INNER)))
        if TURNED:
            b = tl.trans(tl.load(y + _tile(columns, inner, WIDTH)))
        else:
            b = tl.load(y + _tile(inner, columns, WIDTH))
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
        tl.store(out + _tile(rows, columns, COLUMNS), acc)
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
        acc = tl.load(x + _tile(rows, columns, COLUMNS)) * _LINEAR
        acc = _multiplied(acc, poly, x, rows, columns, ROWS, COLUMNS, False, False, BK, PRECISION)
        if d_gram is not None:
            acc = _multiplied(acc, d_gram, z, rows, columns, ROWS, COLUMNS, False, False, BK, PRECISION)
        tl.store(out + _tile(rows, columns, COLUMNS), acc)
    tl.debug_barrier()


@triton.jit
def _mixed(out, x, y, ROWS: tl.constexpr, BOTH: tl.constexpr, BM: tl.constexpr):
    """out = b x + c y; of x + x^T and y + y^T where BOTH."""
    ACROSS: tl.constexpr = ROWS // BM
    for tile in range(ACROSS * ACROSS):
        rows, columns = tile // ACROSS * BM + tl.arange(0, BM), tile % ACROSS * BM + tl.arange(0, BM)
        here, there = _tile(rows, columns, ROWS), _tile(columns, rows, ROWS)
        u, v = tl.load(x + here), tl.load(y + here)
        if BOTH:
            u += tl.trans(tl.load(x + there))
            v += tl.trans(tl.load(y + there))
        tl.store(out + here, u * _CUBIC + v * _QUINTIC)
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
        row, column, there, _at, _kept = _where(first, R, C, BM, CP, TALL)
        z = tl.load(x + row * x_row + column * x_column, mask=there, other=0.0).to(tl.float32)
        squares += z * z
    square = tl.sum(squares)
    size = tl.sqrt(tl.maximum(square, _LEAST))
    for first in range(0, RP, BM):
        row, column, there, _at, kept = _where(first, R, C, BM, CP, TALL)
        z = tl.load(x + row * x_row + column * x_column, mask=there, other=0.0).to(tl.float32)
        tl.store(out + kept, z / (size + _EPS))
    tl.debug_barrier()
    return square, size


@triton.jit(do_not_specialize=["inner", "steps", "N"])
def _tiled_forward_kernel(
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
        _begun(pair, _matrix(x, n, inner, x_outer, x_inner), x_row, x_column, R, C, RP, CP, TALL, BM)
        for step in range(steps):
            now, later = pair + step % 2 * (RP * CP), pair + (step + 1) % 2 * (RP * CP)
            _polynomial(poly, gram, squared, now, RP, CP, BM, BN, BK, PRECISION)
            _grown(later, poly, now, None, None, RP, CP, BM, BN, BK, PRECISION)
        for first in range(0, RP, BM):
            there, at, kept = _rows(first, R, C, BM, CP, TALL)
            z = tl.load(pair + steps % 2 * (RP * CP) + kept)
            tl.store(y + at, z.to(y.dtype.element_ty), mask=there)
        tl.debug_barrier()
        y += hop
        n += tl.num_programs(0)


@triton.jit(do_not_specialize=["inner", "steps", "N"])
def _tiled_backward_kernel(
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
            there, at, kept = _rows(first, R, C, BM, CP, TALL)
            tl.store(pair + kept, tl.load(dy + at, mask=there, other=0.0).to(tl.float32))
        of_n = _matrix(x, n, inner, x_outer, x_inner)
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
            _there, _at, kept = _rows(first, R, C, BM, CP, TALL)
            sums += tl.load(ended + kept) * tl.load(zs + kept)
        along = tl.where(square >= _LEAST, tl.sum(sums) / size, 0.0)
        for first in range(0, RP, BM):
            there, at, kept = _rows(first, R, C, BM, CP, TALL)
            d = tl.load(ended + kept) / (size + _EPS) - tl.load(zs + kept) * along
            tl.store(dx + at, d.to(dx.dtype.element_ty), mask=there)
        tl.debug_barrier()
        dy += hop
        dx += hop
        n += tl.num_programs(0)


# Long matrices, of which only squares of their rows go through the steps. ----------------------------------------------


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
    return square, tl.sqrt(tl.maximum(square, _LEAST))


@triton.jit
def _gram(
    factor, x, x_row, x_column, R: tl.constexpr, C: tl.constexpr, RP: tl.constexpr, BC: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A of factor x."""
    gram = tl.zeros([RP, RP], tl.float32)
    for first in range(0, C, BC):
        part, _there, _places = _strip(x, first, x_row, x_column, R, C, RP, BC)
        part = _dot(factor, part, PRECISION)
        gram += _dot(part, tl.trans(part), PRECISION)
    return gram


@triton.jit
def _unit(RP: tl.constexpr):
    return tl.where(tl.arange(0, RP)[:, None] == tl.arange(0, RP)[None, :], 1.0, 0.0)


@triton.jit
def _stepped(gram, RP: tl.constexpr):
    """a + P of A: by what X and Q are multiplied."""
    return _unit(RP) * _LINEAR + gram * _CUBIC + _square(gram, gram) * _QUINTIC


@triton.jit(do_not_specialize=["inner", "steps"])
def _long_forward_kernel(
    x, y, inner, x_outer, x_inner, x_row, x_column, steps,
    R: tl.constexpr, C: tl.constexpr, RP: tl.constexpr, CP: tl.constexpr, TALL: tl.constexpr, PRECISION: tl.constexpr,
    BC: tl.constexpr, FRESH: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0)
    x = _matrix(x, n, inner, x_outer, x_inner)
    y += n.to(tl.int64) * (R * C)
    _square_of, size = _scale(x, x_row, x_column, R, C, RP, BC)
    factor = _unit(RP) / (size + _EPS)  # Q, of x as it is
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
        tl.store(y + at, _dot(factor, part, PRECISION).to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["inner", "steps", "N"])
def _long_backward_kernel(
    dy, x, dx, scratch, inner, x_outer, x_inner, x_row, x_column, steps, N,
    R: tl.constexpr, C: tl.constexpr, RP: tl.constexpr, CP: tl.constexpr, TALL: tl.constexpr, PRECISION: tl.constexpr,
    BC: tl.constexpr, FRESH: tl.constexpr,
):  # fmt: skip
    first_n, hop = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64) * (R * C)
    row, column = (1, R) if TALL else (C, 1)  # distances in dy and dx
    here = _tile(tl.arange(0, RP), tl.arange(0, RP), RP)
    scratch += first_n * steps * (2 * RP * RP)
    dy += first_n * (R * C)
    dx += first_n * (R * C)
    n = tl.program_id(0)
    for _ in range(tl.program_id(0), N, tl.num_programs(0)):
        of_n = _matrix(x, n, inner, x_outer, x_inner)
        square, size = _scale(of_n, x_row, x_column, R, C, RP, BC)
        shrunk = 1.0 / (size + _EPS)
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
            d_factor += _dot(d, tl.trans(part * shrunk), PRECISION)
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
                d_gram = _square(_square(by, d_gram), by) + d_by * _CUBIC + (turn + tl.trans(turn)) * _QUINTIC
            before = tl.load(scratch + begun * (2 * RP * RP) + here)
            d_square = _square(d_gram, before)  # of A = Q A_0 Q^T
            d_first += _square(tl.trans(before), d_square)
            d_factor += _square(d_square, first_gram) * 2.0
        along = tl.where(square >= _LEAST, (along + 2.0 * tl.sum(d_first * first_gram)) / size, 0.0)
        d_first = (d_first + tl.trans(d_first)) * shrunk
        for first in range(0, C, BC):
            part, _there, _places = _strip(of_n, first, x_row, x_column, R, C, RP, BC)
            d, there, places = _strip(dy, first, row, column, R, C, RP, BC)
            d = _dot(tl.trans(factor), d, PRECISION) + _dot(d_first, part, PRECISION)
            tl.store(dx + places, ((d - part * along) * shrunk).to(dx.dtype.element_ty), mask=there)
        tl.debug_barrier()  # before these write again
        dy += hop
        dx += hop
        n += tl.num_programs(0)


# Launches. ------------------------------------------------------------------------------------------------------------


def _forward(x: Tensor, steps: int) -> tuple[Tensor]:
    x, where = _layout(x)
    (y,) = _outputs(x, steps)
    form, sizes = _sizes(x)
    if form.tile is None and form.block is None:
        tiles = triton.cdiv(matrices(x), sizes["RP"] // sizes["OWN"])
        _forward_kernel[tiles,](x, y, *where, steps, matrices(x), **sizes, **form.options())
        return (y,)
    if form.tile is None:
        _long_forward_kernel[matrices(x),](x, y, *where, steps, **sizes, **form.options())
        return (y,)
    squares, others = sizes["RP"] ** 2, sizes["RP"] * sizes["CP"]
    room, programs = scratch(x, 3 * squares + 2 * others, SCRATCH)
    _tiled_forward_kernel[programs,](x, y, room, *where, steps, matrices(x), **sizes, **form.options())
    return (y,)


def _outputs(x: Tensor, steps: int) -> tuple[Tensor]:
    return (x.new_empty(x.shape),)


def _backward(dy: Tensor, x: Tensor, steps: int) -> tuple[Tensor]:
    dy, (x, where) = dy.contiguous(), _layout(x)
    (dx,) = _gradients(dy, x, steps)
    form, sizes = _sizes(x)
    squares, others = sizes["RP"] ** 2, sizes["RP"] * sizes["CP"]
    if form.block is not None:
        kernel, floats = _long_backward_kernel, 2 * steps * squares
    elif form.tile is None:
        kernel, floats = _backward_kernel, steps * others
    else:
        kernel, floats = _tiled_backward_kernel, 5 * squares + (2 + steps) * others
    room, programs = scratch(x, floats, SCRATCH)
    kernel[programs,](dy, x, dx, room, *where, steps, matrices(x), **sizes, **form.options())
    return (dx,)


def _gradients(dy: Tensor, x: Tensor, steps: int) -> tuple[Tensor]:
    return (x.new_empty(x.shape),)


def _layout(x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """x, copied where it must be, and how many matrices lie at equal distances; the distances of such groups, of matrices in
    one, and of rows and columns in the wide form of a matrix."""
    groups: list[tuple[int, int]] = []
    for size, stride in zip(x.shape[:-2], x.stride()[:-2], strict=True):
        if size > 1 and groups and groups[-1][1] == size * stride:
            groups[-1] = (groups[-1][0] * size, stride)
        elif size > 1:
            groups.append((size, stride))
    if len(groups) > 2:
        return _layout(x.contiguous())
    (_, outer), (size, inner) = [(1, 0), (1, 0), *groups][-2:]
    row, column = x.stride()[-2:]
    return x, (size, outer, inner, *((column, row) if x.shape[-2] > x.shape[-1] else (row, column)))


def _sizes(x: Tensor) -> tuple[_Form, dict[str, Any]]:
    rows, columns = sorted(x.shape[-2:])
    tall = x.shape[-2] > x.shape[-1]
    form = _table(padded(rows), padded(columns))
    sizes = {"R": rows, "C": columns, "RP": padded(rows), "CP": padded(columns), "TALL": tall}
    if form.tile is None and form.block is None:
        sizes["OWN"] = min(block_of(columns), sizes["RP"])
    return form, sizes


_newton_schulz = opaque("newton_schulz", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=1)
