"""Tiles in Triton of a memory's matrices and of the tokens that a chunk sees.

C tokens a chunk, PAST tokens of its window ahead of it, S sights: what the chunks of a piece see, side by side
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl


@triton.jit
def load(pointer, rows, columns, row_stride, column_stride, row_count, column_count):
    """A tile in fp32, zero beyond the counts."""
    mask = (rows < row_count)[:, None] & (columns < column_count)[None, :]
    places = pointer + rows[:, None] * row_stride + columns[None, :] * column_stride
    return tl.load(places, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store(pointer, x, rows, columns, row_stride, column_stride, row_count, column_count, ADD: tl.constexpr):
    """Store a tile, or add it to what is there."""
    mask = (rows < row_count)[:, None] & (columns < column_count)[None, :]
    places = pointer + rows[:, None] * row_stride + columns[None, :] * column_stride
    if ADD:
        x += tl.load(places, mask=mask, other=0.0).to(tl.float32)
    tl.store(places, x.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def load_vector(pointer, at, count):
    """A vector in fp32, zero beyond the count."""
    return tl.load(pointer + at, mask=at < count, other=0.0).to(tl.float32)


@triton.jit
def dot(x, y, PRECISION: tl.constexpr):
    """x y in fp32, of factors in fp32 or rounded to bf16 ("bf16")."""
    if PRECISION == "bf16":
        product = tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16))
    else:
        product = tl.dot(x, y, input_precision=PRECISION)
    return product


@triton.jit
def outer(x, y, PRECISION: tl.constexpr):
    """x^T y, where one of both has 32 columns at most."""
    if x.shape[1] > 32:
        product = tl.trans(dot(tl.trans(y), x, PRECISION))
    else:
        product = dot(tl.trans(x), y, PRECISION)
    return product


@triton.jit
def places_of_sights(m, S: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, PAST: tl.constexpr):
    """Places of sights [S] among the tokens that a piece sees; none beyond the last sight."""
    return tl.where(m < S, m // (CHUNK + PAST) * CHUNK + m % (CHUNK + PAST), C + PAST)


@triton.jit
def load_targets(v, k_skip, keys, places, c, H, seen, V: tl.constexpr):
    """Targets of the memory at each sight [S, V]: values, less the keys that a residual adds."""
    target = load(v + keys * V, places, c, H * V, 1, seen, V)
    if k_skip is not None:
        target -= load(k_skip + keys * V, places, c, H * V, 1, seen, V)
    return target


@triton.jit
def memory_ahead(memory, states, sequence, n, N, P: tl.constexpr):
    """The memory that a sequence's n-th piece begins with: the first one, or what forward left behind the piece before."""
    here = memory
    if n > 0:
        here = states + (sequence * (N - 1) + n - 1) * P
    return here
