"""Fading from token to token inside a chunk, by head or by key channel.

Every exponent sums log decays of its own: a difference of long sums would lose a small decay behind a large one. By channel the
tokens of a pair fade to and from one place between them, so that scores stay products of matrices.

C tokens, K key width
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.delta.fused.tiles import dot

LEAST = tl.constexpr(-9.5)  # log decay of a token in products from the middle of a block of 16


@triton.jit
def cumulative_sums(g, EXACT: tl.constexpr):
    """Sums of g [C] up to each token, in two parts: without the second a small decay is lost behind a large one."""
    if EXACT:
        until = tl.cumsum(g.to(tl.float64), 0)
        high = until.to(tl.float32)
        low = (until - high).to(tl.float32)
    else:
        high = tl.cumsum(g, 0)
        low = tl.zeros_like(g)
    return high, low


@triton.jit
def pair_fades(high, low, before, C: tl.constexpr):
    """exp of log decays from token s to token t, or with before = g to ahead of t's own: [t, s], 1 unless s < t."""
    i = tl.arange(0, C)
    exponent = (high[:, None] - high[None, :]) + (low[:, None] - low[None, :]) - before[:, None]
    return tl.exp(tl.where(i[:, None] > i[None, :], tl.minimum(exponent, 0.0), 0.0))


@triton.jit
def _to_border(g_CK, level, C: tl.constexpr, PRECISION: tl.constexpr):
    """Log decay [C, K] between each token and the border amid its pair of blocks of 2^level tokens, <= 0.

    A sum of log decays, never a difference of sums, so a small decay behind a large one is kept.
    """
    i = tl.arange(0, C)
    t, s = i[:, None], i[None, :]
    behind = ((t >> level) & 1) == 1
    between = ((t >> level) == (s >> level)) & tl.where(behind, s <= t, s > t)
    return tl.minimum(dot(tl.where(between, 1.0, 0.0), g_CK, PRECISION), 0.0)


@triton.jit
def _from_middle(g_CK, C: tl.constexpr):
    """Log decay [C, K] from the middle of each token's block of 16 to the token: negative in its second half, positive in
    its first. Decays count as at least e^-9.5 here, so that what grows stays within fp32."""
    i = tl.arange(0, C)[:, None]
    g_CK = tl.maximum(g_CK, LEAST)
    middle = tl.sum(tl.where(i < 8, g_CK, 0.0), 0)[None, :]
    for block in tl.static_range(1, C // 16):
        middle = tl.where(i < 16 * block, middle, tl.sum(tl.where(i < 16 * block + 8, g_CK, 0.0), 0)[None, :])
    return tl.cumsum(g_CK, 0) - middle


@triton.jit
def _from_border(until_CK, level, C: tl.constexpr):
    """Log decay [C, K] between each token and the border amid its pair of blocks of 2^level tokens, 16 or more, <= 0."""
    i = tl.arange(0, C)[:, None]
    border = 1 << level
    at = tl.sum(tl.where(i == border - 1, until_CK, 0.0), 0)[None, :]
    for pair in tl.static_range(1, C // 32):
        other = tl.sum(tl.where(i == (2 * pair + 1) * border - 1, until_CK, 0.0), 0)[None, :]
        at = tl.where(i < 2 * pair * border, at, other)
    return tl.minimum(tl.where(((i >> level) & 1) == 0, at - until_CK, until_CK - at), 0.0)


@triton.jit
def sums(weights, g_CK):
    """Weights [C, C] of 0, 1 and -1 times g [C, K]: three products of bf16, in which g keeps its 24 bits."""
    weights = weights.to(tl.bfloat16)
    high = g_CK.to(tl.bfloat16)
    rest = g_CK - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
    return tl.dot(weights, high, tl.dot(weights, middle, tl.dot(weights, low)))


@triton.jit
def sums_until(g_CK, C: tl.constexpr, SUMS: tl.constexpr):
    """Log decays from the chunk's start to each token; SUMS: by products."""
    i = tl.arange(0, C)
    if SUMS:
        until = sums(tl.where(i[:, None] >= i[None, :], 1.0, 0.0), g_CK)
    else:
        until = tl.cumsum(g_CK, 0)
    return until


@triton.jit
def sums_behind(g_CK, C: tl.constexpr, SUMS: tl.constexpr):
    """Log decays behind each token, up to the chunk's end, <= 0; SUMS: by products."""
    i = tl.arange(0, C)
    if SUMS:
        behind = sums(tl.where(i[:, None] < i[None, :], 1.0, 0.0), g_CK)
    else:
        behind = tl.cumsum(g_CK, 0, reverse=True) - g_CK
    return tl.minimum(behind, 0.0)


@triton.jit
def _sums_from_middle(g_CK, C: tl.constexpr):
    """As `_from_middle`, by products."""
    i = tl.arange(0, C)
    t, s = i[:, None], i[None, :]
    between = tl.where((t & 8) == 0, tl.where((s & 8) == 0, tl.where(s > t, -1.0, 0.0), 0.0), 0.0)
    between += tl.where((t & 8) != 0, tl.where((s & 8) != 0, tl.where(s <= t, 1.0, 0.0), 0.0), 0.0)
    return sums(tl.where((t >> 4) == (s >> 4), between, 0.0), tl.maximum(g_CK, LEAST))


@triton.jit
def _sums_from_border(g_CK, level, C: tl.constexpr):
    """As `_from_border`, by products."""
    i = tl.arange(0, C)
    t, s = i[:, None], i[None, :]
    between = ((t >> level) == (s >> level)) & tl.where(((t >> level) & 1) != 0, s <= t, s > t)
    return tl.minimum(sums(tl.where(between, 1.0, 0.0), g_CK), 0.0)


@triton.jit
def pairs_of_level(level, C: tl.constexpr, EXACT: tl.constexpr, TURNED: tl.constexpr):
    """Which pairs [t, s], s < t, level after level, fade to and from one place; TURNED: [s, t].

    EXACT: those that a border between blocks of 2^level tokens parts, and no wider one. Otherwise those in one block of 16,
    then those that a border between blocks of 16 parts, and of 32, and no wider one.
    """
    i = tl.arange(0, C)
    t, s = (i[None, :], i[:, None]) if TURNED else (i[:, None], i[None, :])
    if EXACT:
        pairs = ((t >> (level + 1)) == (s >> (level + 1))) & ((t >> level) > (s >> level))
    else:
        inner = tl.where(level == 0, 0, level + 3)
        pairs = ((t >> (level + 4)) == (s >> (level + 4))) & ((t >> inner) > (s >> inner))
    return pairs


@triton.jit
def level_fades(
    g_CK, until_CK, level, C: tl.constexpr, EXACT: tl.constexpr, PAIR: tl.constexpr, SUMS: tl.constexpr = False
):  # fmt: skip
    """Fades [C, K] of such pairs' q, r and columns, by log decays of tokens and their sums from the chunk's start."""
    if EXACT:
        to_row = _to_border(g_CK, level, C, "ieee")
        to_read = tl.minimum(to_row - g_CK, 0.0)
        to_column = to_row
    else:
        if SUMS:
            to_row = _sums_from_middle(g_CK, C)
        else:
            to_row = _from_middle(g_CK, C)
        to_read = to_row - tl.maximum(g_CK, LEAST)
        to_column = -to_row
        if C > 16:
            near = level == 0
            if SUMS:
                to_border = _sums_from_border(g_CK, level + 3, C)
            else:
                to_border = _from_border(until_CK, level + 3, C)
            to_row = tl.where(near, to_row, to_border)
            to_read = tl.where(near, to_read, tl.minimum(to_border - g_CK, 0.0))
            to_column = tl.where(near, to_column, to_border)
    row = tl.exp(to_row)
    if PAIR:
        read = tl.exp(to_read)
    else:
        read = row
    return row, read, tl.exp(to_column)


@triton.jit
def fades_to_end(g):
    """exp of the log decays g [C] behind each token, up to the chunk's end."""
    return tl.exp(tl.minimum(tl.cumsum(g, 0, reverse=True) - g, 0.0))
