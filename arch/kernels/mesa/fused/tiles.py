"""Tiles of a head in Triton, and products in the precision that a solve needs.

T time, K key width, V value width
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl


@triton.jit
def rounded(x):
    """x to the nearest number that bf16 has, still in fp32: bit arithmetic, as a conversion there and back takes far longer."""
    return ((x.to(tl.int32, bitcast=True) + 0x8000) & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def truncated(x):
    """x to the next number toward zero that bf16 has: half as many instructions as `rounded`, and one bit less."""
    return (x.to(tl.int32, bitcast=True) & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def high_of(x):
    return rounded(x).to(tl.bfloat16)


@triton.jit
def low_of(x):
    """The rest of x that bf16 loses."""
    return (x - rounded(x)).to(tl.bfloat16)


@triton.jit
def dot(x, y, PRECISION: tl.constexpr):
    """x @ y in fp32; the smallest terms are summed first."""
    if PRECISION != "split":
        product = tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision=PRECISION)
    elif x.dtype == tl.float32 and y.dtype == tl.float32:
        product = dot_halves(x, high_of(y), low_of(y), PRECISION)
    elif x.dtype == tl.float32:
        product = tl.dot(high_of(x), y, tl.dot(low_of(x), y))
    elif y.dtype == tl.float32:
        product = tl.dot(x, high_of(y), tl.dot(x, low_of(y)))
    else:
        product = tl.dot(x, y)
    return product


@triton.jit
def load_halves(first, second, place, i, j, K: tl.constexpr, V: tl.constexpr):
    """What is of a state at a place, [K, V], in the parts that `dot_halves` needs; without `second` it is whole."""
    high = load(first + place * K * V, i, j, V, 1, K, V)
    low = high
    if second is not None:
        low = load(second + place * K * V, i, j, V, 1, K, V)
    return high, low


@triton.jit
def load_diagonal(first, second, place, i, K: tl.constexpr):
    at = place * K * K + i * (K + 1)
    diagonal = tl.load(first + at, mask=i < K, other=0.0).to(tl.float32)
    if second is not None:
        diagonal += tl.load(second + at, mask=i < K, other=0.0).to(tl.float32)
    return diagonal


@triton.jit
def store_halves(first, second, place, x, i, j, K: tl.constexpr, V: tl.constexpr):
    """x to a place of states, as `load_halves` reads it."""
    if second is None:
        store(first + place * K * V, x, i, j, V, 1, K, V)
    else:
        store(first + place * K * V, high_of(x), i, j, V, 1, K, V)
        store(second + place * K * V, low_of(x), i, j, V, 1, K, V)


@triton.jit
def dot_halves(x, high, low, PRECISION: tl.constexpr):
    if PRECISION != "split":
        product = dot(x, high, PRECISION)
    elif x.dtype == tl.bfloat16:
        product = tl.dot(x, high, tl.dot(x, low))
    else:
        product = tl.dot(high_of(x), high, tl.dot(high_of(x), low, tl.dot(low_of(x), high)))
    return product


@triton.jit
def direction(x, PRECISION: tl.constexpr):
    """x as a direction of steps: where products are split, of bf16's numbers, so that one product has all of it."""
    if PRECISION == "split":
        x = rounded(x)
    return x


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
