"""Tiles of a head in Triton, and what rounding an operand leaves out.

T time, H heads
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl


@triton.jit
def head_of(x, strides, sequence, H):
    """x from a head of a sequence on."""
    return x + (sequence // H) * strides[0] + (sequence % H) * strides[2]


@triton.jit
def load_tile(x, rows, time, stride, columns, width):
    """x [T, width] at rows and columns, zero beyond both."""
    there = (rows < time)[:, None] & (columns < width)[None, :]
    return tl.load(x + rows[:, None] * stride + columns[None, :], mask=there, other=0.0)


@triton.jit
def load_turned(x, rows, time, stride, columns, width):
    """`load_tile`, transposed where it is loaded: a product's operand must not be a transposed product."""
    there = (columns < width)[:, None] & (rows < time)[None, :]
    return tl.load(x + columns[:, None] + rows[None, :] * stride, mask=there, other=0.0)


@triton.jit
def store_tile(x, values, rows, time, stride, columns, width):
    there = (rows < time)[:, None] & (columns < width)[None, :]
    tl.store(x + rows[:, None] * stride + columns[None, :], values.to(x.dtype.element_ty), mask=there)


@triton.jit
def lost_digits(x, like):
    """The rest of an fp32 operand that 16 bits leave out: results may be small differences over a normaliser near 1."""
    return (x - x.to(like.dtype).to(tl.float32)).to(like.dtype)
