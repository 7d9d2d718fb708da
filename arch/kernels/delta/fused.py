"""The delta rule in four launches: pairs of tokens, states forward, states backward, gradients.

Within a chunk of C tokens with state S ahead of it, one row r reads before one column c writes, and E is what c writes:

beta   r = k, c = beta k     (I + A) E = V - r S                A = tril_-(r c^T)
a, b   r = a, c = b          (I + A) E = -(r S + P V)           P = tril_-(r k^T)
       O = scale q S + X E [+ W V],   S' = D S + c^T E [+ k^T V]     X = scale tril(q c^T), W = scale tril(q k^T)

where q, r, c, k fade between their tokens as `arch.kernels.decay` has it, and [...] is there with a and b only. Backward,
with dS' behind the chunk and Z the derivative of the right-hand side:

Z = (I + A)^-T (X^T dO + c dS'),   dS = scale q^T dO - r^T Z + D dS',   dA = -Z E^T,   dX = scale dO E^T

So the inverse and the products of pairs belong to a chunk alone (a program each), and only S and dS walk along time (a
program for each head and block of value channels). What a walk leaves behind is enough for all gradients of a chunk.

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

from arch.kernels.chunks import signs
from arch.kernels.opaque import opaque, padded

WIDEST = 256
NO_GATE, HEAD_GATE, CHANNEL_GATE = 0, 1, 2


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
    warps = 8 if widest > 64 else 4
    pair_block, gradient_block = (32, 16) if by_channel else (64, 16 if paired else 32)
    if widest <= 16:
        few = 2 if exact else 1
        return _Table(16, 16, 16, 16, few, few, few, 1 if exact else 3 if many else 4)
    if widest <= 32:
        return _Table(32, 32, 32, gradient_block, 4, 4, 4, 1 if many or exact else 3)
    if exact:
        chunk, value_block = (32, 32) if widest <= 64 else (32, 16) if widest <= 128 else (16, 16)
        return _Table(chunk, value_block, 32, 16, 4 if chunk == 16 else 8, 8, 4 if chunk == 16 else 8, 1)
    # Chunks of 64 would bring in Hopper's wider products, which Triton 3.6 compiles to wrong results here (seen on an H100).
    return _Table(32, 32, pair_block, gradient_block, 4, warps, 4, 1)


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
def _sums(g):
    """Sums of g [C] up to each token, in two parts: without the second a small decay is lost behind a large one."""
    until = tl.cumsum(g.to(tl.float64), 0)
    high = until.to(tl.float32)
    return high, (until - high).to(tl.float32)


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
def _on_level_turned(level, C: tl.constexpr):
    i = tl.arange(0, C)
    s, t = i[:, None], i[None, :]
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
def _to_end(g):
    """exp of the log decays g [C] behind each token, up to the chunk's end."""
    return tl.exp(tl.minimum(tl.cumsum(g, 0, reverse=True) - g, 0.0))


# The inverse


@triton.jit
def _inverse_16(a, PRECISION: tl.constexpr):
    """(I + A)^-1 of strictly lower triangular A [16, 16]: blocks of 1, 2, 4, 8 put together by pairs.

    Two inverted blocks x, y over the block a between them make [[x, 0], [-y a x, y]]. Powers of A, which grow like
    binomial coefficients where keys repeat, are never formed.
    """
    i = tl.arange(0, 16)
    inverse = tl.where(i[:, None] == i[None, :], 1.0, 0.0) - tl.where(_on_level(0, 16), a, 0.0)
    for level in tl.static_range(1, 4):
        between = tl.where(_on_level(level, 16), a, 0.0)
        inverse -= _dot(inverse, _dot(between, inverse, PRECISION), PRECISION)
    return inverse


@triton.jit
def _invert(x, a, C: tl.constexpr, PRECISION: tl.constexpr):
    """Write (I + A)^-1 of strictly lower triangular A [C, C] to x, by forward substitution over rows of 16 blocks."""
    i, j, every = tl.arange(0, 16), tl.arange(0, 16), tl.arange(0, C)
    if C == 16:
        tl.store(x + i[:, None] * C + j[None, :], _inverse_16(a, PRECISION))
    else:
        tl.store(x + every[:, None] * C + every[None, :], a)
        tl.debug_barrier()
        for start in range(0, C, 16):
            own = x + (start + i[:, None]) * C + start + j[None, :]
            row = x + (start + i[:, None]) * C + every[None, :]
            ahead = every[None, :] < start
            inverse = _inverse_16(tl.load(own), PRECISION)
            between = tl.load(row, mask=ahead, other=0.0)
            done = _square(x, (every[:, None] < start) & ahead, C)
            solved = _dot(inverse, _dot(between, done, PRECISION), PRECISION)
            tl.debug_barrier()
            tl.store(row, -solved, mask=ahead)
            tl.store(own, inverse)
            tl.debug_barrier()


@triton.jit(do_not_specialize=["T", "H"])
def _pairs_kernel(
    q, k, a, b, g, beta, scores, q_strides, k_strides, a_strides, b_strides, g_strides, beta_strides, T, H, scale,
    K: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr, KP: tl.constexpr, KB: tl.constexpr, PAIR: tl.constexpr,
    GATE: tl.constexpr, WRITE: tl.constexpr, PRECISION: tl.constexpr, CHAIN: tl.constexpr, SOLVE: tl.constexpr,
):  # fmt: skip
    """(I + A)^-1, X, and with a and b also W and P, of one chunk of one head."""
    head, n = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at_b, at_h = head // H, head % H
    q += at_b * q_strides[0] + at_h * q_strides[2]
    k += at_b * k_strides[0] + at_h * k_strides[2]
    if PAIR:
        a += at_b * a_strides[0] + at_h * a_strides[2]
        b += at_b * b_strides[0] + at_h * b_strides[2]
    if GATE > 0:
        g += at_b * g_strides[0] + at_h * g_strides[2]
    KINDS: tl.constexpr = 4 if PAIR else 2
    scores += (head * tl.num_programs(1) + n) * (KINDS * C * C + 4 * C)
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
                now = _on_level(level, C)
                exponent = _to_border(g_CK, level, C, SOLVE)
                fade = tl.exp(exponent)
                q_faded = q_CK * fade
                c_faded = tl.trans(c_CK * fade)
                if PAIR:
                    r_faded = r_CK * tl.exp(tl.minimum(exponent - g_CK, 0.0))
                    k_faded = tl.trans(k_CK * fade)
                    sees += tl.where(now, _dot(q_faded, k_faded, PRECISION), 0.0)
                    hears += tl.where(now, _dot(r_faded, k_faded, PRECISION), 0.0)
                else:
                    r_faded = r_CK * fade
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
        high, low = _sums(g_C)
        fade = _pair_fades(high, low, tl.zeros_like(g_C), C)
        reads *= fade
        tl.store(fades, tl.exp(high) * scale)
        if PAIR:
            fade_before = _pair_fades(high, low, g_C, C)
            sees *= fade
            hears *= fade_before
            erases *= fade_before
            tl.store(fades + C, tl.exp(tl.minimum(high - g_C, 0.0)))
        else:
            erases *= fade
            tl.store(fades + C, tl.exp(high))
        strength *= _to_end(g_C)
        tl.store(fades + 3 * C, tl.exp(high))
    if GATE == 1 or WRITE:
        tl.store(fades + 2 * C, strength)
    place = i[:, None] * C + i[None, :]
    until_now, before_now = i[:, None] >= i[None, :], i[:, None] > i[None, :]
    tl.store(scores + C * C + place, tl.where(until_now, reads * scale, 0.0))
    if PAIR:
        tl.store(scores + 2 * C * C + place, tl.where(until_now, sees * scale, 0.0))
        tl.store(scores + 3 * C * C + place, tl.where(before_now, hears, 0.0))
    _invert(scores, tl.where(before_now, erases, 0.0), C, SOLVE)


@triton.jit(do_not_specialize=["T", "H"])
def _forward_kernel(
    q, k, v, a, b, g, scores, initial, o, written, states, final,
    q_strides, k_strides, v_strides, a_strides, b_strides, g_strides, T, H, scale,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, VB: tl.constexpr, PAIR: tl.constexpr,
    GATE: tl.constexpr, WRITE: tl.constexpr, START: tl.constexpr, KEEP: tl.constexpr, END: tl.constexpr,
    PRECISION: tl.constexpr, CHAIN: tl.constexpr, SOLVE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Outputs and states of one head, a block of value channels.

    The solve takes all digits: where keys repeat, large terms of it cancel.
    """
    head = tl.program_id(0).to(tl.int64)
    at_b, at_h = head // H, head % H
    q += at_b * q_strides[0] + at_h * q_strides[2]
    k += at_b * k_strides[0] + at_h * k_strides[2]
    v += at_b * v_strides[0] + at_h * v_strides[2]
    if PAIR:
        a += at_b * a_strides[0] + at_h * a_strides[2]
        b += at_b * b_strides[0] + at_h * b_strides[2]
    if GATE == 2:
        g += at_b * g_strides[0] + at_h * g_strides[2]
    KINDS: tl.constexpr = 4 if PAIR else 2
    chunks = tl.cdiv(T, C)
    scores += head * chunks * (KINDS * C * C + 4 * C)
    states += head * chunks * (K * V)
    o += (at_b * T * H + at_h) * V
    written += (at_b * T * H + at_h) * V
    d, w = tl.arange(0, KP), tl.program_id(1) * VB + tl.arange(0, VB)
    place = d[:, None] * V + w[None, :]
    inside = (d[:, None] < K) & (w[None, :] < V)
    state = tl.zeros((KP, VB), tl.float32)
    if START:
        state = tl.load(initial + head * (K * V) + place, mask=inside, other=0.0)
    for n in tl.range(0, chunks, num_stages=STAGES):
        t = n * C + tl.arange(0, C)
        pairs = scores + n * (KINDS * C * C + 4 * C)
        fades = pairs + KINDS * C * C + tl.arange(0, C)
        v_CV = _rows(v, v_strides[1], t, T, w, V)
        if PAIR:
            r_CK = _rows(a, a_strides[1], t, T, d, K)
        else:
            r_CK = _rows(k, k_strides[1], t, T, d, K)
        if KEEP:
            tl.store(states + n * (K * V) + place, state, mask=inside)
        if GATE == 1:
            r_CK *= tl.load(fades + C)[:, None]
        if GATE == 2:
            g_CK = _rows(g, g_strides[1], t, T, d, K)
            until = tl.cumsum(g_CK, 0)
            r_CK *= tl.exp(tl.minimum(until - g_CK, 0.0) if PAIR else until)
        if PAIR:
            hears = _square(pairs + 3 * C * C, None, C)
            wanted = -_dot(hears, v_CV, CHAIN) - _dot(r_CK, state, CHAIN)
        else:
            wanted = v_CV - _dot(r_CK, state, CHAIN)
        e_CV = _dot(_square(pairs, None, C), wanted, SOLVE)
        if KEEP:
            _put_rows(written, H * V, t, T, w, V, e_CV)

        q_CK = _rows(q, q_strides[1], t, T, d, K)
        if GATE == 1:
            q_CK *= tl.load(fades)[:, None]
        else:
            q_CK *= scale
        if GATE == 2:
            q_CK *= tl.exp(until)
        reads = _square(pairs + C * C, None, C)
        o_CV = _dot(q_CK, state, PRECISION)
        o_CV = _onto(o_CV, reads, e_CV, PRECISION)
        if PAIR:
            sees = _square(pairs + 2 * C * C, None, C)
            o_CV = _onto(o_CV, sees, v_CV, PRECISION)
        _put_rows(o, H * V, t, T, w, V, o_CV)

        k_KC = _columns(k, k_strides[1], t, T, d, K)
        if PAIR:
            c_KC = _columns(b, b_strides[1], t, T, d, K)
        else:
            c_KC = k_KC
        if GATE == 1 or WRITE:
            to_end = tl.load(fades + 2 * C)[None, :]
            c_KC *= to_end
            if PAIR:
                k_KC *= to_end
        if GATE == 1:
            state *= tl.load(pairs + KINDS * C * C + 4 * C - 1)
        if GATE == 2:
            g_KC = _columns(g, g_strides[1], t, T, d, K)
            fade_KC = tl.exp(tl.minimum(tl.cumsum(g_KC, 1, reverse=True) - g_KC, 0.0))
            c_KC *= fade_KC
            k_KC *= fade_KC
            state *= tl.exp(tl.sum(g_KC, 1))[:, None]
        state = _onto(state, c_KC, e_CV, CHAIN)
        if PAIR:
            state = _onto(state, k_KC, v_CV, CHAIN)
    if END:
        tl.store(final + head * (K * V) + place, state, mask=inside)


@triton.jit(do_not_specialize=["T", "H"])
def _backward_kernel(
    q, k, a, b, g, scores, d_o, d_final, d_v, z, d_states, d_initial,
    q_strides, k_strides, a_strides, b_strides, g_strides, d_o_strides, T, H, scale,
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
        a += at_b * a_strides[0] + at_h * a_strides[2]
        b += at_b * b_strides[0] + at_h * b_strides[2]
    if GATE == 2:
        g += at_b * g_strides[0] + at_h * g_strides[2]
    KINDS: tl.constexpr = 4 if PAIR else 2
    chunks = tl.cdiv(T, C)
    scores += head * chunks * (KINDS * C * C + 4 * C)
    d_states += head * chunks * (K * V)
    d_v += (at_b * T * H + at_h) * V
    if PAIR:
        z += (at_b * T * H + at_h) * V
    d, w = tl.arange(0, KP), tl.program_id(1) * VB + tl.arange(0, VB)
    place = d[:, None] * V + w[None, :]
    inside = (d[:, None] < K) & (w[None, :] < V)
    d_state = tl.zeros((KP, VB), tl.float32)
    if END:
        d_state = tl.load(d_final + head * (K * V) + place, mask=inside, other=0.0)
    for back in tl.range(0, chunks, num_stages=STAGES):
        n = chunks - 1 - back
        t = n * C + tl.arange(0, C)
        pairs = scores + n * (KINDS * C * C + 4 * C)
        fades = pairs + KINDS * C * C + tl.arange(0, C)
        reads_turned = _square_turned(pairs + C * C, None, C)
        d_o_CV = _rows(d_o, d_o_strides[1], t, T, w, V)
        k_CK = _rows(k, k_strides[1], t, T, d, K)
        if PAIR:
            r_KC = _columns(a, a_strides[1], t, T, d, K)
            c_CK = _rows(b, b_strides[1], t, T, d, K)
        else:
            r_KC = _columns(k, k_strides[1], t, T, d, K)
            c_CK = k_CK
        tl.store(d_states + n * (K * V) + place, d_state, mask=inside)
        if GATE == 1:
            r_KC *= tl.load(fades + C)[None, :]
            over = tl.load(pairs + KINDS * C * C + 4 * C - 1)
            if PAIR:
                k_CK *= tl.load(fades + 2 * C)[:, None]
        if GATE == 1 or WRITE:
            c_CK *= tl.load(fades + 2 * C)[:, None]
        if GATE == 2:
            g_CK = _rows(g, g_strides[1], t, T, d, K)
            g_KC = _columns(g, g_strides[1], t, T, d, K)
            until = tl.cumsum(g_KC, 1)
            r_KC *= tl.exp(tl.minimum(until - g_KC, 0.0) if PAIR else until)
            to_end = tl.exp(tl.minimum(tl.cumsum(g_CK, 0, reverse=True) - g_CK, 0.0))
            c_CK *= to_end
            k_CK *= to_end
            over = tl.exp(tl.sum(g_KC, 1))[:, None]

        d_e_CV = _dot(reads_turned, d_o_CV, PRECISION)
        d_e_CV = _onto(d_e_CV, c_CK, d_state, CHAIN)
        z_CV = _dot(_square_turned(pairs, None, C), d_e_CV, SOLVE)
        if PAIR:
            sees_turned = _square_turned(pairs + 2 * C * C, None, C)
            hears_turned = _square_turned(pairs + 3 * C * C, None, C)
            d_v_CV = _dot(sees_turned, d_o_CV, PRECISION)
            d_v_CV = _onto(d_v_CV, k_CK, d_state, PRECISION)
            d_v_CV -= _dot(hears_turned, z_CV, PRECISION)
            _put_rows(z, H * V, t, T, w, V, z_CV)
            _put_rows(d_v, H * V, t, T, w, V, d_v_CV)
        else:
            _put_rows(d_v, H * V, t, T, w, V, z_CV)
        q_KC = _columns(q, q_strides[1], t, T, d, K)
        if GATE == 1:
            q_KC *= tl.load(fades)[None, :]
        else:
            q_KC *= scale
        if GATE == 2:
            q_KC *= tl.exp(until)
        if GATE > 0:
            d_state *= over
        d_state = _onto(d_state, q_KC, d_o_CV, PRECISION)
        d_state -= _dot(r_KC, z_CV, CHAIN)
    if START:
        tl.store(d_initial + head * (K * V) + place, d_state, mask=inside)


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
        high, low = _sums(g_C)
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
            s_VK = tl.load(states + d[None, :] * V + w[:, None], mask=inside, other=0.0)
            d_s_VK = tl.load(d_states + d[None, :] * V + w[:, None], mask=inside, other=0.0)
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
                now, now_turned = _on_level(level, C), _on_level_turned(level, C)
                exponent = _to_border(g_CK, level, C, SOLVE)
                fade = tl.exp(exponent)
                fade_read = tl.exp(tl.minimum(exponent - g_CK, 0.0)) if PAIR else fade
                c_faded = c_CK * fade
                to_q = _dot(_square(d_pairs + C * C, now, C), c_faded, PRECISION)
                to_r = _dot(_square(d_pairs, now, C), c_faded, PRECISION)
                if PAIR:
                    k_faded = k_CK * fade
                    to_q = _onto(to_q, _square(d_pairs + 2 * C * C, now, C), k_faded, PRECISION)
                    to_r = _onto(to_r, _square(d_pairs + 3 * C * C, now, C), k_faded, PRECISION)
                d_q_CK += to_q * fade
                d_r_CK += to_r * fade_read
                q_faded, r_faded = q_CK * fade, r_CK * fade_read
                to_c = _dot(_square_turned(d_pairs + C * C, now_turned, C), q_faded, PRECISION)
                to_c = _onto(to_c, _square_turned(d_pairs, now_turned, C), r_faded, PRECISION)
                d_c_CK += to_c * fade
                if PAIR:
                    to_k = _dot(_square_turned(d_pairs + 2 * C * C, now_turned, C), q_faded, PRECISION)
                    to_k = _onto(to_k, _square_turned(d_pairs + 3 * C * C, now_turned, C), r_faded, PRECISION)
                    d_k_CK += to_k * fade

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


# Launchers


class _Plan(NamedTuple):
    """What all launches of one call share."""

    table: _Table
    batch: int
    time: int
    heads: int
    key_width: int
    value_width: int
    chunks: int
    flags: dict[str, Any]


def _plan(q: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None, a: Tensor | None) -> _Plan:
    batch, time, heads, value_width = v.shape
    key_width = q.shape[-1]
    gate = NO_GATE if log_decay is None else HEAD_GATE if log_decay.ndim == 3 else CHANNEL_GATE
    exact = v.dtype == torch.float32
    table = _table(key_width, value_width, a is not None, gate == CHANNEL_GATE, exact)
    chain = "ieee" if exact else "tf32"
    flags = {
        "K": key_width,
        "C": table.chunk,
        "KP": padded(key_width),
        "PAIR": a is not None,
        "GATE": gate,
        "WRITE": beta is not None,
        "PRECISION": "bf16" if v.dtype == torch.bfloat16 else chain,
        "CHAIN": chain,
    }
    chunks = triton.cdiv(time, table.chunk)
    return _Plan(table, batch, time, heads, key_width, value_width, chunks, flags)


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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    plan = _plan(q, v, log_decay, beta, a)
    table = plan.table
    q, k, v = (_strided(x) for x in (q, k, v))
    g, beta, a, b = (None if x is None else _strided(x) for x in (log_decay, beta, a, b))
    initial = None if initial is None else initial.contiguous()
    o, final, scores, written, states = _forward_form(
        q, k, v, log_decay, beta, a, b, initial, scale, return_state, keep
    )
    if not keep:
        scores = scores.new_empty(_scores_shape(plan))
    programs = plan.batch * plan.heads
    gates = (_strides(a), _strides(b), _strides(g), _strides(beta))
    _pairs_kernel[(programs, plan.chunks)](
        q, k, a, b, g, beta, scores, _strides(q), _strides(k), *gates, plan.time, plan.heads, scale,
        **plan.flags, **_levels(plan), KB=min(table.pair_block, plan.flags["KP"]), SOLVE=_solve_precision(v.dtype),
        num_warps=table.pair_warps, num_stages=1,
    )  # fmt: skip
    _forward_kernel[(programs, triton.cdiv(plan.value_width, table.value_block))](
        q, k, v, a, b, g, scores, initial, o, written, states, final,
        _strides(q), _strides(k), _strides(v), *gates[:3], plan.time, plan.heads, scale,
        **plan.flags, V=plan.value_width, VB=table.value_block, START=initial is not None, KEEP=keep, END=return_state,
        SOLVE=_solve_precision(v.dtype), STAGES=table.stages, num_warps=table.walk_warps,
    )  # fmt: skip
    return o, final, (scores if keep else o.new_empty(plan.batch, 0, dtype=torch.float32)), written, states


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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    plan = _plan(q, v, log_decay, beta, a)
    batch, heads, sizes = plan.batch, plan.heads, (plan.key_width, plan.value_width)
    state = (batch, heads, *sizes) if return_state else (batch, 0)
    return (
        v.new_empty(v.shape),
        v.new_empty(state, dtype=torch.float32),
        v.new_empty(_scores_shape(plan) if keep else (batch, 0), dtype=torch.float32),
        v.new_empty(v.shape if keep else (batch, 0)),
        v.new_empty((batch, heads, plan.chunks, *sizes) if keep else (batch, 0), dtype=torch.float32),
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
    written: Tensor,
    states: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    plan = _plan(q, v, log_decay, beta, a)
    table = plan.table
    gradients = _backward_form(
        d_o, d_final, q, k, v, log_decay, beta, a, b, initial, scale, return_state, keep, scores, written, states
    )
    d_q, d_k, d_v, d_g, d_beta, d_a, d_b, d_initial = gradients
    q, k, v, d_o = (_strided(x) for x in (q, k, v, d_o))
    g, beta, a, b = (None if x is None else _strided(x) for x in (log_decay, beta, a, b))
    scores, written, states, d_final = (x.contiguous() for x in (scores, written, states, d_final))
    z = d_v if a is None else torch.empty_like(written)
    d_states, d_pairs = torch.empty_like(states), torch.empty_like(scores)
    programs = plan.batch * plan.heads
    gates = (_strides(a), _strides(b), _strides(g), _strides(beta))
    _backward_kernel[(programs, triton.cdiv(plan.value_width, table.value_block))](
        q, k, a, b, g, scores, d_o, d_final, d_v, z, d_states, d_initial,
        _strides(q), _strides(k), *gates[:3], _strides(d_o), plan.time, plan.heads, scale,
        **plan.flags, V=plan.value_width, VB=table.value_block, START=initial is not None, END=return_state,
        SOLVE=_solve_precision(v.dtype), STAGES=table.stages, num_warps=table.walk_warps,
    )  # fmt: skip
    values = padded(plan.value_width)
    _gradient_kernel[(programs, plan.chunks)](
        q, k, v, a, b, g, beta, states, d_states, written, d_o, z, d_pairs, d_q, d_k, d_a, d_b, d_g, d_beta,
        _strides(q), _strides(k), _strides(v), *gates, _strides(d_o), plan.time, plan.heads, scale,
        **plan.flags, **_levels(plan), V=plan.value_width, VP=values, VB=min(32, values),
        KB=min(table.gradient_block, plan.flags["KP"]), SOLVE=_solve_precision(v.dtype),
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
    written: Tensor,
    states: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    def like(x: Tensor | None) -> Tensor:
        return v.new_empty(v.shape[0], 0) if x is None else x.new_empty(x.shape)

    return like(q), like(k), like(v), like(log_decay), like(beta), like(a), like(b), like(initial)


def _scores_shape(plan: _Plan) -> tuple[int, ...]:
    kinds = 4 if plan.flags["PAIR"] else 2
    return plan.batch, plan.heads, plan.chunks, kinds * plan.table.chunk**2 + 4 * plan.table.chunk


def _levels(plan: _Plan) -> dict[str, int]:
    return {"LEVELS": plan.table.chunk.bit_length() - 1}


def _solve_precision(dtype: torch.dtype) -> str:
    """Of the inverse and of products with it: three tf32 products keep 21 bits."""
    return "ieee" if dtype == torch.float32 else "tf32x3"


_delta = opaque("delta", _forward, _backward, outputs=_forward_form, gradients=_backward_form, differentiable=2)
