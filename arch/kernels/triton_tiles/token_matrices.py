"""Vectors and matrices of single tokens, as the ops over spans and the retained weights read them.

R rows, C columns
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl


@triton.jit
def times(x, y):
    """x y, by three tensor-core products that keep 21 bits."""
    return tl.dot(x, y, input_precision="tf32x3")


@triton.jit
def load_vector(at, index, count):
    """A vector of `count` numbers in fp32, zero beyond them."""
    return tl.load(at + index, mask=index < count, other=0.0).to(tl.float32)


@triton.jit
def matrix_places(rows, columns, R: tl.constexpr, C: tl.constexpr):
    """Places in a matrix of R rows and C columns, and which of them there are."""
    there = (rows < R)[:, None] & (columns < C)[None, :]
    return rows[:, None] * C + columns[None, :], there
