"""Tiles of a head in Triton: rows of matrices, and products in the precision of the inputs.

C tokens, K key width, V value width
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

# Arguments of kernels whose values must not be compiled in.
RUN_TIME = ["T", "H", "L", "M", "beta_b", "beta_t", "beta_h", "sign_b", "sign_t", "sign_h"]


@triton.jit
def _inside(rows, columns, height, width: tl.constexpr):
    if columns.shape[0] == width:
        inside = (rows < height)[:, None]
    else:
        inside = (rows < height)[:, None] & (columns < width)[None, :]
    return inside


@triton.jit
def load(x, rows, columns, height, width: tl.constexpr, stride):
    """Rows of a matrix, zero beyond its height and width."""
    inside = _inside(rows, columns, height, width)
    return tl.load(x + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def store(x, value, rows, columns, height, width: tl.constexpr, stride):
    inside = _inside(rows, columns, height, width)
    tl.store(x + rows[:, None] * stride + columns[None, :], value.to(x.dtype.element_ty), mask=inside)


@triton.jit
def dot(a, b, DOT: tl.constexpr):
    """Exact products of fp32, but for those so large that, unrolled for want of tensor cores, they would fill all registers."""
    LARGE: tl.constexpr = tl.float32 == DOT and a.shape[0] * a.shape[1] * b.shape[1] > 32768
    return tl.dot(a.to(DOT), b.to(DOT), input_precision="tf32x3" if LARGE else "ieee")


@triton.jit
def rounded(x, DOT: tl.constexpr):
    """The value as an operand of a product whose range fp16 lacks."""
    return x.to(tl.bfloat16) if tl.bfloat16 == DOT else x


@triton.jit
def wide_dot(a, b, DOT: tl.constexpr):
    """A product of numbers from 1e-33 to 1e33."""
    return dot(a, b, DOT) if tl.float16 != DOT else tl.dot(a, b, input_precision="tf32")
