"""What the passes over tiles of scores share: rows of a matrix, which keys are seen, and which blocks of them.

T time, S keys, BT queries and BS keys of a tile
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.attention.fused.plan import MOST_QUERIES

LARGEST_TILE = tl.constexpr(MOST_QUERIES)


@triton.jit
def load_rows(at, row, stride, rows, WIDTH: tl.constexpr, PADDED: tl.constexpr, INSIDE: tl.constexpr):
    """[rows, PADDED], zeros outside; INSIDE: all of these rows are there."""
    column = tl.arange(0, PADDED)
    places = at + row[:, None] * stride + column[None, :]
    if INSIDE and PADDED == WIDTH:
        x = tl.load(places)
    elif INSIDE:
        x = tl.load(places, mask=(column < WIDTH)[None, :], other=0.0)
    else:
        inside = (row < rows)[:, None]
        if PADDED != WIDTH:
            inside = inside & (column < WIDTH)[None, :]
        x = tl.load(places, mask=inside, other=0.0)
    return x


@triton.jit
def store_rows(at, row, stride, rows, x, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    column = tl.arange(0, PADDED)
    inside = (row < rows)[:, None]
    if PADDED != WIDTH:
        inside = inside & (column < WIDTH)[None, :]
    tl.store(at + row[:, None] * stride + column[None, :], x.to(at.dtype.element_ty), mask=inside)


@triton.jit
def rows_of(T):
    """Numbers that are kept of a sequence's tokens, one each: whole tiles of any pass, so that loads need no masks."""
    return tl.cdiv(T, LARGEST_TILE) * LARGEST_TILE


@triton.jit
def store_tokens(at, t, T, block, x, behind, BT: tl.constexpr):
    """A number a token of a block of queries; `behind` where there is no token, the last block also up to the last row."""
    tl.store(at + t, tl.where(t < T, x, behind))
    if block == tl.cdiv(T, BT) - 1:
        row = (block + 1) * BT + tl.arange(0, LARGEST_TILE)
        tl.store(at + row, tl.full([LARGEST_TILE], behind, tl.float32), mask=row < rows_of(T))


@triton.jit
def hide(scores, query, key, window, prefix, BANDED: tl.constexpr):
    """-inf where the query does not see the key."""
    seen = key <= query
    if BANDED:
        seen = seen & ((key > query - window) | (key < prefix))
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def span(first, S, window, prefix, BT: tl.constexpr, BS: tl.constexpr, BANDED: tl.constexpr):
    """Blocks of keys that the queries first ... first + BT - 1 see: those below `ahead`, and from `low` to below `high`."""
    high = tl.cdiv(tl.minimum(first + BT, S), BS)
    low = 0
    ahead = 0
    if BANDED:
        low = tl.maximum(first - window + 1, 0) // BS
        ahead = tl.minimum(tl.cdiv(prefix, BS), low)
    return ahead, low, high
