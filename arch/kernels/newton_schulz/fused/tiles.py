"""Places of matrices in Triton, and the numbers of the polynomial.

R rows, C columns (R <= C), RP and CP their powers of two
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.newton_schulz.recurrent import CUBIC, EPS, LEAST, LINEAR, QUINTIC

LINEAR_TERM, CUBIC_TERM, QUINTIC_TERM = tl.constexpr(LINEAR), tl.constexpr(CUBIC), tl.constexpr(QUINTIC)
EPSILON, LEAST_SQUARE = tl.constexpr(EPS), tl.constexpr(LEAST)


@triton.jit
def entries_of_rows(first, R: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, CP: tl.constexpr, TALL: tl.constexpr):
    """ROWS rows from the first on, and columns, of a matrix or of its transpose; which are there; where dense memory and where
    scratch has them."""
    row, column = first + tl.arange(0, ROWS)[:, None], tl.arange(0, CP)[None, :]
    at = column * R + row if TALL else row * C + column
    return row, column, (row < R) & (column < C), at, row * CP + column


@triton.jit
def places_of_rows(first, R: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, CP: tl.constexpr, TALL: tl.constexpr):
    """The entries of rows, as `entries_of_rows`, with rows and columns."""
    _row, _column, there, at, kept = entries_of_rows(first, R, C, ROWS, CP, TALL)
    return there, at, kept


@triton.jit
def nth_matrix(x, n, inner, x_outer, x_inner):
    """The offset of the n-th matrix. There are `inner` at equal distances, again and again."""
    return x + (n // inner).to(tl.int64) * x_outer + (n % inner).to(tl.int64) * x_inner


@triton.jit
def flat_places(rows, columns, WIDTH: tl.constexpr):
    """Places of these rows and columns in a matrix of WIDTH columns, row by row."""
    return rows[:, None] * WIDTH + columns[None, :]


@triton.jit
def dot(x, y, PRECISION: tl.constexpr):
    """x y of fp32."""
    return tl.dot(x, y, input_precision=PRECISION)
