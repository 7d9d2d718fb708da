"""Scores of a chunk's pairs of tokens, and their derivatives, where log decays go by key channel.

Such a score is no matrix product. It becomes one where the two tokens lie on either side of a border: fade the row from the
border to its token, the column from its token to the border. A binary tree has such a border for all pairs but those inside one
block of 16 tokens, which are summed one by one; for inputs of 16 bits such a block is one product too, from its middle.

T time, C tokens a chunk, K key width, BK its power of two
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.gated_linear.fused.decay_factors import LOG2_E, NEAR, fades, fades_by_middle
from recallmap.arch.kernels.gated_linear.fused.tiles import dot, load, rounded, wide_dot


@triton.jit
def _on_diagonal(C: tl.constexpr):
    """Which block of 16 is a token's own: [C, C / 16, 1]."""
    own = (tl.arange(0, C) // NEAR)[:, None] == tl.arange(0, C // NEAR)[None, :]
    return own[:, :, None]


@triton.jit
def _blocks_of(x_CC, C: tl.constexpr):
    """The blocks of 16 on the diagonal: [C, 16]."""
    return tl.sum(tl.where(_on_diagonal(C), tl.reshape(x_CC, (C, C // NEAR, NEAR)), 0.0), 1)


@triton.jit
def _as_blocks(x_CN, C: tl.constexpr):
    """The inverse: [C, C], zero beside the blocks."""
    return tl.reshape(tl.where(_on_diagonal(C), x_CN[:, None, :], 0.0), (C, C))


@triton.jit
def _near_scores(q_CK, k, g, rows, columns, T, K, k_stride, g_stride, C: tl.constexpr, BK: tl.constexpr):
    """Faded scores [t, s] of the pairs s < t of a block: [C, 16]."""
    place, place_s = rows % NEAR, tl.arange(0, NEAR)
    fade = tl.zeros([C, BK], tl.float32)
    scores = tl.zeros([C, NEAR], tl.float32)
    for i in range(NEAR - 1):
        s = NEAR - 2 - i
        at = rows - place + s
        height = tl.where(place > s, T, 0)
        fade += load(g, at + 1, columns, height, K, g_stride).to(tl.float32)
        k_s = load(k, at, columns, height, K, k_stride).to(tl.float32)
        score = tl.sum(q_CK * k_s * tl.exp(fade), 1)
        scores += tl.where(place_s[None, :] == s, score[:, None], 0.0)
    return scores


@triton.jit
def _near_row_gradients(dA_CN, k, g, rows, columns, T, K, k_stride, g_stride, C: tl.constexpr, BK: tl.constexpr):
    """The contribution of the pairs s < t of a block to the derivative by q_t."""
    place, place_s = rows % NEAR, tl.arange(0, NEAR)
    fade = tl.zeros([C, BK], tl.float32)
    dq_CK = tl.zeros([C, BK], tl.float32)
    for i in range(NEAR - 1):
        s = NEAR - 2 - i
        at = rows - place + s
        height = tl.where(place > s, T, 0)
        fade += load(g, at + 1, columns, height, K, g_stride).to(tl.float32)
        k_s = load(k, at, columns, height, K, k_stride).to(tl.float32)
        weight = tl.sum(tl.where(place_s[None, :] == s, dA_CN, 0.0), 1)
        dq_CK += weight[:, None] * k_s * tl.exp(fade)
    return dq_CK


@triton.jit
def _near_column_gradients(
    k_CK, dAT_CN, q, g, rows, columns, T, K, q_stride, g_stride, C: tl.constexpr, BK: tl.constexpr
):
    """The contribution of the pairs t > s of a block to the derivative by k_s, and their faded scores [s, t]: [C, 16]."""
    place, place_t = rows % NEAR, tl.arange(0, NEAR)
    fade = tl.zeros([C, BK], tl.float32)
    dk_CK = tl.zeros([C, BK], tl.float32)
    scores = tl.zeros([C, NEAR], tl.float32)
    for t in range(1, NEAR):
        at = rows - place + t
        height = tl.where(place < t, T, 0)
        fade += load(g, at, columns, height, K, g_stride).to(tl.float32)
        q_t = load(q, at, columns, height, K, q_stride).to(tl.float32) * tl.exp(fade)
        score = tl.sum(k_CK * q_t, 1)
        scores += tl.where(place_t[None, :] == t, score[:, None], 0.0)
        weight = tl.sum(tl.where(place_t[None, :] == t, dAT_CN, 0.0), 1)
        dk_CK += weight[:, None] * q_t
    return dk_CK, scores


@triton.jit
def channel_scores(
    q_CK, k_CK, g_CK, k, g, rows, columns, T, K, k_stride, g_stride,
    LEVELS: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Faded scores [t, s] of all pairs s <= t, of log decays by channel."""
    place = tl.arange(0, C)
    if tl.float32 == DOT:
        near = _near_scores(q_CK, k, g, rows, columns, T, K, k_stride, g_stride, C, BK)
        own = tl.sum(q_CK * k_CK, 1)
        near += tl.where((place % NEAR)[:, None] == tl.arange(0, NEAR)[None, :], own[:, None], 0.0)
        scores = _as_blocks(near, C)
    else:
        near = (place[:, None] // NEAR == place[None, :] // NEAR) & (place[:, None] >= place[None, :])
        to_token, to_middle = fades_by_middle(g_CK, C, DOT)
        scores = tl.where(near, wide_dot(q_CK * to_token, tl.trans(k_CK * to_middle), DOT), 0.0)
    for level in tl.static_range(LEVELS):
        block = place // (NEAR * 2**level)
        siblings = (block[:, None] == block[None, :] + 1) & (block[:, None] % 2 == 1)
        to_token, to_end = fades(g, g_CK, rows, columns, T, K, g_stride, NEAR * 2**level, C, BK, DOT)
        scores += tl.where(siblings, dot(q_CK * to_token, tl.trans(k_CK * to_end), DOT), 0.0)
    return scores


@triton.jit
def _across(q_CK, k_CK, to_token, to_border, dA_CC, dAT_CC, lower, upper, DOT: tl.constexpr):
    """The derivatives of pairs over a border by q, k and the sums of log decays, and the faded scores [s, t]."""
    rights, lefts = rounded(q_CK * to_token, DOT), rounded(k_CK * to_border, DOT)
    scores = tl.where(upper, wide_dot(lefts, tl.trans(rights), DOT), 0.0)
    by_rights = wide_dot(tl.where(lower, dA_CC, 0.0), lefts, DOT)
    by_lefts = wide_dot(tl.where(upper, dAT_CC, 0.0), rights, DOT)
    # From the multiplied values, so that each pair adds here exactly what it takes away there, to the last bit.
    dG_CK = rights.to(tl.float32) * by_rights - lefts.to(tl.float32) * by_lefts
    return to_token * by_rights, to_border * by_lefts, dG_CK, scores


@triton.jit
def channel_gradients(
    q_CK, k_CK, dA_CC, dAT_CC, q, k, g, rows, columns, T, K, q_stride, k_stride, g_stride,
    LEVELS: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Derivatives by q, k and the sums of log decays from those by the scores; the faded scores [s, t]; the log decays; and the
    fades from the chunk's start to its tokens, and from them to its end."""
    place = tl.arange(0, C)
    if tl.float32 == DOT:
        diagonal = (place % NEAR)[:, None] == tl.arange(0, NEAR)[None, :]
        dA_CN, dAT_CN = _blocks_of(dA_CC, C), _blocks_of(dAT_CC, C)
        dq_CK = _near_row_gradients(dA_CN, k, g, rows, columns, T, K, k_stride, g_stride, C, BK)
        dk_CK, near = _near_column_gradients(k_CK, dAT_CN, q, g, rows, columns, T, K, q_stride, g_stride, C, BK)
        near += tl.where(diagonal, tl.sum(q_CK * k_CK, 1)[:, None], 0.0)
        scores = _as_blocks(near, C)
        own = tl.sum(tl.where(diagonal, dA_CN, 0.0), 1)[:, None]
        dG_CK = q_CK * dq_CK - k_CK * dk_CK
        dq_CK += own * k_CK
        dk_CK += own * q_CK
        g_CK = load(g, rows, columns, T, K, g_stride).to(tl.float32) * LOG2_E
    else:
        g_CK = load(g, rows, columns, T, K, g_stride).to(tl.float32) * LOG2_E
        together = place[:, None] // NEAR == place[None, :] // NEAR
        lower, upper = together & (place[:, None] >= place[None, :]), together & (place[:, None] <= place[None, :])
        to_token, to_middle = fades_by_middle(g_CK, C, DOT)
        dq_CK, dk_CK, dG_CK, scores = _across(q_CK, k_CK, to_token, to_middle, dA_CC, dAT_CC, lower, upper, DOT)
    for level in tl.static_range(LEVELS):
        block = place // (NEAR * 2**level)
        lower = (block[:, None] == block[None, :] + 1) & (block[:, None] % 2 == 1)
        upper = (block[:, None] + 1 == block[None, :]) & (block[None, :] % 2 == 1)
        to_token, to_end = fades(g, g_CK, rows, columns, T, K, g_stride, NEAR * 2**level, C, BK, DOT)
        dq, dk, dG, far = _across(q_CK, k_CK, to_token, to_end, dA_CC, dAT_CC, lower, upper, DOT)
        dq_CK += dq
        dk_CK += dk
        dG_CK += dG
        scores += far
    to_token, to_end = fades(g, g_CK, rows, columns, T, K, g_stride, C, C, BK, DOT)
    return dq_CK, dk_CK, dG_CK, scores, g_CK, to_token, to_end
