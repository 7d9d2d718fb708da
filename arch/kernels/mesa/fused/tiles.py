"""Tiles of a head in Triton, and products in the precision that a solve needs.

T time, K key width, V value width
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl


@triton.jit
def _rounded(x):
    """x to the nearest number that bf16 has, still in fp32: bit arithmetic, as a conversion there and back takes far longer."""
    return ((x.to(tl.int32, bitcast=True) + 0x8000) & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def _high(x):
    return _rounded(x).to(tl.bfloat16)


@triton.jit
def _low(x):
    """The rest of x that bf16 loses."""
    return (x - _rounded(x)).to(tl.bfloat16)


@triton.jit
def dot(x, y, PRECISION: tl.constexpr):
    """x @ y in fp32; the smallest terms are summed first."""
    if PRECISION != "split":
        product = tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision=PRECISION)
    elif x.dtype == tl.float32 and y.dtype == tl.float32:
        product = dot_halves(x, _high(y), _low(y), PRECISION)
    elif x.dtype == tl.float32:
        product = tl.dot(_high(x), y, tl.dot(_low(x), y))
    elif y.dtype == tl.float32:
        product = tl.dot(x, _high(y), tl.dot(x, _low(y)))
    else:
        product = tl.dot(x, y)
    return product


@triton.jit
def halves(y, PRECISION: tl.constexpr):
    """The parts of y that `dot_halves` needs: all of it at once unless products are split."""
    high, low = y, y
    if PRECISION == "split":
        high, low = _high(y), _low(y)
    return high, low


@triton.jit
def dot_halves(x, high, low, PRECISION: tl.constexpr):
    if PRECISION == "split":
        product = tl.dot(_high(x), high, tl.dot(_high(x), low, tl.dot(_low(x), high)))
    else:
        product = dot(x, high, PRECISION)
    return product


@triton.jit
def rough_dot(x, y, PRECISION: tl.constexpr):
    """x @ y to the digits of the inputs: for what only sums them, and never goes into a solve."""
    if PRECISION == "split":
        product = tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16))
    else:
        product = dot(x, y, PRECISION)
    return product


@triton.jit
def load(pointer, rows, columns, row_stride, column_stride, row_count, column_count):
    mask = (rows < row_count)[:, None] & (columns < column_count)[None, :]
    return tl.load(pointer + rows[:, None] * row_stride + columns[None, :] * column_stride, mask=mask, other=0.0)


@triton.jit
def store(pointer, x, rows, columns, row_stride, column_stride, row_count, column_count):
    mask = (rows < row_count)[:, None] & (columns < column_count)[None, :]
    places = pointer + rows[:, None] * row_stride + columns[None, :] * column_stride
    tl.store(places, x.to(pointer.dtype.element_ty), mask=mask)
