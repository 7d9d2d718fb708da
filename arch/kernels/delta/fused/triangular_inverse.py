"""The inverse of a unit lower triangular matrix by pairs of blocks, in registers or in memory."""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.delta.fused.tiles import dot


@triton.jit
def _on_level(level, C: tl.constexpr):
    """Which pairs [t, s] a border between blocks of 2^level tokens parts, and no wider border."""
    i = tl.arange(0, C)
    t, s = i[:, None], i[None, :]
    return ((t >> (level + 1)) == (s >> (level + 1))) & ((t >> level) > (s >> level))


@triton.jit
def invert_unit_lower(a, C: tl.constexpr, PRECISION: tl.constexpr):
    """(I + A)^-1 of strictly lower triangular A [C, C]: blocks of 1, 2, 4 ... put together by pairs.

    Two inverted blocks x, y over the block a between them make [[x, 0], [-y a x, y]]. Powers of A, which grow like
    binomial coefficients where keys repeat, are never formed.
    """
    i = tl.arange(0, C)
    inverse = tl.where(i[:, None] == i[None, :], 1.0, 0.0) - tl.where(_on_level(0, C), a, 0.0)
    for level in tl.static_range(1, 4 if C == 16 else 5):
        between = tl.where(_on_level(level, C), a, 0.0)
        inverse -= dot(inverse, dot(between, inverse, PRECISION), PRECISION)
    return inverse


@triton.jit
def invert_in_memory(at, C: tl.constexpr, PRECISION: tl.constexpr):
    """(I + A)^-1 in the place of strictly lower triangular A [C, C], 32 or 64 tokens: by the same pairs of blocks, but of these
    alone are products made, of 16 tokens side by side and then of 32. All threads see it after that."""
    tl.debug_barrier()
    n, i = tl.arange(0, C // 16), tl.arange(0, 16)
    place = n[:, None, None] * (16 * C + 16) + i[None, :, None] * C + i[None, None, :]
    a = tl.load(at + place)
    inverse = tl.where(i[:, None] == i[None, :], 1.0, 0.0)[None, :, :] - tl.where(_on_level(0, 16)[None, :, :], a, 0.0)
    for level in tl.static_range(1, 4):
        between = tl.where(_on_level(level, 16)[None, :, :], a, 0.0)
        inverse -= dot(inverse, dot(between, inverse, PRECISION), PRECISION)
    tl.store(at + place, inverse)
    tl.debug_barrier()
    n = tl.arange(0, C // 32)
    place = n[:, None, None] * (32 * C + 32) + i[None, :, None] * C + i[None, None, :]
    below = tl.load(at + 16 * C + place)
    ahead, behind = tl.load(at + place), tl.load(at + 16 * C + 16 + place)
    tl.store(at + 16 * C + place, -dot(behind, dot(below, ahead, PRECISION), PRECISION))
    tl.debug_barrier()
    if C == 64:
        i = tl.arange(0, 32)
        square = i[:, None] * C + i[None, :]
        below = tl.load(at + 32 * C + square)
        ahead, behind = tl.load(at + square), tl.load(at + 32 * C + 32 + square)
        tl.store(at + 32 * C + square, -dot(behind, dot(below, ahead, PRECISION), PRECISION))
        tl.debug_barrier()
