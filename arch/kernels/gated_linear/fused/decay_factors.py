"""Factors of a chunk's tokens: signs, write strengths, and how much is left of one token at another.

Log decays are binary here. In fp32 sums keep what they lose to rounding: a difference of long sums would lose a small decay
behind a large one.

T time, C tokens a chunk, K key width, BK its power of two
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import math

import triton
import triton.language as tl

from recallmap.arch.kernels.gated_linear.fused.tiles import load

LOG2_E = tl.constexpr(math.log2(math.e))
LEAST = tl.constexpr(-13.7)  # binary log of the least decay in a product from the middle of a block
FAINT = tl.constexpr(-200.0)  # binary log of a decay that leaves nothing in fp32; sums of less would lose small decays
NEAR = tl.constexpr(16)  # tokens of a block whose pairs are summed one by one, and the least that tl.dot takes


@triton.jit
def _turns(sign, rows, T, stride):
    """The product of a chunk's signs up to each token, and of all."""
    flips = (tl.load(sign + rows * stride, mask=rows < T, other=1.0) < 0).to(tl.int32)
    turned = 1.0 - 2.0 * (tl.cumsum(flips, 0) % 2).to(tl.float32)
    return turned, 1.0 - 2.0 * (tl.sum(flips, 0) % 2).to(tl.float32)


@triton.jit
def token_factors(beta, sign, rows, scale, T, beta_t, sign_t, C: tl.constexpr):
    """r_t, w_s, the signs c_s alone, and their product over the chunk."""
    turned = tl.full([C], 1.0, tl.float32)
    over = 1.0
    if sign is not None:
        turned, over = _turns(sign, rows, T, sign_t)
    writes = turned
    if beta is not None:
        writes = turned * tl.load(beta + rows * beta_t, mask=rows < T, other=0.0).to(tl.float32)
    return turned * scale, writes, turned, over


@triton.jit
def head_sums(g, rows, T, stride, EXACT: tl.constexpr):
    """Binary log decays up to each token, what these sums lose to rounding, those behind each token, and all."""
    x = tl.load(g + rows * stride, mask=rows < T, other=0.0)
    if EXACT:
        x = x.to(tl.float64) * LOG2_E
        sums = tl.cumsum(x, 0)
        high, total = sums.to(tl.float32), tl.sum(x, 0)
        low, behind = (sums - high.to(tl.float64)).to(tl.float32), (total - sums).to(tl.float32)
    else:
        x = x.to(tl.float32) * LOG2_E
        high, total = tl.cumsum(x, 0), tl.sum(x, 0)
        low, behind = high, tl.minimum(total - high, 0.0)
    return high, low, behind, total.to(tl.float32)


@triton.jit
def pair_fades(to_high, to_low, from_high, from_low, apply, EXACT: tl.constexpr):
    """Fades from one token to another where `apply`, 0 elsewhere."""
    exponent = to_high - from_high
    if EXACT:  # a difference of long sums loses a small decay behind large ones
        exponent += to_low - from_low
    return tl.exp2(tl.where(apply, exponent, float("-inf")))


@triton.jit
def _sums_in_blocks(x_CK, BLOCK: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, REVERSE: tl.constexpr):
    """Sums up to each token, or from it on, inside blocks of tokens."""
    if BLOCK == C:
        sums = tl.cumsum(x_CK, 0, reverse=REVERSE)
    else:
        blocks = tl.reshape(x_CK, (C // BLOCK, BLOCK, BK))
        sums = tl.reshape(tl.cumsum(blocks, 1, reverse=REVERSE), (C, BK))
    return sums


@triton.jit
def _picked_sums(picked, g_CK, DOT: tl.constexpr):
    """Sums over tokens s of log decays where `picked` [t, s] is 1, less those where it is -1, to 16 bits or more."""
    g_CK = tl.maximum(g_CK, -1000.0)  # within fp16; no fade is left of either
    high = g_CK.to(DOT)
    low = (g_CK - high.to(tl.float32)).to(DOT)
    return tl.dot(picked.to(DOT), low, tl.dot(picked.to(DOT), high))


@triton.jit
def fades(
    g, g_CK, rows, columns, T, K, g_stride, BLOCK: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, DOT: tl.constexpr
):
    """Fades from the start of each token's block to the token, and from the token to the end of its block."""
    place = tl.arange(0, C)
    if tl.float32 == DOT:  # a difference of long sums loses a small decay behind large ones
        sums = _sums_in_blocks(g_CK, BLOCK, C, BK, False)
        next_CK = load(g, rows + 1, columns, T, K, g_stride).to(tl.float32) * LOG2_E
        inside = place % BLOCK != BLOCK - 1
        behind = _sums_in_blocks(tl.where(inside[:, None], next_CK, 0.0), BLOCK, C, BK, True)
    else:
        together = place[:, None] // BLOCK == place[None, :] // BLOCK
        sums = _picked_sums(together & (place[:, None] >= place[None, :]), g_CK, DOT)
        behind = _picked_sums(together & (place[:, None] < place[None, :]), g_CK, DOT)
    return tl.exp2(sums), tl.exp2(behind)


@triton.jit
def fades_by_middle(g_CK, C: tl.constexpr, DOT: tl.constexpr):
    """Fades from the middle of each token's block of 16 to the token, and from the token to the middle; one of them grows."""
    place = tl.arange(0, C)
    together = place[:, None] // NEAR == place[None, :] // NEAR
    early = (place % NEAR < NEAR // 2)[None, :]
    after = together & (early == 0) & (place[:, None] >= place[None, :])
    before = together & early & (place[:, None] < place[None, :])
    exponent = _picked_sums(after.to(tl.float32) - before.to(tl.float32), tl.maximum(g_CK, LEAST), DOT)
    return tl.exp2(exponent), tl.exp2(-exponent)


@triton.jit
def sums_of(g_CK, C: tl.constexpr, BK: tl.constexpr):
    """Log decays of blocks of 16 tokens [C / 16, 16, BK] summed up to each token, from it to the block's end, and over the
    block [C / 16, 1, BK]. By sums and not by products, whose operands would lie in several warps' registers at once."""
    bounded = tl.maximum(tl.reshape(g_CK, (C // NEAR, NEAR, BK)), FAINT)
    sums, all_ = tl.cumsum(bounded, 1), tl.sum(bounded, 1, keep_dims=True)
    return sums, tl.minimum(all_ - sums, 0.0), all_


@triton.jit
def from_middle_of(g_CK, C: tl.constexpr, BK: tl.constexpr):
    """What is left of the middle of its block of 16 at each token, bounded: [C, BK]."""
    bounded = tl.maximum(tl.reshape(g_CK, (C // NEAR, NEAR, BK)), LEAST)
    early = (tl.arange(0, NEAR) < NEAR // 2)[None, :, None]
    exponent = tl.cumsum(bounded, 1) - tl.sum(tl.where(early, bounded, 0.0), 1, keep_dims=True)
    return tl.reshape(tl.exp2(exponent), (C, BK))


@triton.jit
def doubled(to_token, to_end, over, BLOCKS: tl.constexpr, C: tl.constexpr):
    """Fades from the start of pairs of strings of BLOCKS blocks, and to their end, from those of the strings; `over` are the
    sums over blocks [C / 16, 1, BK]."""
    block = tl.arange(0, C // NEAR)[:, None, None]
    for pair in tl.static_range(C // (2 * BLOCKS * NEAR)):
        first, second = block // BLOCKS == 2 * pair, block // BLOCKS == 2 * pair + 1
        over_first = tl.sum(tl.where(first, over, 0.0), 0, keep_dims=True)
        over_second = tl.sum(tl.where(second, over, 0.0), 0, keep_dims=True)
        to_token *= tl.where(second, tl.exp2(over_first), 1.0)
        to_end *= tl.where(first, tl.exp2(over_second), 1.0)
    return to_token, to_end
