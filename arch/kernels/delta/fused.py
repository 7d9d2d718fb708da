"""The delta rule: in one launch forward and one backward for short sequences of narrow heads, in two and two otherwise.

Within a chunk of C tokens with state S ahead of it, one row r reads before one column c writes, and E is what c writes:

beta   r = k, c = beta k     (I + A) E = V - r S                A = tril_-(r c^T)
a, b   r = a, c = b          (I + A) E = -(r S + P V)           P = tril_-(r k^T)
       O = scale q S + X E [+ W V],   S' = D S + c^T E [+ k^T V]     X = scale tril(q c^T), W = scale tril(q k^T)

where q, r, c, k fade between their tokens as `recurrence.decay` has it, and [...] is there with a and b only. Backward,
with dS' behind the chunk and F the derivative by E:

F = X^T dO + c dS',   Z = (I + A)^-T F,   dS = scale q^T dO - r^T Z + D dS',   dA = -Z E^T,   dX = scale dO E^T

In one launch a program walks a whole sequence, chunk after chunk, the state in registers, and does all else on the way. It
leaves the inverses, E and the states ahead of the chunks to backward.

Otherwise the inverse, its products with r and with V, and those of pairs are made by a program a chunk. Then only S and dS
walk along time, two products a chunk, by a program a head and block of value channels; the gradients are a program a chunk
again.

B batch, T time, H heads, N chunks, C tokens a chunk, K key width, V value width; in kernels KB and VB are blocks of them,
KP and VP their powers of two
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from arch.kernels.op_interface.custom_op import opaque, padded
from arch.kernels.recurrence.chunks import signs

WIDEST = 256
NO_GATE, HEAD_GATE, CHANNEL_GATE = 0, 1, 2
LEAST = tl.constexpr(-9.5)  # log decay of a token in products from the middle of a block of 16


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """Why these kernels cannot serve, None where they can."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    widest = max(sizes.get("key_width", 1), sizes.get("value_width", 1))
    return f"holds heads up to {WIDEST} wide, got {widest}" if widest > WIDEST else None


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None,
    beta: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    sign: Tensor | None,
    scale: float,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence. `chunk` has no meaning here: it follows from the widths."""
    turned = signs(sign)
    values = v
    if turned is not None:
        values = v * turned.to(v.dtype)[..., None]
        b = None if b is None or sign is None else b * sign.to(b.dtype)[..., None]
    heads = v.shape[2]
    q, k = q.expand(-1, -1, heads, -1), k.expand(-1, -1, heads, -1)
    a = None if a is None else a.expand(-1, -1, heads, -1)
    b = None if b is None else b.expand(-1, -1, heads, -1)
    log_decay = None if log_decay is None else log_decay.float()
    beta = None if beta is None else beta.float()
    initial = None if initial_state is None else initial_state.float()
    keep = torch.is_grad_enabled()
    o, final, *_ = _delta(q, k, values, log_decay, beta, a, b, initial, float(scale), return_state, keep)
    if turned is not None:
        o = o * turned.to(o.dtype)[..., None]
        final = final * turned[:, -1].to(final.dtype)[..., None, None] if return_state else final
    return o, final if return_state else None


class _Table(NamedTuple):
    """Tokens a chunk; channels of values a walk, of keys a step of pairs and of gradients; warps of each; stages of a walk."""

    chunk: int
    value_block: int
    pair_block: int
    gradient_block: int
    pair_warps: int
    walk_warps: int
    gradient_warps: int
    stages: int


def _table(key_width: int, value_width: int, paired: bool, by_channel: bool, exact: bool) -> _Table:
    """Chosen by what compiles for Hopper with few spills; short chunks where a state costs little, for short programs.

    `exact` is for fp32, whose products run on ordinary cores and want more registers.
    """
    widest = max(key_width, value_width)
    many = paired or by_channel
    if widest <= 16:
        few = 2 if exact else 1
        return _Table(16, 16, 16, 16, few, few, few, 1 if exact else 3 if many else 4)
    if widest <= 32:
        return _Table(32, 32, 32, 16 if many else 32, 4, 4, 4, 1 if many or exact else 3)
    if exact:
        chunk, value_block = (32, 32) if widest <= 64 else (32, 16) if widest <= 128 else (16, 16)
        return _Table(chunk, value_block, 32, 16, 4 if chunk == 16 else 8, 8, 4 if chunk == 16 else 8, 1)
    # Chunks of 64 would bring in Hopper's wider products, which Triton 3.6 compiles to wrong results here (seen on an H100).
    pair_block, gradient_block = 32 if by_channel else 64, 16 if paired and not by_channel else 64
    stages = 1 if widest > 128 and many else 2
    return _Table(32, 32, pair_block, gradient_block, 4, 8 if widest > 128 else 4, 8 if by_channel else 4, stages)


class _Whole(NamedTuple):
    """Tokens a chunk, warps and stages, where one program walks a whole sequence."""

    chunk: int
    forward_warps: int
    backward_warps: int
    forward_stages: int
    backward_stages: int


def _whole(
    key_width: int, value_width: int, gate: int, paired: bool, exact: bool, time: int, sequences: int
) -> _Whole | None:
    """None where chunks of long, or wide, or few sequences are better done side by side (seen on an H200). By channel a chunk
    is one block of 16. Pairs without such decays stay here where they can: it loses fewer of their digits."""
    widest, plain, by_channel = max(key_width, value_width), gate == NO_GATE and not paired, gate == CHANNEL_GATE
    few = sequences < (128 if plain and widest > 32 else 512)
    if (exact and (by_channel or widest > 32)) or widest > 64 or (time > 256 and sequences < 1024):
        return None
    if few and (widest > 16 or gate == HEAD_GATE) and (by_channel or not paired):
        return None
    stages = 1 if exact else 2 if by_channel or widest > 16 else 3
    if widest <= 16:
        warps = 2 if few and by_channel else 1
        return _Whole(16, warps, warps, stages, stages)
    if widest <= 32:
        return _Whole(16, 2, 2, stages, stages)
    if plain:
        return _Whole(16, 4, 4, 3, 3)
    return _Whole(16, 4, 8 if by_channel else 4, stages, 1 if by_channel else 2)


# Products


@triton.jit
def _dot(x, y, PRECISION: tl.constexpr):
    """x y in fp32, of operands in fp32 ("ieee", "tf32x3", "tf32") or rounded to bf16 ("bf16")."""
    if PRECISION == "bf16":
        product = tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16))
    else:
        product = tl.dot(x, y, input_precision=PRECISION)
    return product


@triton.jit
def _onto(z, x, y, PRECISION: tl.constexpr):
    """z + x y."""
    if PRECISION == "bf16":
        z = tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16), z)
    else:
        z = tl.dot(x, y, z, input_precision=PRECISION)
    return z


# Tiles of a tensor [T, D] of one head


@triton.jit
def _rows(x, stride, t, T, d, D):
    """[C, D] in fp32, zero outside."""
    inside = (t[:, None] < T) & (d[None, :] < D)
    return tl.load(x + t[:, None] * stride + d[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _columns(x, stride, t, T, d, D):
    """[D, C] in fp32, zero outside."""
    inside = (d[:, None] < D) & (t[None, :] < T)
    return tl.load(x + d[:, None] + t[None, :] * stride, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _put_rows(x, stride, t, T, d, D, tile):
    inside = (t[:, None] < T) & (d[None, :] < D)
    tl.store(x + t[:, None] * stride + d[None, :], tile.to(x.dtype.element_ty), mask=inside)


@triton.jit
def _gates(x, stride, t, T):
    """[C] in fp32, zero outside."""
    return tl.load(x + t * stride, mask=t < T, other=0.0)


@triton.jit
def _square(x, inside, C: tl.constexpr):
    """[C, C], zero outside; None: all of it."""
    i = tl.arange(0, C)
    return tl.load(x + i[:, None] * C + i[None, :], mask=inside, other=None if inside is None else 0.0)


@triton.jit
def _square_turned(x, inside, C: tl.constexpr):
    i = tl.arange(0, C)
    return tl.load(x + i[:, None] + i[None, :] * C, mask=inside, other=None if inside is None else 0.0)


# Fades


@triton.jit
def _sums(g, EXACT: tl.constexpr):
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
def _pair_fades(high, low, before, C: tl.constexpr):
    """exp of log decays from token s to token t, or with before = g to ahead of t's own: [t, s], 1 unless s < t."""
    i = tl.arange(0, C)
    exponent = (high[:, None] - high[None, :]) + (low[:, None] - low[None, :]) - before[:, None]
    return tl.exp(tl.where(i[:, None] > i[None, :], tl.minimum(exponent, 0.0), 0.0))


@triton.jit
def _on_level(level, C: tl.constexpr):
    """Which pairs [t, s] a border between blocks of 2^level tokens parts, and no wider border."""
    i = tl.arange(0, C)
    t, s = i[:, None], i[None, :]
    return ((t >> (level + 1)) == (s >> (level + 1))) & ((t >> level) > (s >> level))


@triton.jit
def _to_border(g_CK, level, C: tl.constexpr, PRECISION: tl.constexpr):
    """Log decay [C, K] between each token and the border amid its pair of blocks of 2^level tokens, <= 0.

    A sum of log decays, never a difference of sums, so a small decay behind a large one is kept.
    """
    i = tl.arange(0, C)
    t, s = i[:, None], i[None, :]
    behind = ((t >> level) & 1) == 1
    between = ((t >> level) == (s >> level)) & tl.where(behind, s <= t, s > t)
    return tl.minimum(_dot(tl.where(between, 1.0, 0.0), g_CK, PRECISION), 0.0)


@triton.jit
def _from_middle(g_CK, C: tl.constexpr):
    """Log decay [C, K] from the middle of each token's block of 16 to the token: negative in its second half, positive in
    its first. Decays count as at least e^-9.5 here, so that what grows stays within fp32."""
    i = tl.arange(0, C)[:, None]
    g_CK = tl.maximum(g_CK, LEAST)
    middle = tl.sum(tl.where(i < 8, g_CK, 0.0), 0)[None, :]
    if C == 32:
        middle = tl.where(i < 16, middle, tl.sum(tl.where(i < 24, g_CK, 0.0), 0)[None, :])
    return tl.cumsum(g_CK, 0) - middle


@triton.jit
def _from_border(until_CK, C: tl.constexpr):
    """Log decay [C, K] between the border amid 32 tokens and each token, <= 0."""
    i = tl.arange(0, C)[:, None]
    at = tl.sum(tl.where(i == C // 2 - 1, until_CK, 0.0), 0)[None, :]
    return tl.minimum(tl.where(i < C // 2, at - until_CK, until_CK - at), 0.0)


@triton.jit
def _together(level, C: tl.constexpr, EXACT: tl.constexpr, TURNED: tl.constexpr):
    """Which pairs [t, s], s < t, level after level, fade to and from one place; TURNED: [s, t].

    EXACT: those that a border between blocks of 2^level tokens parts, and no wider one. Otherwise those in one block of 16,
    then those in two.
    """
    i = tl.arange(0, C)
    t, s = (i[None, :], i[:, None]) if TURNED else (i[:, None], i[None, :])
    if EXACT:
        pairs = ((t >> (level + 1)) == (s >> (level + 1))) & ((t >> level) > (s >> level))
    else:
        pairs = (t > s) & (((t >> 4) == (s >> 4)) == (level == 0))
    return pairs


@triton.jit
def _level_fades(g_CK, level, C: tl.constexpr, EXACT: tl.constexpr, PAIR: tl.constexpr):
    """Fades [C, K] of such pairs' q, r and columns."""
    if EXACT:
        to_row = _to_border(g_CK, level, C, "ieee")
        to_read = tl.minimum(to_row - g_CK, 0.0)
        to_column = to_row
    else:
        to_row = _from_middle(g_CK, C)
        to_read = to_row - tl.maximum(g_CK, LEAST)
        to_column = -to_row
        if C == 32:
            near, to_border = level == 0, _from_border(tl.cumsum(g_CK, 0), C)
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
def _to_end(g):
    """exp of the log decays g [C] behind each token, up to the chunk's end."""
    return tl.exp(tl.minimum(tl.cumsum(g, 0, reverse=True) - g, 0.0))


# States and the inverse


@triton.jit
def _blocks(x, SPLIT: tl.constexpr):
    """[K, N] as [K / 32, 32, N] where SPLIT: with 64 rows or more Hopper's wider products would come in (see `_table`)."""
    return tl.reshape(x, (x.shape[0] // 32, 32, x.shape[1])) if SPLIT else x


@triton.jit
def _flat(x, SPLIT: tl.constexpr):
    return tl.reshape(x, (x.shape[0] * 32, x.shape[2])) if SPLIT else x


@triton.jit
def _grow(z, x, y, SPLIT: tl.constexpr, PRECISION: tl.constexpr):
    """z + x y of a state z [K, V], by blocks where SPLIT, and x [K, C], y [C, V]."""
    if SPLIT:
        y = tl.broadcast_to(y[None, :, :], (z.shape[0], y.shape[0], y.shape[1]))
    return _onto(z, _blocks(x, SPLIT), y, PRECISION)


@triton.jit
def _inverse(a, C: tl.constexpr, PRECISION: tl.constexpr):
    """(I + A)^-1 of strictly lower triangular A [C, C]: blocks of 1, 2, 4 ... put together by pairs.

    Two inverted blocks x, y over the block a between them make [[x, 0], [-y a x, y]]. Powers of A, which grow like
    binomial coefficients where keys repeat, are never formed.
    """
    i = tl.arange(0, C)
    inverse = tl.where(i[:, None] == i[None, :], 1.0, 0.0) - tl.where(_on_level(0, C), a, 0.0)
    for level in tl.static_range(1, 4 if C == 16 else 5):
        between = tl.where(_on_level(level, C), a, 0.0)
        inverse -= _dot(inverse, _dot(between, inverse, PRECISION), PRECISION)
    return inverse


@triton.jit(do_not_specialize=["T", "H"])
def _pairs_kernel(
    q, k, v, a, b, g, beta, scores, erased, wanted, q_strides, k_strides, v_strides, a_strides, b_strides, g_strides,
    beta_strides, T, H, scale, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr,
    KP: tl.constexpr, KB: tl.constexpr, VP: tl.constexpr, VB: tl.constexpr, PAIR: tl.constexpr, GATE: tl.constexpr,
    WRITE: tl.constexpr, PRECISION: tl.constexpr, CHAIN: tl.constexpr, SOLVE: tl.constexpr,
):  # fmt: skip
    """(I + A)^-1, X, with a and b also W and P, and (I + A)^-1 times r and times V or -P V, of one chunk of one head;
    behind that times r, where decays go by channel, what walks and gradients take of q, c and k with their fades."""
    head, n = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at_b, at_h = head // H, head % H
    q += at_b * q_strides[0] + at_h * q_strides[2]
    k += at_b * k_strides[0] + at_h * k_strides[2]
    v += at_b * v_strides[0] + at_h * v_strides[2]
    erased += (at_b * (T * H) * ((4 if PAIR else 3) if GATE == 2 else 1) + at_h) * K
    wanted += (at_b * T * H + at_h) * V
    if PAIR:
        a += at_b * a_strides[0] + at_h * a_strides[2]
        b += at_b * b_strides[0] + at_h * b_strides[2]
    if GATE > 0:
        g += at_b * g_strides[0] + at_h * g_strides[2]
    KINDS: tl.constexpr = 4 if PAIR else 2
    TAIL: tl.constexpr = KP if GATE == 2 else 4 * C
    scores += (head * tl.num_programs(1) + n) * (KINDS * C * C + TAIL)
    i = tl.arange(0, C)
    t = n * C + i

    erases = tl.zeros((C, C), tl.float32)
    reads = tl.zeros((C, C), tl.float32)
    hears = tl.zeros((C, C), tl.float32)
    sees = tl.zeros((C, C), tl.float32)
    for start in range(0, KP, KB):
        d = start + tl.arange(0, KB)
        q_CK = _rows(q, q_strides[1], t, T, d, K)
        k_CK = _rows(k, k_strides[1], t, T, d, K)
        if PAIR:
            r_CK = _rows(a, a_strides[1], t, T, d, K)
            c_CK = _rows(b, b_strides[1], t, T, d, K)
        else:
            r_CK = k_CK
            c_CK = k_CK
        if GATE < 2:
            c_KC = tl.trans(c_CK)
            reads = _onto(reads, q_CK, c_KC, PRECISION)
            erases = _onto(erases, r_CK, c_KC, PRECISION)
            if PAIR:
                k_KC = tl.trans(k_CK)
                sees = _onto(sees, q_CK, k_KC, PRECISION)
                hears = _onto(hears, r_CK, k_KC, PRECISION)
        else:
            g_CK = _rows(g, g_strides[1], t, T, d, K)
            own = i[:, None] == i[None, :]
            reads += tl.where(own, tl.sum(q_CK * c_CK, 1)[:, None], 0.0)
            if PAIR:
                sees += tl.where(own, tl.sum(q_CK * k_CK, 1)[:, None], 0.0)
            for level in range(LEVELS):
                now = _together(level, C, CHAIN == "ieee", False)
                row, read, column = _level_fades(g_CK, level, C, CHAIN == "ieee", PAIR)
                q_faded = q_CK * row
                r_faded = r_CK * read
                c_faded = tl.trans(c_CK * column)
                if PAIR:
                    k_faded = tl.trans(k_CK * column)
                    sees += tl.where(now, _dot(q_faded, k_faded, PRECISION), 0.0)
                    hears += tl.where(now, _dot(r_faded, k_faded, PRECISION), 0.0)
                reads += tl.where(now, _dot(q_faded, c_faded, PRECISION), 0.0)
                erases += tl.where(now, _dot(r_faded, c_faded, CHAIN), 0.0)

    strength = tl.full((C,), 1.0, tl.float32)
    if WRITE:
        strength = _gates(beta + at_b * beta_strides[0] + at_h * beta_strides[2], beta_strides[1], t, T)
        reads *= strength[None, :]
        erases *= strength[None, :]
    fades = scores + KINDS * C * C + i
    if GATE == 1:
        g_C = _gates(g, g_strides[1], t, T)
        high, low = _sums(g_C, CHAIN == "ieee")
        fade = _pair_fades(high, low, tl.zeros_like(g_C), C)
        reads *= fade
        tl.store(fades, tl.exp(high) * scale)
        if PAIR:
            fade_before = _pair_fades(high, low, g_C, C)
            sees *= fade
            hears *= fade_before
            erases *= fade_before
            to_read = tl.exp(tl.minimum(high - g_C, 0.0))[:, None]
        else:
            erases *= fade
            to_read = tl.exp(high)[:, None]
        strength *= _to_end(g_C)
        tl.store(fades + 3 * C, tl.exp(high))
    if GATE == 1 or (WRITE and GATE == 0):
        tl.store(fades + 2 * C, strength)
    place = i[:, None] * C + i[None, :]
    until_now, before_now = i[:, None] >= i[None, :], i[:, None] > i[None, :]
    tl.store(scores + C * C + place, tl.where(until_now, reads * scale, 0.0))
    if PAIR:
        tl.store(scores + 2 * C * C + place, tl.where(until_now, sees * scale, 0.0))
        hears = tl.where(before_now, hears, 0.0)
        tl.store(scores + 3 * C * C + place, hears)
    inverse = _inverse(tl.where(before_now, erases, 0.0), C, SOLVE)
    tl.store(scores + place, inverse)
    for start in range(0, VP, VB):
        w = start + tl.arange(0, VB)
        v_CV = _rows(v, v_strides[1], t, T, w, V)
        if PAIR:
            v_CV = -_dot(hears, v_CV, CHAIN)
        _put_rows(wanted, H * V, t, T, w, V, _dot(inverse, v_CV, SOLVE))
    for start in range(0, KP, KB):
        d = start + tl.arange(0, KB)
        if PAIR:
            r_CK = _rows(a, a_strides[1], t, T, d, K)
        else:
            r_CK = _rows(k, k_strides[1], t, T, d, K)
        if GATE == 1:
            r_CK *= to_read
        if GATE == 2:
            g_CK = _rows(g, g_strides[1], t, T, d, K)
            until = tl.cumsum(g_CK, 0)
            r_CK *= tl.exp(tl.minimum(until - g_CK, 0.0) if PAIR else until)
            total = tl.sum(g_CK, 0)
            to_end = tl.exp(tl.minimum(tl.cumsum(g_CK, 0, reverse=True) - g_CK, 0.0))
            k_CK = _rows(k, k_strides[1], t, T, d, K)
            q_CK = _rows(q, q_strides[1], t, T, d, K)
            _put_rows(erased + T * H * K, H * K, t, T, d, K, q_CK * tl.exp(until) * scale)
            if PAIR:
                c_CK = _rows(b, b_strides[1], t, T, d, K)
                _put_rows(erased + 3 * T * H * K, H * K, t, T, d, K, k_CK * to_end)
            else:
                c_CK = k_CK * strength[:, None]
            _put_rows(erased + 2 * T * H * K, H * K, t, T, d, K, c_CK * to_end)
            tl.store(scores + KINDS * C * C + d, tl.exp(total))
        _put_rows(erased, H * K, t, T, d, K, _dot(inverse, r_CK, SOLVE))


@triton.jit(do_not_specialize=["T", "H"])
def _forward_kernel(
    q, k, v, b, scores, erased, wanted, initial, o, written, states, final,
    q_strides, k_strides, v_strides, b_strides, erased_strides, T, H, scale,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, VB: tl.constexpr, PAIR: tl.constexpr,
    GATE: tl.constexpr, WRITE: tl.constexpr, START: tl.constexpr, KEEP: tl.constexpr, END: tl.constexpr,
    PRECISION: tl.constexpr, CHAIN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Outputs and states of one head, a block of value channels."""
    head = tl.program_id(0).to(tl.int64)
    at_b, at_h = head // H, head % H
    q += at_b * q_strides[0] + at_h * q_strides[2]
    k += at_b * k_strides[0] + at_h * k_strides[2]
    if PAIR:
        v += at_b * v_strides[0] + at_h * v_strides[2]
        b += at_b * b_strides[0] + at_h * b_strides[2]
    KINDS: tl.constexpr = 4 if PAIR else 2
    TAIL: tl.constexpr = KP if GATE == 2 else 4 * C
    SPLIT: tl.constexpr = CHAIN != "ieee" and KP > 32
    chunks = tl.cdiv(T, C)
    scores += head * chunks * (KINDS * C * C + TAIL)
    states += head * chunks * (K * V)
    erased += at_b * erased_strides[0] + at_h * erased_strides[2]
    wanted += (at_b * T * H + at_h) * V
    o += (at_b * T * H + at_h) * V
    written += (at_b * T * H + at_h) * V
    d, w = tl.arange(0, KP), tl.program_id(1) * VB + tl.arange(0, VB)
    place = d[:, None] * V + w[None, :]
    inside = (d[:, None] < K) & (w[None, :] < V)
    state = tl.zeros((KP, VB), tl.float32)
    if START:
        state = tl.load(initial + head * (K * V) + place, mask=inside, other=0.0)
    state = _blocks(state, SPLIT)
    for n in tl.range(0, chunks, num_stages=STAGES):
        t = n * C + tl.arange(0, C)
        pairs = scores + n * (KINDS * C * C + TAIL)
        fades = pairs + KINDS * C * C + tl.arange(0, C)
        ahead = _flat(state, SPLIT)
        if KEEP:
            tl.store(states + n * (K * V) + place, ahead.to(states.dtype.element_ty), mask=inside)
        e_CV = _rows(wanted, H * V, t, T, w, V) - _dot(_rows(erased, erased_strides[1], t, T, d, K), ahead, CHAIN)
        if KEEP:
            _put_rows(written, H * V, t, T, w, V, e_CV)

        k_KC = _columns(k, k_strides[1], t, T, d, K)
        if PAIR:
            c_KC = _columns(b, b_strides[1], t, T, d, K)
            v_CV = _rows(v, v_strides[1], t, T, w, V)
        else:
            c_KC = k_KC
        if GATE == 1 or (WRITE and GATE == 0):
            to_end = tl.load(fades + 2 * C)[None, :]
            c_KC *= to_end
            if PAIR:
                k_KC *= to_end
        if GATE == 1:
            state *= tl.load(pairs + KINDS * C * C + 4 * C - 1)
        if GATE == 2:
            state *= _blocks(tl.load(pairs + KINDS * C * C + d)[:, None], SPLIT)
        state = _grow(state, c_KC, e_CV, SPLIT, CHAIN)
        if PAIR:
            state = _grow(state, k_KC, v_CV, SPLIT, CHAIN)

        q_CK = _rows(q, q_strides[1], t, T, d, K)
        if GATE == 1:
            q_CK *= tl.load(fades)[:, None]
        if GATE == 0:
            q_CK *= scale
        o_CV = _dot(q_CK, ahead, PRECISION)
        o_CV = _onto(o_CV, _square(pairs + C * C, None, C), e_CV, PRECISION)
        if PAIR:
            o_CV = _onto(o_CV, _square(pairs + 2 * C * C, None, C), v_CV, PRECISION)
        _put_rows(o, H * V, t, T, w, V, o_CV)
    if END:
        tl.store(final + head * (K * V) + place, _flat(state, SPLIT), mask=inside)


@triton.jit(do_not_specialize=["T", "H"])
def _backward_kernel(
    q, k, b, scores, erased, d_o, d_final, d_v, z, d_states, d_initial,
    q_strides, k_strides, b_strides, erased_strides, d_o_strides, T, H, scale,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, VB: tl.constexpr, PAIR: tl.constexpr,
    GATE: tl.constexpr, WRITE: tl.constexpr, START: tl.constexpr, END: tl.constexpr, PRECISION: tl.constexpr,
    CHAIN: tl.constexpr, SOLVE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Derivatives by values and states of one head, a block of value channels; time runs backward."""
    head = tl.program_id(0).to(tl.int64)
    at_b, at_h = head // H, head % H
    q += at_b * q_strides[0] + at_h * q_strides[2]
    k += at_b * k_strides[0] + at_h * k_strides[2]
    d_o += at_b * d_o_strides[0] + at_h * d_o_strides[2]
    if PAIR:
        b += at_b * b_strides[0] + at_h * b_strides[2]
    KINDS: tl.constexpr = 4 if PAIR else 2
    TAIL: tl.constexpr = KP if GATE == 2 else 4 * C
    SPLIT: tl.constexpr = CHAIN != "ieee" and KP > 32
    chunks = tl.cdiv(T, C)
    scores += head * chunks * (KINDS * C * C + TAIL)
    d_states += head * chunks * (K * V)
    erased += at_b * erased_strides[0] + at_h * erased_strides[2]
    d_v += (at_b * T * H + at_h) * V
    if PAIR:
        z += (at_b * T * H + at_h) * V
    d, w = tl.arange(0, KP), tl.program_id(1) * VB + tl.arange(0, VB)
    place = d[:, None] * V + w[None, :]
    inside = (d[:, None] < K) & (w[None, :] < V)
    d_state = tl.zeros((KP, VB), tl.float32)
    if END:
        d_state = tl.load(d_final + head * (K * V) + place, mask=inside, other=0.0)
    d_state = _blocks(d_state, SPLIT)
    for back in tl.range(0, chunks, num_stages=STAGES):
        n = chunks - 1 - back
        t = n * C + tl.arange(0, C)
        pairs = scores + n * (KINDS * C * C + TAIL)
        fades = pairs + KINDS * C * C + tl.arange(0, C)
        behind = _flat(d_state, SPLIT)
        tl.store(d_states + n * (K * V) + place, behind.to(d_states.dtype.element_ty), mask=inside)
        d_o_CV = _rows(d_o, d_o_strides[1], t, T, w, V)
        k_CK = _rows(k, k_strides[1], t, T, d, K)
        if PAIR:
            c_CK = _rows(b, b_strides[1], t, T, d, K)
        else:
            c_CK = k_CK
        if GATE == 1 or (WRITE and GATE == 0):
            to_end = tl.load(fades + 2 * C)[:, None]
            c_CK *= to_end
            k_CK *= to_end
        q_KC = _columns(q, q_strides[1], t, T, d, K)
        if GATE == 1:
            q_KC *= tl.load(fades)[None, :]
            d_state *= tl.load(pairs + KINDS * C * C + 4 * C - 1)
        if GATE == 0:
            q_KC *= scale
        if GATE == 2:
            d_state *= _blocks(tl.load(pairs + KINDS * C * C + d)[:, None], SPLIT)

        d_e_CV = _dot(_square_turned(pairs + C * C, None, C), d_o_CV, PRECISION)
        d_e_CV = _onto(d_e_CV, c_CK, behind, CHAIN)
        d_state = _grow(d_state, q_KC, d_o_CV, SPLIT, PRECISION)
        d_state = _grow(d_state, -_columns(erased, erased_strides[1], t, T, d, K), d_e_CV, SPLIT, CHAIN)
        z_CV = _dot(_square_turned(pairs, None, C), d_e_CV, SOLVE)
        if PAIR:
            d_v_CV = _dot(_square_turned(pairs + 2 * C * C, None, C), d_o_CV, PRECISION)
            d_v_CV = _onto(d_v_CV, k_CK, behind, PRECISION)
            d_v_CV -= _dot(_square_turned(pairs + 3 * C * C, None, C), z_CV, PRECISION)
            _put_rows(z, H * V, t, T, w, V, z_CV)
            _put_rows(d_v, H * V, t, T, w, V, d_v_CV)
        else:
            _put_rows(d_v, H * V, t, T, w, V, z_CV)
    if START:
        tl.store(d_initial + head * (K * V) + place, _flat(d_state, SPLIT), mask=inside)


@triton.jit(do_not_specialize=["T", "H"])
def _gradient_kernel(
    q, k, v, a, b, g, beta, states, d_states, written, d_o, z, d_pairs, d_q, d_k, d_a, d_b, d_g, d_beta,
    q_strides, k_strides, v_strides, a_strides, b_strides, g_strides, beta_strides, d_o_strides, T, H, scale,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr, KP: tl.constexpr, KB: tl.constexpr,
    VP: tl.constexpr, VB: tl.constexpr, PAIR: tl.constexpr, GATE: tl.constexpr, WRITE: tl.constexpr,
    PRECISION: tl.constexpr, CHAIN: tl.constexpr, SOLVE: tl.constexpr,
):  # fmt: skip
    """Derivatives by q, k, a, b and the gates of one chunk of one head."""
    head, n = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at_b, at_h = head // H, head % H
    q += at_b * q_strides[0] + at_h * q_strides[2]
    k += at_b * k_strides[0] + at_h * k_strides[2]
    d_o += at_b * d_o_strides[0] + at_h * d_o_strides[2]
    own_head = at_b * T * H + at_h
    written += own_head * V
    z += own_head * V
    d_q += own_head * K
    d_k += own_head * K
    if PAIR:
        v += at_b * v_strides[0] + at_h * v_strides[2]
        a += at_b * a_strides[0] + at_h * a_strides[2]
        b += at_b * b_strides[0] + at_h * b_strides[2]
        d_a += own_head * K
        d_b += own_head * K
    if GATE > 0:
        g += at_b * g_strides[0] + at_h * g_strides[2]
        d_g += own_head * K if GATE == 2 else own_head
    states += (head * tl.num_programs(1) + n) * (K * V)
    d_states += (head * tl.num_programs(1) + n) * (K * V)
    KINDS: tl.constexpr = 4 if PAIR else 2
    d_pairs += (head * tl.num_programs(1) + n) * (KINDS * C * C)
    i = tl.arange(0, C)
    t = n * C + i

    d_erases = tl.zeros((C, C), tl.float32)
    d_reads = tl.zeros((C, C), tl.float32)
    d_sees = tl.zeros((C, C), tl.float32)
    d_hears = tl.zeros((C, C), tl.float32)
    d_reads_own = tl.zeros((C,), tl.float32)
    d_sees_own = tl.zeros((C,), tl.float32)
    for start in range(0, VP, VB):
        w = start + tl.arange(0, VB)
        d_o_CV = _rows(d_o, d_o_strides[1], t, T, w, V)
        z_CV = _rows(z, H * V, t, T, w, V)
        e_VC = _columns(written, H * V, t, T, w, V)
        d_reads = _onto(d_reads, d_o_CV, e_VC, PRECISION)
        d_erases = _onto(d_erases, z_CV, e_VC, PRECISION)
        d_reads_own += tl.sum(d_o_CV * _rows(written, H * V, t, T, w, V), 1) * scale
        if PAIR:
            v_VC = _columns(v, v_strides[1], t, T, w, V)
            d_sees = _onto(d_sees, d_o_CV, v_VC, PRECISION)
            d_hears = _onto(d_hears, z_CV, v_VC, PRECISION)
            d_sees_own += tl.sum(d_o_CV * _rows(v, v_strides[1], t, T, w, V), 1) * scale
    d_erases, d_reads, d_sees, d_hears = -d_erases, d_reads * scale, d_sees * scale, -d_hears
    if GATE == 1:
        g_C = _gates(g, g_strides[1], t, T)
        high, low = _sums(g_C, CHAIN == "ieee")
        to_token = tl.exp(high)[:, None]
        to_read = tl.exp(tl.minimum(high - g_C, 0.0) if PAIR else high)[:, None]
        to_end = _to_end(g_C)[:, None]
        over = tl.exp(tl.sum(g_C, 0))
        fade = _pair_fades(high, low, tl.zeros_like(g_C), C)
        d_reads *= fade
        if PAIR:
            d_sees *= fade
            fade = _pair_fades(high, low, g_C, C)
            d_hears *= fade
        d_erases *= fade
    # Left in memory and read again, also the other way around: there are too many for registers.
    below = i[:, None] > i[None, :]
    place = i[:, None] * C + i[None, :]
    tl.store(d_pairs + place, tl.where(below, d_erases, 0.0))
    tl.store(d_pairs + C * C + place, tl.where(below, d_reads, 0.0))
    if PAIR:
        tl.store(d_pairs + 2 * C * C + place, tl.where(below, d_sees, 0.0))
        tl.store(d_pairs + 3 * C * C + place, tl.where(below, d_hears, 0.0))
    tl.debug_barrier()
    if WRITE:
        beta_C = _gates(beta + at_b * beta_strides[0] + at_h * beta_strides[2], beta_strides[1], t, T)
    d_beta_C = tl.zeros((C,), tl.float32)
    d_until_C = tl.zeros((C,), tl.float32)
    d_before_C = tl.zeros((C,), tl.float32)
    d_over = 0.0

    for start in range(0, KP, KB):
        d = start + tl.arange(0, KB)
        d_q_CK = tl.zeros((C, KB), tl.float32)
        d_r_CK = tl.zeros((C, KB), tl.float32)
        d_c_CK = tl.zeros((C, KB), tl.float32)
        d_k_CK = tl.zeros((C, KB), tl.float32)
        kept_K = tl.zeros((KB,), tl.float32)
        for first in range(0, VP, VB):
            w = first + tl.arange(0, VB)
            inside = (w[:, None] < V) & (d[None, :] < K)
            s_VK = tl.load(states + d[None, :] * V + w[:, None], mask=inside, other=0.0).to(tl.float32)
            d_s_VK = tl.load(d_states + d[None, :] * V + w[:, None], mask=inside, other=0.0).to(tl.float32)
            d_o_CV = _rows(d_o, d_o_strides[1], t, T, w, V)
            e_CV = _rows(written, H * V, t, T, w, V)
            z_CV = _rows(z, H * V, t, T, w, V)
            d_q_CK = _onto(d_q_CK, d_o_CV, s_VK, PRECISION)
            d_r_CK = _onto(d_r_CK, z_CV, s_VK, PRECISION)
            d_c_CK = _onto(d_c_CK, e_CV, d_s_VK, PRECISION)
            if PAIR:
                v_CV = _rows(v, v_strides[1], t, T, w, V)
                d_k_CK = _onto(d_k_CK, v_CV, d_s_VK, PRECISION)
            if GATE > 0:
                kept_K += tl.sum(s_VK * d_s_VK, 0)
        d_q_CK *= scale
        d_r_CK = -d_r_CK
        q_CK = _rows(q, q_strides[1], t, T, d, K)
        k_CK = _rows(k, k_strides[1], t, T, d, K)
        if PAIR:
            r_CK = _rows(a, a_strides[1], t, T, d, K)
            c_CK = _rows(b, b_strides[1], t, T, d, K)
        else:
            r_CK = k_CK
            c_CK = k_CK
        if WRITE:
            c_CK *= beta_C[:, None]
        if GATE == 1:
            d_q_CK *= to_token
            d_r_CK *= to_read
            d_c_CK *= to_end
            d_k_CK *= to_end
        if GATE == 2:
            g_CK = _rows(g, g_strides[1], t, T, d, K)
            until = tl.cumsum(g_CK, 0)
            d_q_CK *= tl.exp(until)
            d_r_CK *= tl.exp(tl.minimum(until - g_CK, 0.0) if PAIR else until)
            to_end_CK = tl.exp(tl.minimum(tl.cumsum(g_CK, 0, reverse=True) - g_CK, 0.0))
            d_c_CK *= to_end_CK
            d_k_CK *= to_end_CK
            over_K = tl.exp(tl.sum(g_CK, 0))
        if GATE == 1:
            d_over += over * tl.sum(kept_K, 0) + tl.sum(c_CK * d_c_CK)
            if PAIR:
                d_over += tl.sum(k_CK * d_k_CK)
        if GATE == 2:
            d_over_K = over_K * kept_K + tl.sum(c_CK * d_c_CK, 0)
            if PAIR:
                d_over_K += tl.sum(k_CK * d_k_CK, 0)

        if GATE < 2:
            # A fade's derivative is a difference between the two tokens of a pair.
            INTRA: tl.constexpr = CHAIN if GATE == 1 else PRECISION
            d_q_CK = _onto(d_q_CK, _square(d_pairs + C * C, None, C), c_CK, INTRA)
            d_r_CK = _onto(d_r_CK, _square(d_pairs, None, C), c_CK, INTRA)
            d_c_CK = _onto(d_c_CK, _square_turned(d_pairs + C * C, None, C), q_CK, INTRA)
            d_c_CK = _onto(d_c_CK, _square_turned(d_pairs, None, C), r_CK, INTRA)
            if PAIR:
                d_q_CK = _onto(d_q_CK, _square(d_pairs + 2 * C * C, None, C), k_CK, INTRA)
                d_r_CK = _onto(d_r_CK, _square(d_pairs + 3 * C * C, None, C), k_CK, INTRA)
                d_k_CK = _onto(d_k_CK, _square_turned(d_pairs + 2 * C * C, None, C), q_CK, INTRA)
                d_k_CK = _onto(d_k_CK, _square_turned(d_pairs + 3 * C * C, None, C), r_CK, INTRA)
        else:
            for level in range(LEVELS):
                now = _together(level, C, CHAIN == "ieee", False)
                now_turned = _together(level, C, CHAIN == "ieee", True)
                row, read, column = _level_fades(g_CK, level, C, CHAIN == "ieee", PAIR)
                c_faded = c_CK * column
                to_q = _dot(_square(d_pairs + C * C, now, C), c_faded, PRECISION)
                to_r = _dot(_square(d_pairs, now, C), c_faded, PRECISION)
                if PAIR:
                    k_faded = k_CK * column
                    to_q = _onto(to_q, _square(d_pairs + 2 * C * C, now, C), k_faded, PRECISION)
                    to_r = _onto(to_r, _square(d_pairs + 3 * C * C, now, C), k_faded, PRECISION)
                d_q_CK += to_q * row
                d_r_CK += to_r * read
                q_faded, r_faded = q_CK * row, r_CK * read
                to_c = _dot(_square_turned(d_pairs + C * C, now_turned, C), q_faded, PRECISION)
                to_c = _onto(to_c, _square_turned(d_pairs, now_turned, C), r_faded, PRECISION)
                d_c_CK += to_c * column
                if PAIR:
                    to_k = _dot(_square_turned(d_pairs + 2 * C * C, now_turned, C), q_faded, PRECISION)
                    to_k = _onto(to_k, _square_turned(d_pairs + 3 * C * C, now_turned, C), r_faded, PRECISION)
                    d_k_CK += to_k * column

        # A pair (t, t) does not fade: it comes after the derivatives of the fades.
        if GATE > 0:
            d_read_CK = r_CK * d_r_CK
            d_until_CK = q_CK * d_q_CK + d_read_CK - c_CK * d_c_CK
            if PAIR:
                d_until_CK -= k_CK * d_k_CK
            if GATE == 1:
                d_until_C += tl.sum(d_until_CK, 1)
                if PAIR:
                    d_before_C += tl.sum(d_read_CK, 1)
            else:
                d_g_CK = tl.cumsum(d_until_CK, 0, reverse=True) + d_over_K[None, :]
                if PAIR:
                    d_g_CK -= d_read_CK
                _put_rows(d_g, H * K, t, T, d, K, d_g_CK)
        d_q_CK += d_reads_own[:, None] * c_CK
        d_c_CK += d_reads_own[:, None] * q_CK
        if PAIR:
            d_q_CK += d_sees_own[:, None] * k_CK
            d_k_CK += d_sees_own[:, None] * q_CK
            _put_rows(d_a, H * K, t, T, d, K, d_r_CK)
            _put_rows(d_b, H * K, t, T, d, K, d_c_CK)
        elif WRITE:
            d_beta_C += tl.sum(k_CK * d_c_CK, 1)
            d_k_CK = d_r_CK + beta_C[:, None] * d_c_CK
        else:
            d_k_CK = d_r_CK + d_c_CK
        _put_rows(d_q, H * K, t, T, d, K, d_q_CK)
        _put_rows(d_k, H * K, t, T, d, K, d_k_CK)
    if GATE == 1:
        tl.store(d_g + t * H, tl.cumsum(d_until_C, 0, reverse=True) + d_over - d_before_C, mask=t < T)
    if WRITE:
        tl.store(d_beta + own_head + t * H, d_beta_C, mask=t < T)


# A whole sequence in one program


@triton.jit(do_not_specialize=["T", "H"])
def _whole_forward_kernel(
    q, k, v, a, b, g, beta, initial, o, final, inverses, written, states,
    q_strides, k_strides, v_strides, a_strides, b_strides, g_strides, beta_strides, T, H, scale,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr, PAIR: tl.constexpr,
    GATE: tl.constexpr, WRITE: tl.constexpr, START: tl.constexpr, KEEP: tl.constexpr, END: tl.constexpr,
    PRECISION: tl.constexpr, CHAIN: tl.constexpr, SOLVE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Outputs of one head."""
    head = tl.program_id(0).to(tl.int64)
    at_b, at_h = head // H, head % H
    q += at_b * q_strides[0] + at_h * q_strides[2]
    k += at_b * k_strides[0] + at_h * k_strides[2]
    v += at_b * v_strides[0] + at_h * v_strides[2]
    if PAIR:
        a += at_b * a_strides[0] + at_h * a_strides[2]
        b += at_b * b_strides[0] + at_h * b_strides[2]
    if GATE > 0:
        g += at_b * g_strides[0] + at_h * g_strides[2]
    if WRITE:
        beta += at_b * beta_strides[0] + at_h * beta_strides[2]
    chunks = tl.cdiv(T, C)
    inverses += head * chunks * (C * C)
    states += head * chunks * (K * V)
    o += (at_b * T * H + at_h) * V
    written += (at_b * T * H + at_h) * V
    i, d, w = tl.arange(0, C), tl.arange(0, KP), tl.arange(0, VP)
    square = i[:, None] * C + i[None, :]
    until_now, before_now = i[:, None] >= i[None, :], i[:, None] > i[None, :]
    place = d[:, None] * V + w[None, :]
    inside = (d[:, None] < K) & (w[None, :] < V)
    SPLIT: tl.constexpr = CHAIN != "ieee" and KP > 32
    state = tl.zeros((KP, VP), tl.float32)
    if START:
        state = tl.load(initial + head * (K * V) + place, mask=inside, other=0.0)
    state = _blocks(state, SPLIT)
    for n in tl.range(0, chunks, num_stages=STAGES):
        t = n * C + i
        q_CK = _rows(q, q_strides[1], t, T, d, K)
        k_CK = _rows(k, k_strides[1], t, T, d, K)
        v_CV = _rows(v, v_strides[1], t, T, w, V)
        if PAIR:
            r_CK = _rows(a, a_strides[1], t, T, d, K)
            c_CK = _rows(b, b_strides[1], t, T, d, K)
        else:
            r_CK = k_CK
            c_CK = k_CK
        ahead = _flat(state, SPLIT)
        if KEEP:
            tl.store(states + n * (K * V) + place, ahead.to(states.dtype.element_ty), mask=inside)

        # Pairs of tokens
        if GATE < 2:
            c_KC = tl.trans(c_CK)
            reads = _dot(q_CK, c_KC, PRECISION)
            erases = _dot(r_CK, c_KC, PRECISION)
            if PAIR:
                k_KC = tl.trans(k_CK)
                sees = _dot(q_CK, k_KC, PRECISION)
                hears = _dot(r_CK, k_KC, PRECISION)
        else:
            g_CK = _rows(g, g_strides[1], t, T, d, K)
            until = tl.cumsum(g_CK, 0)
            row, read, column = _level_fades(g_CK, 0, C, False, PAIR)
            c_KC = tl.trans(c_CK * column)
            reads = _dot(q_CK * row, c_KC, PRECISION)
            erases = _dot(r_CK * read, c_KC, CHAIN)
            if PAIR:
                k_KC = tl.trans(k_CK * column)
                sees = _dot(q_CK * row, k_KC, PRECISION)
                hears = _dot(r_CK * read, k_KC, PRECISION)
        strength = tl.full((C,), 1.0, tl.float32)
        if WRITE:
            strength = _gates(beta, beta_strides[1], t, T)
            reads *= strength[None, :]
            erases *= strength[None, :]
        if GATE == 1:
            g_C = _gates(g, g_strides[1], t, T)
            high, low = _sums(g_C, CHAIN == "ieee")
            fade = _pair_fades(high, low, tl.zeros_like(g_C), C)
            reads *= fade
            if PAIR:
                sees *= fade
                fade = _pair_fades(high, low, g_C, C)
                hears *= fade
                r_CK *= tl.exp(tl.minimum(high - g_C, 0.0))[:, None]
            else:
                r_CK *= tl.exp(high)[:, None]
            erases *= fade
            q_CK *= tl.exp(high)[:, None]
            to_end = _to_end(g_C)
            strength *= to_end
            if PAIR:
                k_CK *= to_end[:, None]
        if GATE == 2:
            q_CK *= tl.exp(until)
            r_CK *= tl.exp(tl.minimum(until - g_CK, 0.0) if PAIR else until)
            to_end_CK = tl.exp(tl.minimum(tl.sum(g_CK, 0)[None, :] - until, 0.0))
            c_CK *= to_end_CK
            k_CK *= to_end_CK
        if GATE == 1 or WRITE:
            c_CK *= strength[:, None]
        inverse = _inverse(tl.where(before_now, erases, 0.0), C, SOLVE)

        # What is written, what is read
        if PAIR:
            wanted = -_dot(tl.where(before_now, hears, 0.0), v_CV, CHAIN) - _dot(r_CK, ahead, CHAIN)
        else:
            wanted = v_CV - _dot(r_CK, ahead, CHAIN)
        e_CV = _dot(inverse, wanted, SOLVE)
        if KEEP:
            tl.store(inverses + n * (C * C) + square, inverse.to(inverses.dtype.element_ty))
            _put_rows(written, H * V, t, T, w, V, e_CV)
        o_CV = _dot(q_CK, ahead, PRECISION)
        o_CV = _onto(o_CV, tl.where(until_now, reads, 0.0), e_CV, PRECISION)
        if PAIR:
            o_CV = _onto(o_CV, tl.where(until_now, sees, 0.0), v_CV, PRECISION)
        _put_rows(o, H * V, t, T, w, V, o_CV * scale)
        if GATE == 1:
            state *= tl.exp(tl.sum(g_C, 0))
        if GATE == 2:
            state *= _blocks(tl.exp(tl.sum(tl.trans(g_CK), 1))[:, None], SPLIT)
        state = _grow(state, tl.trans(c_CK), e_CV, SPLIT, CHAIN)
        if PAIR:
            state = _grow(state, tl.trans(k_CK), v_CV, SPLIT, CHAIN)
    if END:
        tl.store(final + head * (K * V) + place, _flat(state, SPLIT), mask=inside)


@triton.jit(do_not_specialize=["T", "H"])
def _whole_backward_kernel(
    q, k, v, a, b, g, beta, inverses, written, states, d_o, d_final, d_q, d_k, d_v, d_g, d_beta, d_a, d_b, d_initial,
    q_strides, k_strides, v_strides, a_strides, b_strides, g_strides, beta_strides, d_o_strides, T, H, scale,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr, PAIR: tl.constexpr,
    GATE: tl.constexpr, WRITE: tl.constexpr, START: tl.constexpr, END: tl.constexpr, PRECISION: tl.constexpr,
    CHAIN: tl.constexpr, SOLVE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """All derivatives of one head; time runs backward."""
    head = tl.program_id(0).to(tl.int64)
    at_b, at_h = head // H, head % H
    q += at_b * q_strides[0] + at_h * q_strides[2]
    k += at_b * k_strides[0] + at_h * k_strides[2]
    d_o += at_b * d_o_strides[0] + at_h * d_o_strides[2]
    own_head = at_b * T * H + at_h
    written += own_head * V
    d_q += own_head * K
    d_k += own_head * K
    d_v += own_head * V
    if PAIR:
        v += at_b * v_strides[0] + at_h * v_strides[2]
        a += at_b * a_strides[0] + at_h * a_strides[2]
        b += at_b * b_strides[0] + at_h * b_strides[2]
        d_a += own_head * K
        d_b += own_head * K
    if GATE > 0:
        g += at_b * g_strides[0] + at_h * g_strides[2]
        d_g += own_head * K if GATE == 2 else own_head
    if WRITE:
        beta += at_b * beta_strides[0] + at_h * beta_strides[2]
        d_beta += own_head
    chunks = tl.cdiv(T, C)
    inverses += head * chunks * (C * C)
    states += head * chunks * (K * V)
    INTRA: tl.constexpr = CHAIN if GATE > 0 else PRECISION
    i, d, w = tl.arange(0, C), tl.arange(0, KP), tl.arange(0, VP)
    square = i[:, None] * C + i[None, :]
    until_now, before_now = i[:, None] >= i[None, :], i[:, None] > i[None, :]
    place = d[:, None] * V + w[None, :]
    inside = (d[:, None] < K) & (w[None, :] < V)
    SPLIT: tl.constexpr = CHAIN != "ieee" and KP > 32
    d_state = tl.zeros((KP, VP), tl.float32)
    if END:
        d_state = tl.load(d_final + head * (K * V) + place, mask=inside, other=0.0)
    d_state = _blocks(d_state, SPLIT)
    for back in tl.range(0, chunks, num_stages=STAGES):
        n = chunks - 1 - back
        t = n * C + i
        q_CK = _rows(q, q_strides[1], t, T, d, K)
        k_CK = _rows(k, k_strides[1], t, T, d, K)
        d_o_CV = _rows(d_o, d_o_strides[1], t, T, w, V)
        e_CV = _rows(written, H * V, t, T, w, V)
        inverse = tl.load(inverses + n * (C * C) + square).to(tl.float32)
        state = tl.load(states + n * (K * V) + place, mask=inside, other=0.0).to(tl.float32)
        if PAIR:
            v_CV = _rows(v, v_strides[1], t, T, w, V)
            r_CK = _rows(a, a_strides[1], t, T, d, K)
            c_CK = _rows(b, b_strides[1], t, T, d, K)
        else:
            r_CK = k_CK
            c_CK = k_CK
        if WRITE:
            beta_C = _gates(beta, beta_strides[1], t, T)
            c_CK *= beta_C[:, None]

        # Fades
        if GATE == 1:
            g_C = _gates(g, g_strides[1], t, T)
            high, low = _sums(g_C, CHAIN == "ieee")
            to_token = tl.exp(high)[:, None]
            to_read = tl.exp(tl.minimum(high - g_C, 0.0) if PAIR else high)[:, None]
            to_end = _to_end(g_C)[:, None]
            over = tl.exp(tl.sum(g_C, 0))
            fade = _pair_fades(high, low, tl.zeros_like(g_C), C)
            fade_read = _pair_fades(high, low, g_C, C) if PAIR else fade
        if GATE == 2:
            g_CK = _rows(g, g_strides[1], t, T, d, K)
            until = tl.cumsum(g_CK, 0)
            to_token = tl.exp(until)
            to_read = tl.exp(tl.minimum(until - g_CK, 0.0)) if PAIR else to_token
            to_end = tl.exp(tl.minimum(tl.sum(g_CK, 0)[None, :] - until, 0.0))
            over = tl.exp(tl.sum(tl.trans(g_CK), 1))[:, None]
            row, read, column = _level_fades(g_CK, 0, C, False, PAIR)
        if GATE > 0:
            q_faded, r_faded, c_faded = q_CK * to_token, r_CK * to_read, c_CK * to_end
        else:
            q_faded, r_faded, c_faded = q_CK, r_CK, c_CK
        if GATE == 2:
            q_pair, r_pair, c_pair = q_CK * row, r_CK * read, c_CK * column
        else:
            q_pair, r_pair, c_pair = q_CK, r_CK, c_CK

        # Pairs of tokens as forward had them, and what is written
        reads = _dot(q_pair, tl.trans(c_pair), PRECISION)
        if GATE == 1:
            reads *= fade
        reads = tl.where(until_now, reads * scale, 0.0)
        behind = _flat(d_state, SPLIT)
        d_e_CV = _dot(c_faded, behind, CHAIN)
        d_e_CV = _onto(d_e_CV, tl.trans(reads), d_o_CV, PRECISION)
        z_CV = _dot(tl.trans(inverse), d_e_CV, SOLVE)
        if PAIR:
            k_faded = k_CK * to_end if GATE > 0 else k_CK
            k_pair = k_CK * column if GATE == 2 else k_CK
            k_KC = tl.trans(k_pair)
            sees = _dot(q_pair, k_KC, PRECISION)
            hears = _dot(r_pair, k_KC, PRECISION)
            if GATE == 1:
                sees *= fade
                hears *= fade_read
            d_v_CV = _dot(k_faded, behind, PRECISION)
            d_v_CV = _onto(d_v_CV, tl.trans(tl.where(until_now, sees * scale, 0.0)), d_o_CV, PRECISION)
            d_v_CV -= _dot(tl.trans(tl.where(before_now, hears, 0.0)), z_CV, PRECISION)
            _put_rows(d_v, H * V, t, T, w, V, d_v_CV)
        else:
            _put_rows(d_v, H * V, t, T, w, V, z_CV)

        # Through the states
        state_VK, d_state_VK = tl.trans(state), tl.trans(behind)
        d_q_CK = _dot(d_o_CV, state_VK, PRECISION) * scale
        d_r_CK = -_dot(z_CV, state_VK, PRECISION)
        d_c_CK = _dot(e_CV, d_state_VK, PRECISION)
        if PAIR:
            d_k_CK = _dot(v_CV, d_state_VK, PRECISION)
        if GATE > 0:
            d_q_CK *= to_token
            d_r_CK *= to_read
            d_c_CK *= to_end
            if PAIR:
                d_k_CK *= to_end
        if GATE == 1:
            d_over = over * tl.sum(state * behind) + tl.sum(c_CK * d_c_CK)
            if PAIR:
                d_over += tl.sum(k_CK * d_k_CK)
        if GATE == 2:
            d_over = tl.sum(state_VK * d_state_VK, 0) * tl.exp(tl.sum(g_CK, 0)) + tl.sum(c_CK * d_c_CK, 0)
            if PAIR:
                d_over += tl.sum(k_CK * d_k_CK, 0)

        # Through the pairs; a pair (t, t) does not fade: it comes after the derivatives of the fades
        e_VC = tl.trans(e_CV)
        d_reads = tl.where(before_now, _dot(d_o_CV, e_VC, PRECISION) * scale, 0.0)
        d_erases = tl.where(before_now, -_dot(z_CV, e_VC, PRECISION), 0.0)
        if PAIR:
            v_VC = tl.trans(v_CV)
            d_sees = tl.where(before_now, _dot(d_o_CV, v_VC, PRECISION) * scale, 0.0)
            d_hears = tl.where(before_now, -_dot(z_CV, v_VC, PRECISION), 0.0)
        if GATE == 1:
            d_reads *= fade
            d_erases *= fade_read
            if PAIR:
                d_sees *= fade
                d_hears *= fade_read
        to_q = _dot(d_reads, c_pair, INTRA)
        to_r = _dot(d_erases, c_pair, INTRA)
        to_c = _dot(tl.trans(d_reads), q_pair, INTRA)
        to_c = _onto(to_c, tl.trans(d_erases), r_pair, INTRA)
        if PAIR:
            to_q = _onto(to_q, d_sees, k_pair, INTRA)
            to_r = _onto(to_r, d_hears, k_pair, INTRA)
            to_k = _dot(tl.trans(d_sees), q_pair, INTRA)
            to_k = _onto(to_k, tl.trans(d_hears), r_pair, INTRA)
            d_k_CK += to_k * column if GATE == 2 else to_k
        if GATE == 2:
            to_q *= row
            to_r *= read
            to_c *= column
        d_q_CK += to_q
        d_r_CK += to_r
        d_c_CK += to_c
        if GATE > 0:
            d_read_CK = r_CK * d_r_CK
            d_until_CK = q_CK * d_q_CK + d_read_CK - c_CK * d_c_CK
            if PAIR:
                d_until_CK -= k_CK * d_k_CK
        if GATE == 1:
            d_g_C = tl.cumsum(tl.sum(d_until_CK, 1), 0, reverse=True) + d_over
            if PAIR:
                d_g_C -= tl.sum(d_read_CK, 1)
            tl.store(d_g + t * H, d_g_C, mask=t < T)
        if GATE == 2:
            d_g_CK = tl.cumsum(d_until_CK, 0, reverse=True) + d_over[None, :]
            if PAIR:
                d_g_CK -= d_read_CK
            _put_rows(d_g, H * K, t, T, d, K, d_g_CK)
        d_own = tl.sum(d_o_CV * e_CV, 1)[:, None] * scale
        d_q_CK += d_own * c_CK
        d_c_CK += d_own * q_CK
        if PAIR:
            d_own = tl.sum(d_o_CV * v_CV, 1)[:, None] * scale
            d_q_CK += d_own * k_CK
            d_k_CK += d_own * q_CK
            _put_rows(d_a, H * K, t, T, d, K, d_r_CK)
            _put_rows(d_b, H * K, t, T, d, K, d_c_CK)
        elif WRITE:
            tl.store(d_beta + t * H, tl.sum(k_CK * d_c_CK, 1), mask=t < T)
            d_k_CK = d_r_CK + beta_C[:, None] * d_c_CK
        else:
            d_k_CK = d_r_CK + d_c_CK
        _put_rows(d_q, H * K, t, T, d, K, d_q_CK)
        _put_rows(d_k, H * K, t, T, d, K, d_k_CK)

        if GATE > 0:
            d_state *= _blocks(over, SPLIT) if GATE == 2 else over
        d_state = _grow(d_state, tl.trans(q_faded), d_o_CV * scale, SPLIT, PRECISION)
        d_state = _grow(d_state, -tl.trans(r_faded), z_CV, SPLIT, CHAIN)
    if START:
        tl.store(d_initial + head * (K * V) + place, _flat(d_state, SPLIT), mask=inside)


# Launchers


class _Plan(NamedTuple):
    """What all launches of one call share."""

    table: _Table
    whole: _Whole | None
    batch: int
    time: int
    heads: int
    key_width: int
    value_width: int
    chunks: int
    flags: dict[str, Any]

    @property
    def solve(self) -> str:
        """Of the inverse. What goes on to products of its own, chunk by chunk, keeps 21 bits: three tf32 products each."""
        chain: str = self.flags["CHAIN"]
        return "tf32x3" if chain == "tf32" and self.whole is None else chain

    @property
    def erased_shape(self) -> tuple[int, ...]:
        many = self.flags["GATE"] == CHANNEL_GATE
        kinds = (4 if self.flags["PAIR"] else 3) if many else 1
        return self.batch, kinds, self.time, self.heads, self.key_width


class _Faded(NamedTuple):
    """What walks take of queries, columns and rows: with their fades already, where decays go by channel."""

    q: Tensor
    k: Tensor
    b: Tensor | None
    r: Tensor

    @staticmethod
    def of(q: Tensor, k: Tensor, b: Tensor | None, erased: Tensor) -> "_Faded":
        r, *faded = erased.unbind(1)
        if not faded:
            return _Faded(q, k, b, r)
        return _Faded(faded[0], faded[1], None, r) if b is None else _Faded(faded[0], faded[2], faded[1], r)


def _plan(q: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None, a: Tensor | None) -> _Plan:
    batch, time, heads, value_width = v.shape
    key_width = q.shape[-1]
    gate = NO_GATE if log_decay is None else HEAD_GATE if log_decay.ndim == 3 else CHANNEL_GATE
    exact = v.dtype == torch.float32
    table = _table(key_width, value_width, a is not None, gate == CHANNEL_GATE, exact)
    paired = a is not None
    whole = _whole(key_width, value_width, gate, paired, exact, time, batch * heads)
    chunk = table.chunk if whole is None else whole.chunk
    # What a pair erases and what it writes need not cancel: with keys that repeat its state grows, and rounding with it.
    frail = paired and gate != CHANNEL_GATE
    chain = "ieee" if exact else "tf32x3" if frail else "tf32"
    flags = {
        "K": key_width,
        "C": chunk,
        "KP": padded(key_width),
        "PAIR": paired,
        "GATE": gate,
        "WRITE": beta is not None,
        "PRECISION": "bf16" if v.dtype == torch.bfloat16 and not frail else "tf32" if frail and not exact else chain,
        "CHAIN": chain,
    }
    chunks = triton.cdiv(time, chunk)
    return _Plan(table, whole, batch, time, heads, key_width, value_width, chunks, flags)


def _strided(x: Tensor) -> Tensor:
    """With neighbours next to each other along the last axis, as it is if it can be."""
    return x if x.stride(-1) == 1 or x.ndim == 3 else x.contiguous()


def _strides(x: Tensor | None) -> tuple[int, int, int]:
    return (0, 0, 0) if x is None else (x.stride(0), x.stride(1), x.stride(2))


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    initial: Tensor | None,
    scale: float,
    return_state: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    plan = _plan(q, v, log_decay, beta, a)
    table = plan.table
    q, k, v = (_strided(x) for x in (q, k, v))
    g, beta, a, b = (None if x is None else _strided(x) for x in (log_decay, beta, a, b))
    initial = None if initial is None else initial.contiguous()
    o, final, scores, erased, written, states = _forward_form(
        q, k, v, log_decay, beta, a, b, initial, scale, return_state, keep
    )
    programs = plan.batch * plan.heads
    gates = (_strides(a), _strides(b), _strides(g), _strides(beta))
    if plan.whole is not None:
        _whole_forward_kernel[(programs,)](
            q, k, v, a, b, g, beta, initial, o, final, scores, written, states,
            _strides(q), _strides(k), _strides(v), *gates, plan.time, plan.heads, scale,
            **plan.flags, V=plan.value_width, VP=padded(plan.value_width), START=initial is not None, KEEP=keep,
            END=return_state, SOLVE=plan.solve, STAGES=plan.whole.forward_stages,
            num_warps=plan.whole.forward_warps,
        )  # fmt: skip
        return o, final, scores, erased, written, states
    if not keep:
        scores, erased = scores.new_empty(_scores_shape(plan)), k.new_empty(plan.erased_shape)
    wanted = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    values = padded(plan.value_width)
    _pairs_kernel[(programs, plan.chunks)](
        q, k, v, a, b, g, beta, scores, erased, wanted, _strides(q), _strides(k), _strides(v), *gates,
        plan.time, plan.heads, scale, **plan.flags, **_levels(plan), V=plan.value_width, VP=values,
        VB=min(table.pair_block, values), KB=min(table.pair_block, plan.flags["KP"]), SOLVE=plan.solve,
        num_warps=table.pair_warps, num_stages=1,
    )  # fmt: skip
    faded = _Faded.of(q, k, b, erased)
    _forward_kernel[(programs, triton.cdiv(plan.value_width, table.value_block))](
        faded.q, faded.k, v, faded.b, scores, faded.r, wanted, initial, o, written, states, final,
        _strides(faded.q), _strides(faded.k), _strides(v), _strides(faded.b), _strides(faded.r),
        plan.time, plan.heads, scale,
        **plan.flags, V=plan.value_width, VB=table.value_block, START=initial is not None, KEEP=keep, END=return_state,
        STAGES=table.stages, num_warps=table.walk_warps,
    )  # fmt: skip
    if not keep:
        scores, erased = (x.new_empty(plan.batch, 0) for x in (scores, erased))
    return o, final, scores, erased, written, states


def _forward_form(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    initial: Tensor | None,
    scale: float,
    return_state: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    plan = _plan(q, v, log_decay, beta, a)
    batch, heads, sizes = plan.batch, plan.heads, (plan.key_width, plan.value_width)
    state = (batch, heads, *sizes) if return_state else (batch, 0)
    kept = torch.bfloat16 if v.dtype == torch.bfloat16 else torch.float32
    return (
        v.new_empty(v.shape),
        v.new_empty(state, dtype=torch.float32),
        v.new_empty(_scores_shape(plan) if keep else (batch, 0), dtype=torch.float32),
        k.new_empty(plan.erased_shape if keep and plan.whole is None else (batch, 0)),
        v.new_empty(v.shape if keep else (batch, 0)),
        v.new_empty((batch, heads, plan.chunks, *sizes) if keep else (batch, 0), dtype=kept),
    )


def _backward(
    d_o: Tensor,
    d_final: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    initial: Tensor | None,
    scale: float,
    return_state: bool,
    keep: bool,
    scores: Tensor,
    erased: Tensor,
    written: Tensor,
    states: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    plan = _plan(q, v, log_decay, beta, a)
    table = plan.table
    gradients = _backward_form(
        d_o, d_final, q, k, v, log_decay, beta, a, b, initial, scale, return_state, keep, scores, erased, written,
        states,
    )  # fmt: skip
    d_q, d_k, d_v, d_g, d_beta, d_a, d_b, d_initial = gradients
    q, k, v, d_o = (_strided(x) for x in (q, k, v, d_o))
    g, beta, a, b = (None if x is None else _strided(x) for x in (log_decay, beta, a, b))
    scores, erased, written, states, d_final = (x.contiguous() for x in (scores, erased, written, states, d_final))
    programs = plan.batch * plan.heads
    gates = (_strides(a), _strides(b), _strides(g), _strides(beta))
    if plan.whole is not None:
        _whole_backward_kernel[(programs,)](
            q, k, v, a, b, g, beta, scores, written, states, d_o, d_final,
            d_q, d_k, d_v, d_g, d_beta, d_a, d_b, d_initial,
            _strides(q), _strides(k), _strides(v), *gates, _strides(d_o), plan.time, plan.heads, scale,
            **plan.flags, V=plan.value_width, VP=padded(plan.value_width), START=initial is not None, END=return_state,
            SOLVE=plan.solve, STAGES=plan.whole.backward_stages, num_warps=plan.whole.backward_warps,
        )  # fmt: skip
        return gradients
    z = d_v if a is None else torch.empty_like(written)
    d_states, d_pairs = torch.empty_like(states), torch.empty_like(scores)
    faded = _Faded.of(q, k, b, erased)
    _backward_kernel[(programs, triton.cdiv(plan.value_width, table.value_block))](
        faded.q, faded.k, faded.b, scores, faded.r, d_o, d_final, d_v, z, d_states, d_initial,
        _strides(faded.q), _strides(faded.k), _strides(faded.b), _strides(faded.r), _strides(d_o),
        plan.time, plan.heads, scale,
        **plan.flags, V=plan.value_width, VB=table.value_block, START=initial is not None, END=return_state,
        SOLVE=plan.solve, STAGES=table.stages, num_warps=table.walk_warps,
    )  # fmt: skip
    values = padded(plan.value_width)
    _gradient_kernel[(programs, plan.chunks)](
        q, k, v, a, b, g, beta, states, d_states, written, d_o, z, d_pairs, d_q, d_k, d_a, d_b, d_g, d_beta,
        _strides(q), _strides(k), _strides(v), *gates, _strides(d_o), plan.time, plan.heads, scale,
        **plan.flags, **_levels(plan), V=plan.value_width, VP=values, VB=min(32, values),
        KB=min(table.gradient_block, plan.flags["KP"]), SOLVE=plan.solve,
        num_warps=table.gradient_warps, num_stages=1,
    )  # fmt: skip
    return gradients


def _backward_form(
    d_o: Tensor,
    d_final: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    initial: Tensor | None,
    scale: float,
    return_state: bool,
    keep: bool,
    scores: Tensor,
    erased: Tensor,
    written: Tensor,
    states: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    def like(x: Tensor | None) -> Tensor:
        return v.new_empty(v.shape[0], 0) if x is None else x.new_empty(x.shape)

    return like(q), like(k), like(v), like(log_decay), like(beta), like(a), like(b), like(initial)


def _scores_shape(plan: _Plan) -> tuple[int, ...]:
    """Of what is kept of a chunk's pairs: with the whole sequence in a program the inverse alone."""
    if plan.whole is not None:
        return plan.batch, plan.heads, plan.chunks, plan.whole.chunk**2
    kinds = 4 if plan.flags["PAIR"] else 2
    tail = plan.flags["KP"] if plan.flags["GATE"] == CHANNEL_GATE else 4 * plan.table.chunk
    return plan.batch, plan.heads, plan.chunks, kinds * plan.table.chunk**2 + tail


def _levels(plan: _Plan) -> dict[str, int]:
    if plan.flags["CHAIN"] == "ieee":
        return {"LEVELS": plan.table.chunk.bit_length() - 1}
    return {"LEVELS": plan.table.chunk // 16}


_delta = opaque("delta", _forward, _backward, outputs=_forward_form, gradients=_backward_form, differentiable=2)
