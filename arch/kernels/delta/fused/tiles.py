"""Tiles of a chunk in Triton: products, rows and columns of a head, and states that grow by products of few rows.

C tokens, D channels of keys or values, K key width, V value width
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl


@triton.jit
def dot(x, y, PRECISION: tl.constexpr):
    """x y in fp32, of operands in fp32 ("ieee", "tf32x3", "tf32") or rounded to bf16 ("bf16"; "bf16x2" where x keeps 16 bits
    by two products)."""
    if PRECISION == "bf16":
        product = tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16))
    elif PRECISION == "bf16x2":
        high = x.to(tl.bfloat16)
        product = tl.dot((x - high.to(tl.float32)).to(tl.bfloat16), y.to(tl.bfloat16))
        product = tl.dot(high, y.to(tl.bfloat16), product)
    else:
        product = tl.dot(x, y, input_precision=PRECISION)
    return product


@triton.jit
def add_dot(z, x, y, PRECISION: tl.constexpr):
    """z + x y."""
    if PRECISION == "bf16":
        z = tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16), z)
    else:
        z = tl.dot(x, y, z, input_precision=PRECISION)
    return z


@triton.jit
def dot_right(x, y, PRECISION: tl.constexpr):
    """x y, where "bf16x2" keeps the bits of y."""
    if PRECISION == "bf16x2":
        high = y.to(tl.bfloat16)
        product = tl.dot(x.to(tl.bfloat16), (y - high.to(tl.float32)).to(tl.bfloat16))
        product = tl.dot(x.to(tl.bfloat16), high, product)
    else:
        product = dot(x, y, PRECISION)
    return product


@triton.jit
def load_rows(x, stride, t, T, d, D):
    """[C, D] in fp32, zero outside."""
    inside = (t[:, None] < T) & (d[None, :] < D)
    return tl.load(x + t[:, None] * stride + d[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def load_columns(x, stride, t, T, d, D):
    """[D, C] in fp32, zero outside."""
    inside = (d[:, None] < D) & (t[None, :] < T)
    return tl.load(x + d[:, None] + t[None, :] * stride, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def store_rows(x, stride, t, T, d, D, tile):
    inside = (t[:, None] < T) & (d[None, :] < D)
    tl.store(x + t[:, None] * stride + d[None, :], tile.to(x.dtype.element_ty), mask=inside)


@triton.jit
def store_columns(x, stride, t, T, d, D, tile):
    inside = (d[:, None] < D) & (t[None, :] < T)
    tl.store(x + d[:, None] + t[None, :] * stride, tile.to(x.dtype.element_ty), mask=inside)


@triton.jit
def load_gates(x, stride, t, T):
    """[C] in fp32, zero outside."""
    return tl.load(x + t * stride, mask=t < T, other=0.0)


@triton.jit
def load_square(x, inside, C: tl.constexpr):
    """[C, C], zero outside; None: all of it."""
    i = tl.arange(0, C)
    return tl.load(x + i[:, None] * C + i[None, :], mask=inside, other=None if inside is None else 0.0)


@triton.jit
def load_square_transposed(x, inside, C: tl.constexpr):
    i = tl.arange(0, C)
    return tl.load(x + i[:, None] + i[None, :] * C, mask=inside, other=None if inside is None else 0.0)


@triton.jit
def store_square(x, square, C: tl.constexpr):
    i = tl.arange(0, C)
    tl.store(x + i[:, None] * C + i[None, :], square.to(x.dtype.element_ty))


@triton.constexpr_function
def rounds_reads(PAIR, PRECISION):
    """Whether reads within a chunk are kept in bf16, as products round them: not with a and b, where registers would spill."""
    return PRECISION == "bf16" and not PAIR


@triton.constexpr_function
def size_of_pairs(C, PAIR, PRECISION):
    """Floats of what is kept of a chunk's pairs: the inverse and reads, with a and b also sees and hears."""
    return C * C // 2 * (3 if rounds_reads(PAIR, PRECISION) else 8 if PAIR else 4)


@triton.jit
def reads_of(pairs, C: tl.constexpr, PAIR: tl.constexpr, PRECISION: tl.constexpr):
    """Where a chunk's reads lie, behind its inverse."""
    reads = pairs + C * C
    if rounds_reads(PAIR, PRECISION):
        reads = reads.to(tl.pointer_type(tl.bfloat16))
    return reads


@triton.jit
def in_blocks(x, SPLIT: tl.constexpr):
    """[K, N] as [K / 32, 32, N] where SPLIT: with 64 rows or more Hopper's wider products would come in (`plan.blocks_for`)."""
    return tl.reshape(x, (x.shape[0] // 32, 32, x.shape[1])) if SPLIT else x


@triton.jit
def out_of_blocks(x, SPLIT: tl.constexpr):
    return tl.reshape(x, (x.shape[0] * 32, x.shape[2])) if SPLIT else x


@triton.jit
def grow_state(z, x, y, SPLIT: tl.constexpr, PRECISION: tl.constexpr):
    """z + x y of a state z [K, V], by blocks where SPLIT, and x [K, C], y [C, V]."""
    if SPLIT:
        y = tl.broadcast_to(y[None, :, :], (z.shape[0], y.shape[0], y.shape[1]))
    return add_dot(z, in_blocks(x, SPLIT), y, PRECISION)
