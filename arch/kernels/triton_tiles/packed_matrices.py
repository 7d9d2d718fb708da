"""Small matrices as blocks of the diagonal of one tile.

Entries outside of the blocks are made 0 wherever something could get there, so that matrices do not affect each other, even
where one is not finite. A tile may be one matrix; then none of this has a cost.

W rows and columns of a tile, OWN of a block
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

NARROWEST = 4  # columns of a block, however few a matrix has


def block_of(columns: int) -> int:
    """Rows and columns of the block for matrices of so many columns at most."""
    return max(NARROWEST, triton.next_power_of_2(columns))


@triton.jit
def in_own_block(OWN: tl.constexpr, W: tl.constexpr):
    """Which entries of a tile are in blocks."""
    return (tl.arange(0, W) // OWN)[:, None] == (tl.arange(0, W) // OWN)[None, :]


@triton.jit
def apart(x, OWN: tl.constexpr, W: tl.constexpr):
    """The tile with nothing beside its blocks."""
    if OWN < W:
        x = tl.where(in_own_block(OWN, W), x, 0.0)
    return x


@triton.jit
def block_sums(x, OWN: tl.constexpr, W: tl.constexpr):
    """The sum of a tile of one block; of several at every column that of its own block, [1, W]."""
    return tl.sum(tl.where(in_own_block(OWN, W), tl.sum(x, 1)[:, None], 0.0), 0)[None, :] if OWN < W else tl.sum(x)
