"""The inverse of a unit lower triangular matrix in registers, by pairs of blocks."""

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
