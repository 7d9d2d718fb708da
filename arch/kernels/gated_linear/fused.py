"""Gated linear attention in one launch forward and one backward, or two and two over long or wide sequences.

Inside a chunk with state S_0 ahead of it, G_t the sum of log decays up to token t, r_t = scale * (signs up to t) and
w_s = beta_s * (signs up to s):
o_t = r_t [(q_t e^{G_t}) S_0 + sum_{s <= t} (q_t . e^{G_t - G_s} k_s) w_s v_s]
S_C = c [e^{G_C} S_0 + sum_s (e^{G_C - G_s} k_s)^T w_s v_s],    c the product of the chunk's signs

A short sequence of narrow heads is walked by one program, chunk after chunk, with the state in registers. Otherwise one kernel
carries the state over the chunks, and another then does all chunks at once. Forward leaves the states ahead of the chunks to
backward, which needs the derivatives by the states behind them and recomputes all else.

A log decay by key channel makes a score of two tokens no matrix product. It becomes one where the two lie on either side of a
border: fade the row from the border to its token, the column from its token to the border. A binary tree has such a border
for all pairs but those inside one block of 16 tokens, which are summed one by one. So no exponent is ever positive. For
inputs of 16 bits such a block too is one product, from its middle: decays in it count as at least e^-9.5, which is less than
16 bits round to, so that what grows stays within fp32.
Derivatives of log decays are sums over the pairs of tokens that they stand between: the pair (t, t) stays out, or cancels.

B batch, T time, H heads, K key width, V value width, N chunks, C tokens
a chunk; BK, BV the widths, or blocks of them, in powers of two
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from arch.kernels.op_interface.custom_op import dense, opaque, padded

WIDEST = 256
RUN_TIME = ["T", "H", "beta_b", "beta_t", "beta_h", "sign_b", "sign_t", "sign_h"]
LOG2_E = tl.constexpr(math.log2(math.e))
LEAST = tl.constexpr(-13.7)  # binary log of the least decay in a product from the middle of a block
NEAR = tl.constexpr(16)  # tokens of a block whose pairs are summed one by one, and the least that tl.dot takes


@triton.jit
def _inside(rows, columns, height, width: tl.constexpr):  # type: ignore[no-untyped-def]
    if columns.shape[0] == width:
        inside = (rows < height)[:, None]
    else:
        inside = (rows < height)[:, None] & (columns < width)[None, :]
    return inside


@triton.jit
def _load(x, rows, columns, height, width: tl.constexpr, stride):  # type: ignore[no-untyped-def]
    """Rows of a matrix, zero beyond its height and width."""
    inside = _inside(rows, columns, height, width)
    return tl.load(x + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _store(x, value, rows, columns, height, width: tl.constexpr, stride):  # type: ignore[no-untyped-def]
    inside = _inside(rows, columns, height, width)
    tl.store(x + rows[:, None] * stride + columns[None, :], value.to(x.dtype.element_ty), mask=inside)


@triton.jit
def _dot(a, b, DOT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Exact products of fp32, but for those so large that, unrolled for want of tensor cores, they would fill all registers."""
    LARGE: tl.constexpr = tl.float32 == DOT and a.shape[0] * a.shape[1] * b.shape[1] > 32768
    return tl.dot(a.to(DOT), b.to(DOT), input_precision="tf32x3" if LARGE else "ieee")


@triton.jit
def _rounded(x, DOT: tl.constexpr):  # type: ignore[no-untyped-def]
    """As an operand of a product whose range fp16 has not."""
    return x.to(tl.bfloat16) if tl.bfloat16 == DOT else x


@triton.jit
def _wide_dot(a, b, DOT: tl.constexpr):  # type: ignore[no-untyped-def]
    """A product of numbers from 1e-33 to 1e33."""
    return _dot(a, b, DOT) if tl.float16 != DOT else tl.dot(a, b, input_precision="tf32")


@triton.jit
def _turns(sign, rows, T, stride):  # type: ignore[no-untyped-def]
    """The product of a chunk's signs up to each token, and of all."""
    flips = (tl.load(sign + rows * stride, mask=rows < T, other=1.0) < 0).to(tl.int32)
    turned = 1.0 - 2.0 * (tl.cumsum(flips, 0) % 2).to(tl.float32)
    return turned, 1.0 - 2.0 * (tl.sum(flips, 0) % 2).to(tl.float32)


@triton.jit
def _factors(beta, sign, rows, scale, T, beta_t, sign_t, C: tl.constexpr):  # type: ignore[no-untyped-def]
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
def _head_sums(g, rows, T, stride, EXACT: tl.constexpr):  # type: ignore[no-untyped-def]
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
def _pairs(to_high, to_low, from_high, from_low, apply, EXACT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Fades from one token to another where `apply`, 0 elsewhere."""
    exponent = to_high - from_high
    if EXACT:  # a difference of long sums loses a small decay behind large ones
        exponent += to_low - from_low
    return tl.exp2(tl.where(apply, exponent, float("-inf")))


@triton.jit
def _sums_in_blocks(x_CK, BLOCK: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, REVERSE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums up to each token, or from it on, inside blocks of tokens."""
    if BLOCK == C:
        sums = tl.cumsum(x_CK, 0, reverse=REVERSE)
    else:
        blocks = tl.reshape(x_CK, (C // BLOCK, BLOCK, BK))
        sums = tl.reshape(tl.cumsum(blocks, 1, reverse=REVERSE), (C, BK))
    return sums


@triton.jit
def _picked_sums(picked, g_CK, DOT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums over tokens s of log decays where `picked` [t, s] is 1, less those where it is -1, to 16 bits or more."""
    g_CK = tl.maximum(g_CK, -1000.0)  # within fp16; no fade is left of either
    high = g_CK.to(DOT)
    low = (g_CK - high.to(tl.float32)).to(DOT)
    return tl.dot(picked.to(DOT), low, tl.dot(picked.to(DOT), high))


@triton.jit
def _fades(  # type: ignore[no-untyped-def]
    g, g_CK, rows, columns, T, K, g_stride, BLOCK: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, DOT: tl.constexpr
):
    """Fades from the start of each token's block to the token, and from the token to the end of its block."""
    place = tl.arange(0, C)
    if tl.float32 == DOT:  # a difference of long sums loses a small decay behind large ones
        sums = _sums_in_blocks(g_CK, BLOCK, C, BK, False)
        next_CK = _load(g, rows + 1, columns, T, K, g_stride).to(tl.float32) * LOG2_E
        inside = place % BLOCK != BLOCK - 1
        behind = _sums_in_blocks(tl.where(inside[:, None], next_CK, 0.0), BLOCK, C, BK, True)
    else:
        together = place[:, None] // BLOCK == place[None, :] // BLOCK
        sums = _picked_sums(together & (place[:, None] >= place[None, :]), g_CK, DOT)
        behind = _picked_sums(together & (place[:, None] < place[None, :]), g_CK, DOT)
    return tl.exp2(sums), tl.exp2(behind)


@triton.jit
def _fades_by_middle(g_CK, C: tl.constexpr, DOT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Fades from the middle of each token's block of 16 to the token, and from the token to the middle; one of them grows."""
    place = tl.arange(0, C)
    together = place[:, None] // NEAR == place[None, :] // NEAR
    early = (place % NEAR < NEAR // 2)[None, :]
    after = together & (early == 0) & (place[:, None] >= place[None, :])
    before = together & early & (place[:, None] < place[None, :])
    exponent = _picked_sums(after.to(tl.float32) - before.to(tl.float32), tl.maximum(g_CK, LEAST), DOT)
    return tl.exp2(exponent), tl.exp2(-exponent)


@triton.jit
def _on_diagonal(C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which block of 16 is a token's own: [C, C / 16, 1]."""
    own = (tl.arange(0, C) // NEAR)[:, None] == tl.arange(0, C // NEAR)[None, :]
    return own[:, :, None]


@triton.jit
def _blocks_of(x_CC, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """The blocks of 16 on the diagonal: [C, 16]."""
    return tl.sum(tl.where(_on_diagonal(C), tl.reshape(x_CC, (C, C // NEAR, NEAR)), 0.0), 1)


@triton.jit
def _as_blocks(x_CN, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """The inverse: [C, C], zero beside the blocks."""
    return tl.reshape(tl.where(_on_diagonal(C), x_CN[:, None, :], 0.0), (C, C))


@triton.jit
def _near_scores(q_CK, k, g, rows, columns, T, K, k_stride, g_stride, C: tl.constexpr, BK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Faded scores [t, s] of the pairs s < t of a block: [C, 16]."""
    place, place_s = rows % NEAR, tl.arange(0, NEAR)
    fade = tl.zeros([C, BK], tl.float32)
    scores = tl.zeros([C, NEAR], tl.float32)
    for i in range(NEAR - 1):
        s = NEAR - 2 - i
        at = rows - place + s
        height = tl.where(place > s, T, 0)
        fade += _load(g, at + 1, columns, height, K, g_stride).to(tl.float32)
        k_s = _load(k, at, columns, height, K, k_stride).to(tl.float32)
        score = tl.sum(q_CK * k_s * tl.exp(fade), 1)
        scores += tl.where(place_s[None, :] == s, score[:, None], 0.0)
    return scores


@triton.jit
def _near_row_gradients(dA_CN, k, g, rows, columns, T, K, k_stride, g_stride, C: tl.constexpr, BK: tl.constexpr):  # type: ignore[no-untyped-def]
    """What the pairs s < t of a block give to the derivative by q_t."""
    place, place_s = rows % NEAR, tl.arange(0, NEAR)
    fade = tl.zeros([C, BK], tl.float32)
    dq_CK = tl.zeros([C, BK], tl.float32)
    for i in range(NEAR - 1):
        s = NEAR - 2 - i
        at = rows - place + s
        height = tl.where(place > s, T, 0)
        fade += _load(g, at + 1, columns, height, K, g_stride).to(tl.float32)
        k_s = _load(k, at, columns, height, K, k_stride).to(tl.float32)
        weight = tl.sum(tl.where(place_s[None, :] == s, dA_CN, 0.0), 1)
        dq_CK += weight[:, None] * k_s * tl.exp(fade)
    return dq_CK


@triton.jit
def _near_column_gradients(  # type: ignore[no-untyped-def]
    k_CK, dAT_CN, q, g, rows, columns, T, K, q_stride, g_stride, C: tl.constexpr, BK: tl.constexpr
):
    """What the pairs t > s of a block give to the derivative by k_s, and their faded scores [s, t]: [C, 16]."""
    place, place_t = rows % NEAR, tl.arange(0, NEAR)
    fade = tl.zeros([C, BK], tl.float32)
    dk_CK = tl.zeros([C, BK], tl.float32)
    scores = tl.zeros([C, NEAR], tl.float32)
    for t in range(1, NEAR):
        at = rows - place + t
        height = tl.where(place < t, T, 0)
        fade += _load(g, at, columns, height, K, g_stride).to(tl.float32)
        q_t = _load(q, at, columns, height, K, q_stride).to(tl.float32) * tl.exp(fade)
        score = tl.sum(k_CK * q_t, 1)
        scores += tl.where(place_t[None, :] == t, score[:, None], 0.0)
        weight = tl.sum(tl.where(place_t[None, :] == t, dAT_CN, 0.0), 1)
        dk_CK += weight[:, None] * q_t
    return dk_CK, scores


@triton.jit
def _channel_scores(  # type: ignore[no-untyped-def]
    q_CK,
    k_CK,
    g_CK,
    k,
    g,
    rows,
    columns,
    T,
    K,
    k_stride,
    g_stride,
    LEVELS: tl.constexpr,
    C: tl.constexpr,
    BK: tl.constexpr,
    DOT: tl.constexpr,
):
    """Faded scores [t, s] of all pairs s <= t, of log decays by channel."""
    place = tl.arange(0, C)
    if tl.float32 == DOT:
        near = _near_scores(q_CK, k, g, rows, columns, T, K, k_stride, g_stride, C, BK)
        own = tl.sum(q_CK * k_CK, 1)
        near += tl.where((place % NEAR)[:, None] == tl.arange(0, NEAR)[None, :], own[:, None], 0.0)
        scores = _as_blocks(near, C)
    else:
        near = (place[:, None] // NEAR == place[None, :] // NEAR) & (place[:, None] >= place[None, :])
        to_token, to_middle = _fades_by_middle(g_CK, C, DOT)
        scores = tl.where(near, _wide_dot(q_CK * to_token, tl.trans(k_CK * to_middle), DOT), 0.0)
    for level in tl.static_range(LEVELS):
        block = place // (NEAR * 2**level)
        siblings = (block[:, None] == block[None, :] + 1) & (block[:, None] % 2 == 1)
        to_token, to_end = _fades(g, g_CK, rows, columns, T, K, g_stride, NEAR * 2**level, C, BK, DOT)
        scores += tl.where(siblings, _dot(q_CK * to_token, tl.trans(k_CK * to_end), DOT), 0.0)
    return scores


@triton.jit
def _across(  # type: ignore[no-untyped-def]
    q_CK, k_CK, to_token, to_border, dA_CC, dAT_CC, lower, upper, DOT: tl.constexpr
):
    """Of pairs over a border: derivatives by q, k and the sums of log decays, and the faded scores [s, t]."""
    rights, lefts = _rounded(q_CK * to_token, DOT), _rounded(k_CK * to_border, DOT)
    scores = tl.where(upper, _wide_dot(lefts, tl.trans(rights), DOT), 0.0)
    by_rights = _wide_dot(tl.where(lower, dA_CC, 0.0), lefts, DOT)
    by_lefts = _wide_dot(tl.where(upper, dAT_CC, 0.0), rights, DOT)
    # Of what was multiplied, so that each pair adds here what it takes away there, to the last bit.
    dG_CK = rights.to(tl.float32) * by_rights - lefts.to(tl.float32) * by_lefts
    return to_token * by_rights, to_border * by_lefts, dG_CK, scores


@triton.jit
def _channel_gradients(  # type: ignore[no-untyped-def]
    q_CK,
    k_CK,
    dA_CC,
    dAT_CC,
    q,
    k,
    g,
    rows,
    columns,
    T,
    K,
    q_stride,
    k_stride,
    g_stride,
    LEVELS: tl.constexpr,
    C: tl.constexpr,
    BK: tl.constexpr,
    DOT: tl.constexpr,
):
    """Derivatives by q, k and the sums of log decays from those by the scores; and the faded scores [s, t]."""
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
        g_CK = _load(g, rows, columns, T, K, g_stride).to(tl.float32) * LOG2_E
    else:
        g_CK = _load(g, rows, columns, T, K, g_stride).to(tl.float32) * LOG2_E
        together = place[:, None] // NEAR == place[None, :] // NEAR
        lower, upper = together & (place[:, None] >= place[None, :]), together & (place[:, None] <= place[None, :])
        to_token, to_middle = _fades_by_middle(g_CK, C, DOT)
        dq_CK, dk_CK, dG_CK, scores = _across(q_CK, k_CK, to_token, to_middle, dA_CC, dAT_CC, lower, upper, DOT)
    for level in tl.static_range(LEVELS):
        block = place // (NEAR * 2**level)
        lower = (block[:, None] == block[None, :] + 1) & (block[:, None] % 2 == 1)
        upper = (block[:, None] + 1 == block[None, :]) & (block[None, :] % 2 == 1)
        to_token, to_end = _fades(g, g_CK, rows, columns, T, K, g_stride, NEAR * 2**level, C, BK, DOT)
        dq, dk, dG, far = _across(q_CK, k_CK, to_token, to_end, dA_CC, dAT_CC, lower, upper, DOT)
        dq_CK += dq
        dk_CK += dk
        dG_CK += dG
        scores += far
    return dq_CK, dk_CK, dG_CK, scores, g_CK


@triton.jit(do_not_specialize=RUN_TIME)
def _carry_kernel(  # type: ignore[no-untyped-def]
    x,  # k; q where REVERSE
    y,  # v; the derivative by o where REVERSE
    log_decay,
    beta,
    sign,
    first,  # the state ahead of the sequence; the derivative by the one behind it where REVERSE
    states,
    last,  # the state behind the sequence; the derivative by the one ahead of it where REVERSE
    scale,
    T,
    H,
    x_b,
    x_t,
    x_h,
    y_b,
    y_t,
    y_h,
    g_b,
    g_t,
    g_h,
    beta_b,
    beta_t,
    beta_h,
    sign_b,
    sign_t,
    sign_h,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    GATE: tl.constexpr,
    REVERSE: tl.constexpr,
    DOT: tl.constexpr,
):
    """States [B, H, N, K, V] ahead of every chunk; where REVERSE, derivatives by those behind it."""
    pid = tl.program_id(0)
    b, h = (pid // H).to(tl.int64), pid % H
    x += b * x_b + h * x_h
    y += b * y_b + h * y_h
    if beta is not None:
        beta += b * beta_b + h * beta_h
    if sign is not None:
        sign += b * sign_b + h * sign_h
    columns = tl.program_id(1) * BK + tl.arange(0, BK)
    columns_v = tl.program_id(2) * BV + tl.arange(0, BV)
    N = tl.cdiv(T, C)
    if states is not None:
        states += pid.to(tl.int64) * N * K * V
    if log_decay is not None:
        log_decay += b * g_b + h * g_h
    if first is not None:
        S_KV = _load(first + pid.to(tl.int64) * K * V, columns, columns_v, K, V, V).to(tl.float32)
    else:
        S_KV = tl.zeros([BK, BV], tl.float32)
    for i in range(N):
        n = N - 1 - i if REVERSE else i
        rows = n * C + tl.arange(0, C)
        if states is not None:
            _store(states + n * K * V, S_KV, columns, columns_v, K, V, V)
        x_CK = _load(x, rows, columns, T, K, x_t)
        y_CV = _load(y, rows, columns_v, T, V, y_t)
        reads, writes, _, turn = _factors(beta, sign, rows, scale, T, beta_t, sign_t, C)
        weights_CK = (reads if REVERSE else writes * turn)[:, None]
        if GATE == "head":
            high, _, behind, total = _head_sums(log_decay, rows, T, g_t, tl.float32 == DOT)
            weights_CK = weights_CK * tl.exp2(high if REVERSE else behind)[:, None]
            S_KV *= tl.exp2(total)
        if GATE == "channel":
            g_CK = _load(log_decay, rows, columns, T, K, g_t).to(tl.float32) * LOG2_E
            to_token, to_end = _fades(log_decay, g_CK, rows, columns, T, K, g_t, C, C, BK, DOT)
            weights_CK = weights_CK * (to_token if REVERSE else to_end)
            S_KV *= tl.exp2(tl.sum(g_CK, 0))[:, None]
        S_KV = S_KV * turn + _dot(tl.trans((x_CK * weights_CK).to(DOT)), y_CV, DOT)
    if last is not None:
        _store(last + pid.to(tl.int64) * K * V, S_KV, columns, columns_v, K, V, V)


@triton.jit(do_not_specialize=RUN_TIME)
def _forward_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    log_decay,
    beta,
    sign,
    initial,
    o,
    states,
    final,
    scale,
    T,
    H,
    q_b,
    q_t,
    q_h,
    k_b,
    k_t,
    k_h,
    v_b,
    v_t,
    v_h,
    g_b,
    g_t,
    g_h,
    beta_b,
    beta_t,
    beta_h,
    sign_b,
    sign_t,
    sign_h,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    LEVELS: tl.constexpr,
    GATE: tl.constexpr,
    WALK: tl.constexpr,
    AHEAD: tl.constexpr,
    DOT: tl.constexpr,
):
    """Outputs: of all chunks, with their states, where WALK; otherwise of one chunk, whose state is there."""
    pid = tl.program_id(0)
    b, h = (pid // H).to(tl.int64), pid % H
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    o += (b * T * H + h) * V
    if beta is not None:
        beta += b * beta_b + h * beta_h
    if sign is not None:
        sign += b * sign_b + h * sign_h
    N = tl.cdiv(T, C)
    if AHEAD:
        states += pid.to(tl.int64) * N * K * V
    columns = tl.arange(0, BK)
    columns_v = tl.program_id(2) * BV + tl.arange(0, BV)
    place = tl.arange(0, C)
    lower = place[:, None] >= place[None, :]
    if log_decay is not None:
        log_decay += b * g_b + h * g_h
    if WALK:
        if initial is not None:
            S_KV = _load(initial + pid.to(tl.int64) * K * V, columns, columns_v, K, V, V).to(tl.float32)
        else:
            S_KV = tl.zeros([BK, BV], tl.float32)
    for n in range(0 if WALK else tl.program_id(1), N if WALK else tl.program_id(1) + 1):
        rows = n * C + place
        q_CK = _load(q, rows, columns, T, K, q_t)
        k_CK = _load(k, rows, columns, T, K, k_t)
        v_CV = _load(v, rows, columns_v, T, V, v_t)
        reads, writes, _, turn = _factors(beta, sign, rows, scale, T, beta_t, sign_t, C)
        to_token, to_end = tl.full([C, 1], 1.0, tl.float32), tl.full([C, 1], 1.0, tl.float32)
        if GATE == "head":
            high, low, behind, total = _head_sums(log_decay, rows, T, g_t, tl.float32 == DOT)
            to_token, to_end = tl.exp2(high)[:, None], tl.exp2(behind)[:, None]
        if GATE == "channel":
            g_CK = _load(log_decay, rows, columns, T, K, g_t).to(tl.float32) * LOG2_E
            scores = _channel_scores(
                q_CK.to(tl.float32),
                k_CK.to(tl.float32),
                g_CK,
                k,
                log_decay,
                rows,
                columns,
                T,
                K,
                k_t,
                g_t,
                LEVELS,
                C,
                BK,
                DOT,
            )
            if AHEAD or WALK:
                to_token, to_end = _fades(log_decay, g_CK, rows, columns, T, K, g_t, C, C, BK, DOT)
        else:
            scores = _dot(q_CK, tl.trans(k_CK), DOT)
            if GATE == "head":
                scores *= _pairs(high[:, None], low[:, None], high[None, :], low[None, :], lower, tl.float32 == DOT)
            else:
                scores = tl.where(lower, scores, 0.0)
        if beta is not None or sign is not None:
            scores *= writes[None, :]
        o_CV = _dot(scores, v_CV, DOT)
        if AHEAD:
            if not WALK:
                S_KV = _load(states + n * K * V, columns, columns_v, K, V, V)
            if GATE == "channel":
                o_CV += _dot(q_CK * to_token, S_KV, DOT)
            else:
                o_CV += _dot(q_CK, S_KV, DOT) * to_token
        _store(o, o_CV * reads[:, None], rows, columns_v, T, V, H * V)
        if WALK:
            if AHEAD:
                _store(states + n * K * V, S_KV, columns, columns_v, K, V, V)
            if AHEAD or final is not None:
                if GATE == "head":
                    S_KV *= tl.exp2(total)
                if GATE == "channel":
                    S_KV *= tl.exp2(tl.sum(g_CK, 0))[:, None]
                weights_CK = to_end * (writes * turn)[:, None]
                S_KV = S_KV * turn + _dot(tl.trans((k_CK * weights_CK).to(DOT)), v_CV, DOT)
    if WALK and final is not None:
        _store(final + pid.to(tl.int64) * K * V, S_KV, columns, columns_v, K, V, V)


@triton.jit(do_not_specialize=RUN_TIME)
def _backward_kernel(  # type: ignore[no-untyped-def]
    do,
    d_final,
    q,
    k,
    v,
    log_decay,
    beta,
    sign,
    states,  # ahead of the chunks
    d_states,  # behind the chunks; None where WALK
    dq,
    dk,
    dv,
    dg,
    d_beta,
    d_initial,
    scale,
    T,
    H,
    do_b,
    do_t,
    do_h,
    q_b,
    q_t,
    q_h,
    k_b,
    k_t,
    k_h,
    v_b,
    v_t,
    v_h,
    g_b,
    g_t,
    g_h,
    beta_b,
    beta_t,
    beta_h,
    sign_b,
    sign_t,
    sign_h,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    LEVELS: tl.constexpr,
    GATE: tl.constexpr,
    WALK: tl.constexpr,
    AHEAD: tl.constexpr,  # whether there is a state ahead of some chunk
    BEHIND: tl.constexpr,  # whether anything depends on the state behind some chunk
    DOT: tl.constexpr,
):
    """Derivatives: of all chunks, the last one first, where WALK; otherwise of one chunk."""
    EXACT: tl.constexpr = tl.float32 == DOT
    SUM: tl.constexpr = (
        tl.float64 if EXACT and GATE == "head" and BK * BV <= 1024 else tl.float32
    )  # one number out of K V that may cancel
    pid = tl.program_id(0)
    b, h = (pid // H).to(tl.int64), pid % H
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    do += b * do_b + h * do_h
    dq += (b * T * H + h) * K
    dk += (b * T * H + h) * K
    dv += (b * T * H + h) * V
    if beta is not None:
        beta += b * beta_b + h * beta_h
        d_beta += b * T * H + h
    if sign is not None:
        sign += b * sign_b + h * sign_h
    N = tl.cdiv(T, C)
    if AHEAD:
        states += pid.to(tl.int64) * N * K * V
    columns = tl.arange(0, BK)
    place = tl.arange(0, C)
    lower, upper = place[:, None] >= place[None, :], place[:, None] <= place[None, :]
    if GATE == "head":
        dg += b * T * H + h
    if GATE == "channel":
        dg += (b * T * H + h) * K
    if log_decay is not None:
        log_decay += b * g_b + h * g_h
    if WALK:
        columns_v = tl.arange(0, BV)
        if d_final is not None:
            dS_KV = _load(d_final + pid.to(tl.int64) * K * V, columns, columns_v, K, V, V).to(tl.float32)
        else:
            dS_KV = tl.zeros([BK, BV], tl.float32)
    for i in range(0, N if WALK else 1):
        n = N - 1 - i if WALK else tl.program_id(1)
        rows = n * C + place
        q_CK = _load(q, rows, columns, T, K, q_t)
        k_CK = _load(k, rows, columns, T, K, k_t)
        reads, writes, turned, turn = _factors(beta, sign, rows, scale, T, beta_t, sign_t, C)

        dA_CC, dAT_CC = tl.zeros([C, C], tl.float32), tl.zeros([C, C], tl.float32)
        for start in range(0, V, BV):
            block = start + tl.arange(0, BV)
            v_CV = _load(v, rows, block, T, V, v_t)
            do_CV = _load(do, rows, block, T, V, do_t)
            if GATE == "channel":
                dA_CC += _dot(do_CV, tl.trans(v_CV), DOT)
            dAT_CC += _dot(v_CV, tl.trans(do_CV), DOT)
        dAT_CC *= writes[:, None] * turned[None, :]

        to_token, to_end = tl.full([C, 1], 1.0, tl.float32), tl.full([C, 1], 1.0, tl.float32)
        if GATE == "channel":
            dA_CC *= turned[:, None] * writes[None, :]
            dq_CK, dk_CK, dg_CK, scores, g_CK = _channel_gradients(
                q_CK.to(tl.float32),
                k_CK.to(tl.float32),
                dA_CC,
                dAT_CC,
                q,
                k,
                log_decay,
                rows,
                columns,
                T,
                K,
                q_t,
                k_t,
                g_t,
                LEVELS,
                C,
                BK,
                DOT,
            )
            if AHEAD or BEHIND:
                to_token, to_end = _fades(log_decay, g_CK, rows, columns, T, K, g_t, C, C, BK, DOT)
        else:
            scores = _dot(k_CK, tl.trans(q_CK), DOT)
            if GATE == "head":
                high, low, behind, total = _head_sums(log_decay, rows, T, g_t, EXACT)
                to_token, to_end = tl.exp2(high)[:, None], tl.exp2(behind)[:, None]
                fade = _pairs(high[None, :], low[None, :], high[:, None], low[:, None], upper, EXACT)
                dAT_CC *= fade
                if EXACT:
                    crossing = tl.where(place[:, None] < place[None, :], dAT_CC * scores, 0.0)
                    dg_C = tl.sum(crossing, 0) - tl.sum(crossing, 1)
                scores *= fade
            else:
                dAT_CC = tl.where(upper, dAT_CC, 0.0)
                scores = tl.where(upper, scores, 0.0)
            dk_CK = _dot(dAT_CC, q_CK, DOT)
        scores = (scores * turned[None, :]).to(DOT)

        from_ahead, from_behind = tl.zeros([C, BK], tl.float32), tl.zeros([C, BK], tl.float32)
        through, d_writes = tl.zeros([BK], SUM), tl.zeros([C], tl.float32)
        for start in range(0, V, BV):
            block = start + tl.arange(0, BV)
            v_CV = _load(v, rows, block, T, V, v_t)
            do_CV = _load(do, rows, block, T, V, do_t)
            dv_CV = _dot(scores, do_CV, DOT) * scale
            if GATE != "channel":
                dA_CC += _dot(do_CV, tl.trans(v_CV), DOT)
            if AHEAD:
                S_KV = _load(states + n * K * V, columns, block, K, V, V)
                from_ahead += _dot(do_CV, tl.trans(S_KV), DOT)
                if states.dtype.element_ty != DOT:
                    # A few tokens' derivative by log decay may be the little that is left of K V numbers.
                    lost_KV = S_KV - S_KV.to(DOT).to(tl.float32)
                    from_ahead += _dot(do_CV, tl.trans(lost_KV), DOT)
            if BEHIND:
                if not WALK:
                    at = d_states + (pid.to(tl.int64) * N + n) * K * V
                    dS_KV = _load(at, columns, block, K, V, V)
                from_behind += _dot(v_CV, tl.trans(dS_KV.to(DOT)), DOT)
                if GATE == "channel":
                    dv_CV += _dot(k_CK * to_end, dS_KV, DOT) * turn
                else:
                    dv_CV += _dot(k_CK, dS_KV, DOT) * (to_end * turn)
                if AHEAD:
                    through += tl.sum(S_KV.to(SUM) * dS_KV.to(SUM), 1)
            d_writes += tl.sum(v_CV * dv_CV, 1)
            _store(dv, dv_CV * writes[:, None], rows, block, T, V, H * V)
        if beta is not None:
            tl.store(d_beta + rows * H, (d_writes * turned).to(d_beta.dtype.element_ty), mask=rows < T)
        from_ahead *= to_token * turned[:, None]
        from_behind *= to_end * (writes * turn)[:, None]
        if GATE != "channel":
            dA_CC *= turned[:, None] * writes[None, :]
            if GATE == "head":
                dA_CC *= _pairs(high[:, None], low[:, None], high[None, :], low[None, :], lower, EXACT)
            else:
                dA_CC = tl.where(lower, dA_CC, 0.0)
            dq_CK = _dot(dA_CC, k_CK, DOT)
            if GATE == "head" and not EXACT:  # a pair (t, t) adds nothing: its two products are the same numbers
                dg_C = tl.sum(q_CK.to(tl.float32) * dq_CK - k_CK.to(tl.float32) * dk_CK, 1)
        _store(dq, (dq_CK + from_ahead) * scale, rows, columns, T, K, H * K)
        _store(dk, dk_CK * scale + from_behind, rows, columns, T, K, H * K)

        if GATE == "head":
            written = tl.sum(k_CK.to(SUM) * from_behind.to(SUM), 1)
            dg_C = tl.cumsum((dg_C + tl.sum(q_CK.to(SUM) * from_ahead.to(SUM), 1)) * scale, 0, reverse=True)
            dg_C += tl.cumsum(written, 0) - written + tl.sum(through, 0) * (tl.exp2(total) * turn)
            tl.store(dg + rows * H, dg_C.to(dg.dtype.element_ty), mask=rows < T)
        if GATE == "channel":
            over = tl.exp2(tl.sum(g_CK, 0))
            written = k_CK * from_behind
            dg_CK = tl.cumsum((dg_CK + q_CK * from_ahead) * scale, 0, reverse=True)
            dg_CK += tl.cumsum(written, 0) - written + (through * over * turn)[None, :]
            _store(dg, dg_CK, rows, columns, T, K, H * K)
        if WALK and (BEHIND or d_initial is not None):
            do_CV = _load(do, rows, columns_v, T, V, do_t)
            faded_CK = q_CK * (to_token * reads[:, None])
            if GATE == "head":
                dS_KV *= tl.exp2(total)
            if GATE == "channel":
                dS_KV *= over[:, None]
            dS_KV = dS_KV * turn + _dot(tl.trans(faded_CK.to(DOT)), do_CV, DOT)
    if WALK and d_initial is not None:
        _store(d_initial + pid.to(tl.int64) * K * V, dS_KV, columns, columns_v, K, V, V)


class _Plan(NamedTuple):
    """How the work is cut: by one program a sequence (walk) or one a chunk; tokens a chunk; warps a program."""

    walk: bool
    chunk: int
    value_block: int
    warps_forward: int
    warps_backward: int


def _plan(sequences: int, time: int, key_width: int, value_width: int, by_channel: bool, exact: bool) -> _Plan:
    """Chosen for few spilled registers and short chains. `exact` products of fp32 have no tensor cores."""
    widest = max(padded(key_width), padded(value_width))
    if exact:
        longest, block = (32, 32) if widest <= 32 else (16, 32)
    elif by_channel:
        longest, block = 32 if widest <= 128 else 16, 64
    else:
        # Hopper's wider products, which chunks of 64 bring in, come out wrong of Triton 3.6 where key and value widths differ.
        even = padded(key_width) == padded(value_width)
        longest, block = 64 if widest <= 32 or (even and widest <= 128) else 32, 64
    # Transposed results of products are operands while one walks: right from mma, not from Hopper's wgmma (from 64 wide on).
    walk = widest <= 32 and (time <= 128 or sequences >= 256)
    if walk and not exact and sequences >= 512:  # the work counts, no more the waiting: all programs fit at once
        longest, warps = (16, 1) if widest <= 16 else (16, 4) if by_channel else (32, 2)
        return _Plan(walk, longest, min(block, padded(value_width)), warps, warps)
    chunk, block = min(longest, padded(time)), min(block, padded(value_width))
    if by_channel:
        return _Plan(walk, chunk, block, 8 if widest > 32 else 4, 8 if widest > (16 if exact else 32) else 4)
    return _Plan(walk, chunk, block, 8 if widest > 128 else 4, 8 if widest > 32 else 4)


class _Case(NamedTuple):
    """What the launchers and the forms of their results share."""

    batch: int
    time: int
    heads: int
    key_width: int
    value_width: int
    plan: _Plan
    ahead: bool
    behind: bool
    dot: torch.dtype

    @property
    def chunks(self) -> int:
        return triton.cdiv(self.time, self.plan.chunk)

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (self.batch, self.heads, self.key_width, self.value_width)

    def chunk_states(self, like: Tensor) -> Tensor:
        """Ahead of chunks, or behind them: a single one keeps all its digits."""
        batch, heads, *widths = self.state_shape
        dtype = torch.float32 if self.chunks == 1 else self.dot
        return like.new_empty((batch, heads, self.chunks, *widths), dtype=dtype)

    def constants(self, log_decay: Tensor | None, *, walk: bool) -> dict[str, Any]:
        gate = "none" if log_decay is None else "head" if log_decay.ndim == 3 else "channel"
        return {
            "K": self.key_width,
            "V": self.value_width,
            "C": self.plan.chunk,
            "GATE": gate,
            "DOT": _DOTS[self.dot],
            "num_stages": 2 if walk and self.dot != torch.float32 else 1,  # the next chunk is read ahead
        }


_DOTS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def _case(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, initial_state: Tensor | None, return_state: bool
) -> _Case:
    batch, time, heads, value_width = v.shape
    key_width = q.shape[-1]
    by_channel = log_decay is not None and log_decay.ndim == 4
    alike = q.dtype == k.dtype == v.dtype and v.dtype in (torch.bfloat16, torch.float16)
    plan = _plan(batch * heads, time, key_width, value_width, by_channel, not alike)
    several = time > plan.chunk
    return _Case(
        batch=batch,
        time=time,
        heads=heads,
        key_width=key_width,
        value_width=value_width,
        plan=plan,
        ahead=several or initial_state is not None,
        behind=several or return_state,
        dot=v.dtype if alike else torch.float32,
    )


def _dense(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _gate(log_decay: Tensor | None) -> Tensor | None:
    return log_decay if log_decay is None or log_decay.ndim == 3 else dense(log_decay)


def _strides(*tensors: Tensor | None) -> list[int]:
    """Of batch, time and heads; none of heads that share what they read."""
    return [0 if x is None or (axis == 2 and x.shape[2] == 1) else x.stride(axis) for x in tensors for axis in range(3)]


def _carry(
    case: _Case,
    x: Tensor,
    y: Tensor,
    gate: Tensor | None,
    beta: Tensor | None,
    sign: Tensor | None,
    first: Tensor | None,
    states: Tensor | None,
    last: Tensor | None,
    scale: float,
    *,
    reverse: bool,
) -> None:
    widths = (padded(case.key_width), padded(case.value_width))
    by_channel = gate is not None and gate.ndim == 4  # its fades cost most of a step
    blocks = min(32 if by_channel else 64, widths[0]), min(64, widths[1])
    grid = (case.batch * case.heads, widths[0] // blocks[0], widths[1] // blocks[1])
    _carry_kernel[grid](
        x,
        y,
        gate,
        beta,
        sign,
        first,
        states,
        last,
        scale,
        case.time,
        case.heads,
        *_strides(x, y, gate, beta, sign),
        BK=blocks[0],
        BV=blocks[1],
        REVERSE=reverse,
        num_warps=4,
        **case.constants(gate, walk=True),
    )


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    sign: Tensor | None,
    initial_state: Tensor | None,
    scale: float,
    return_state: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    case = _case(q, k, v, log_decay, initial_state, return_state)
    q, k, v, gate, initial = dense(q), dense(k), dense(v), _gate(log_decay), _dense(initial_state)
    o, final, states = _outputs(q, k, v, log_decay, beta, sign, initial, scale, return_state)
    plan, block = case.plan, case.plan.value_block
    ahead, behind = states if case.ahead else None, final if return_state else None
    with torch.cuda.device_of(v):
        if not plan.walk and (case.ahead or return_state):
            _carry(case, k, v, gate, beta, sign, initial, ahead, behind, scale, reverse=False)
        grid = (case.batch * case.heads, 1 if plan.walk else case.chunks, padded(case.value_width) // block)
        _forward_kernel[grid](
            q,
            k,
            v,
            gate,
            beta,
            sign,
            initial,
            o,
            ahead,
            behind,
            scale,
            case.time,
            case.heads,
            *_strides(q, k, v, gate, beta, sign),
            BK=padded(case.key_width),
            BV=block,
            LEVELS=_levels(plan.chunk),
            WALK=plan.walk,
            AHEAD=case.ahead,
            num_warps=plan.warps_forward,
            **case.constants(gate, walk=plan.walk),
        )
    return o, final, states


def _levels(chunk: int) -> int:
    """The levels of the tree over a chunk's blocks."""
    return (chunk // NEAR.value).bit_length() - 1


def _outputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    sign: Tensor | None,
    initial_state: Tensor | None,
    scale: float,
    return_state: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, the final state, and the states ahead of the chunks; empty where there is none."""
    case = _case(q, k, v, log_decay, initial_state, return_state)
    nothing = (case.batch, 0)
    o = torch.empty_like(v, memory_format=torch.contiguous_format)
    final = v.new_empty(case.state_shape if return_state else nothing, dtype=torch.float32)
    states = case.chunk_states(v) if case.ahead else v.new_empty(nothing, dtype=case.dot)
    return o, final, states


def _backward(
    d_o: Tensor,
    d_final: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    sign: Tensor | None,
    initial_state: Tensor | None,
    scale: float,
    return_state: bool,
    states: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    case = _case(q, k, v, log_decay, initial_state, return_state)
    d_o, q, k, v, gate = dense(d_o), dense(q), dense(k), dense(v), _gate(log_decay)
    dq, dk, dv, dg, d_beta, d_sign, d_initial = _gradients(
        d_o, d_final, q, k, v, log_decay, beta, sign, initial_state, scale, return_state, states
    )
    if sign is not None:
        d_sign.zero_()
    shared = q.shape[2] != case.heads
    by_head = (case.batch, case.time, case.heads, case.key_width)
    dq_BTHK, dk_BTHK = (q.new_empty(by_head, dtype=torch.float32) for _ in "qk") if shared else (dq, dk)
    plan = case.plan
    behind = d_final.contiguous() if return_state else None
    ahead = None if initial_state is None else d_initial
    d_states = None if plan.walk or not case.behind else case.chunk_states(v)
    with torch.cuda.device_of(v):
        if not plan.walk and (case.behind or ahead is not None):
            _carry(case, q, d_o, gate, beta, sign, behind, d_states, ahead, scale, reverse=True)
        _backward_kernel[(case.batch * case.heads, 1 if plan.walk else case.chunks)](
            d_o,
            behind,
            q,
            k,
            v,
            gate,
            beta,
            sign,
            states if case.ahead else None,
            d_states,
            dq_BTHK,
            dk_BTHK,
            dv,
            None if gate is None else dg,
            None if beta is None else d_beta,
            ahead,
            scale,
            case.time,
            case.heads,
            *_strides(d_o, q, k, v, gate, beta, sign),
            BK=padded(case.key_width),
            BV=plan.value_block,
            LEVELS=_levels(plan.chunk),
            WALK=plan.walk,
            AHEAD=case.ahead,
            BEHIND=case.behind,
            num_warps=plan.warps_backward,
            **case.constants(gate, walk=plan.walk),
        )
    if shared:
        dq, dk = dq_BTHK.sum(2, keepdim=True).to(q.dtype), dk_BTHK.sum(2, keepdim=True).to(k.dtype)
    return dq, dk, dv, dg, d_beta, d_sign, d_initial


def _gradients(
    d_o: Tensor,
    d_final: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    sign: Tensor | None,
    initial_state: Tensor | None,
    scale: float,
    return_state: bool,
    states: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    def like(x: Tensor | None) -> Tensor:
        return v.new_empty((v.shape[0], 0)) if x is None else torch.empty_like(x, memory_format=torch.contiguous_format)

    return like(q), like(k), like(v), like(log_decay), like(beta), like(sign), like(initial_state)


_gated_linear = opaque("gated_linear", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=2)


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None,
    beta: Tensor | None,
    sign: Tensor | None,
    scale: float,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence. `chunk` has no meaning here."""
    o, final, _ = _gated_linear(q, k, v, log_decay, beta, sign, initial_state, scale, return_state)
    return o, final if return_state else None


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """What this implementation cannot do, None where it can."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    widths = {name: sizes.get(name, 1) for name in ("key_width", "value_width")}
    for name, width in widths.items():
        if width > WIDEST:
            return f"takes widths up to {WIDEST}, got {name} {width}"
    return None
