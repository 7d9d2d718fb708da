"""Newton-Schulz of spanned matrices, a matrix a program, in registers and in fp64.

Q' = B Q,   A' = B A B,   B = a I + b A + c A^2

Q is a polynomial of A, which is symmetric, and the derivative of such a one is its own adjoint. So the derivative by A is what
becomes of Q where A changes by dQ made symmetric, and goes through the steps beside them, forward:
    b' = b E + c (A E + E A),   R' = b' Q + B R,   E' = b' A B + B E B + B A b',   E = dQ, R = 0 at first, dA = R in the end
By the square, P^T P = Z^T G Z with Z = diag(x) D and G = U^T U:
    dZ = 2 G Z dA,   dx = dZ . D,   dD = sum_t x dZ,   dG = sum_t Z dA Z^T,   dU = U (dG + dG^T)

Forward one launch makes G, and one goes through the steps and keeps every P^T P. Backward one gives every token's Z dA; two
more sum over tokens, BS vectors a program, always in the same order, so that sums are the same every time; the last goes on to
U.

T tokens, H heads, R rows, S vectors, C columns, CP their power of two; BS vectors, BR rows, BT tokens at once
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from arch.kernels.newton_schulz.recurrent import CUBIC, EPS, LEAST, LINEAR, QUINTIC
from arch.kernels.opaque import opaque, packed, padded

WIDEST = 32  # columns
MOST_VECTORS = 64
ACROSS = 32  # columns of tokens side by side

_LINEAR, _CUBIC, _QUINTIC = tl.constexpr(LINEAR), tl.constexpr(CUBIC), tl.constexpr(QUINTIC)
_EPS, _LEAST = tl.constexpr(EPS), tl.constexpr(LEAST)
BS = tl.constexpr(16)
BR = tl.constexpr(32)
ALONE = {"num_warps": 1, "num_stages": 1}  # of programs of one block


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """What these kernels cannot do."""
    vectors, columns = sizes.get("key_width", 1), sizes.get("value_width", 1)
    if columns > WIDEST:
        return f"takes matrices of at most {WIDEST} columns, got {columns}"
    return f"takes at most {MOST_VECTORS} vectors, got {vectors}" if vectors > MOST_VECTORS else None


def fused(x: Tensor, d: Tensor, u: Tensor, *, steps: int) -> Tensor:
    """x [B, T, H, S], d [B, H, S, C], u [B, H, R, S] -> [B, T, H, C, C].

    Inputs of half precision go in as fp32: Triton 3.6 has no tensor core product in fp64 of numbers that were read in 16 bits.
    """
    wide = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (x, d, u))
    y, _, _ = _spanned_newton_schulz(*wide, steps, torch.is_grad_enabled())
    return y.to(x.dtype)


@triton.jit
def _times(x, y):
    return tl.dot(x, y, out_dtype=tl.float64)


@triton.jit
def _tile(CP: tl.constexpr):
    return tl.arange(0, CP)[:, None], tl.arange(0, CP)[None, :]


@triton.jit
def _rows(x, d, first, S: tl.constexpr, C: tl.constexpr, CP: tl.constexpr):
    """Of diag(x) D, of a token's x and a head's D, BS rows from the first on."""
    row, column = first + tl.arange(0, BS), tl.arange(0, CP)
    x_b = tl.load(x + row, mask=row < S, other=0.0).to(tl.float64)
    there = (row[:, None] < S) & (column[None, :] < C)
    d_bc = tl.load(d + row[:, None] * C + column[None, :], mask=there, other=0.0).to(tl.float64)
    return x_b[:, None] * d_bc


@triton.jit
def _grams(gram, first, other, S: tl.constexpr):
    """BS rows of a head's G from the first on, and BS columns from the other on."""
    row, column = first + tl.arange(0, BS), other + tl.arange(0, BS)
    there = (row[:, None] < S) & (column[None, :] < S)
    return tl.load(gram + row[:, None] * S + column[None, :], mask=there, other=0.0).to(tl.float64)


@triton.jit
def _vectors(u, first, start, R, S: tl.constexpr):
    """BR rows of a head's U from the first on, of BS vectors from the start on."""
    row, column = first + tl.arange(0, BR), start + tl.arange(0, BS)
    there = (row[:, None] < R) & (column[None, :] < S)
    return tl.load(u + row[:, None] * S + column[None, :], mask=there, other=0.0).to(tl.float64)


@triton.jit(do_not_specialize=["R"])
def _square_kernel(u, gram, R, S: tl.constexpr):
    """A head's G, BS rows by BS columns."""
    blocks = tl.cdiv(S, BS)
    head, block = (tl.program_id(0) // (blocks * blocks)).to(tl.int64), tl.program_id(0) % (blocks * blocks)
    own, other = block // blocks * BS, block % blocks * BS
    u += head * R * S
    total = tl.zeros([BS, BS], tl.float64)
    for first in range(0, R, BR):
        total += _times(tl.trans(_vectors(u, first, own, R, S)), _vectors(u, first, other, R, S))
    row, column = own + tl.arange(0, BS), other + tl.arange(0, BS)
    there = (row[:, None] < S) & (column[None, :] < S)
    tl.store(gram + head * (S * S) + row[:, None] * S + column[None, :], total, mask=there)


@triton.jit(do_not_specialize=["R"])
def _vectors_kernel(u, dgram, du, R, S: tl.constexpr):
    """dU of a head, BR rows by BS vectors."""
    blocks, parts = tl.cdiv(S, BS), tl.cdiv(R, BR)
    head, part = (tl.program_id(0) // (blocks * parts)).to(tl.int64), tl.program_id(0) % (blocks * parts)
    own, first = part % blocks * BS, part // blocks * BR
    u += head * R * S
    dgram += head * (S * S)
    total = tl.zeros([BR, BS], tl.float64)
    for other in range(0, S, BS):
        slope = _grams(dgram, other, own, S) + tl.trans(_grams(dgram, own, other, S))
        total += _times(_vectors(u, first, other, R, S), slope)
    row, column = first + tl.arange(0, BR), own + tl.arange(0, BS)
    there = (row[:, None] < R) & (column[None, :] < S)
    to = du + head * R * S + row[:, None] * S + column[None, :]
    tl.store(to, total.to(du.dtype.element_ty), mask=there)


@triton.jit
def _square(x, d, gram, n, T, H, S: tl.constexpr, C: tl.constexpr, CP: tl.constexpr):
    """P^T P of a token's matrix."""
    head = (n // (T * H)) * H + n % H
    x += n.to(tl.int64) * S
    d += head.to(tl.int64) * (S * C)
    gram += head.to(tl.int64) * (S * S)
    square = tl.zeros([CP, CP], tl.float64)
    for first in range(0, S, BS):
        seen = tl.zeros([BS, CP], tl.float64)
        for other in range(0, S, BS):
            seen += _times(_grams(gram, first, other, S), _rows(x, d, other, S, C, CP))
        square += _times(tl.trans(_rows(x, d, first, S, C, CP)), seen)
    return (square + tl.trans(square)) * 0.5


@triton.jit
def _begun(square, C: tl.constexpr, CP: tl.constexpr):
    """A matrix of 1 and 0, which entries there are, the trace and its root."""
    row, column = _tile(CP)
    unit = tl.where(row == column, 1.0, 0.0).to(tl.float64)
    trace = tl.sum(square * unit)
    return unit, (row < C) & (column < C), trace, tl.sqrt(tl.maximum(trace, _LEAST))


@triton.jit
def _by(gram, unit):
    return unit * _LINEAR + gram * _CUBIC + _times(gram, gram) * _QUINTIC


@triton.jit(do_not_specialize=["steps", "T", "H"])
def _forward_kernel(
    x, d, gram, y, kept, steps, T, H, S: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, KEEP: tl.constexpr
):  # fmt: skip
    """kept [N, C, C]: every P^T P, in fp64."""
    n = tl.program_id(0)
    square = _square(x, d, gram, n, T, H, S, C, CP)
    unit, there, _trace, size = _begun(square, C, CP)
    row, column = _tile(CP)
    if KEEP:
        tl.store(kept + n.to(tl.int64) * (C * C) + row * C + column, square, mask=there)
    shrunk = 1.0 / (size + _EPS)
    square, factor = square * (shrunk * shrunk), unit * shrunk
    for step in range(steps):
        by = _by(square, unit)
        factor = _times(by, factor)
        if step + 1 < steps:
            square = _times(_times(by, square), by)
    tl.store(y + n.to(tl.int64) * (C * C) + row * C + column, factor.to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["steps", "T", "H"])
def _squares_kernel(dy, x, d, kept, z_da, steps, T, H, S: tl.constexpr, C: tl.constexpr, CP: tl.constexpr):
    """Z dA of every matrix, [N, S, C] in fp64."""
    n = tl.program_id(0)
    row, column = _tile(CP)
    own = kept + n.to(tl.int64) * (C * C) + row * C + column
    given = tl.load(own, mask=(row < C) & (column < C), other=0.0)
    unit, there, trace, size = _begun(given, C, CP)
    shrunk = 1.0 / (size + _EPS)
    by_y = tl.load(dy + n.to(tl.int64) * (C * C) + row * C + column, mask=there, other=0.0).to(tl.float64)
    square, factor = given * (shrunk * shrunk), unit
    d_square, d_factor = (by_y + tl.trans(by_y)) * (0.5 * shrunk), unit * 0.0
    for step in range(steps):
        by = _by(square, unit)
        turn = _times(d_square, square)
        d_by = d_square * _CUBIC + (turn + tl.trans(turn)) * _QUINTIC
        d_factor = _times(d_by, factor) + _times(by, d_factor)
        factor = _times(by, factor)
        if step + 1 < steps:
            half = _times(by, square)
            turn = _times(d_by, half)
            d_square = turn + tl.trans(turn) + _times(_times(by, d_square), by)
            square = _times(half, by)
    d_shrunk = tl.sum(by_y * factor) + 2.0 * shrunk * tl.sum(d_factor * given)
    d_trace = tl.where(trace >= _LEAST, -0.5 * d_shrunk * shrunk * shrunk / size, 0.0)
    da = d_factor * (shrunk * shrunk) + unit * d_trace
    head = (n // (T * H)) * H + n % H
    for first in range(0, S, BS):
        z = _rows(x + n.to(tl.int64) * S, d + head.to(tl.int64) * (S * C), first, S, C, CP)
        vector = first + tl.arange(0, BS)[:, None]
        places, in_z = n.to(tl.int64) * (S * C) + vector * C + column, (vector < S) & (column < C)
        tl.store(z_da + places, _times(z, da), mask=in_z)


@triton.jit
def _side_by_side(at, rows, first, T, H, S: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, BT: tl.constexpr):
    """BT tokens' [S, C] side by side, the token's part of a place and the row's, and which places there are."""
    token, column = first + tl.arange(0, BT * CP) // CP, tl.arange(0, BT * CP) % CP
    there = (rows < S)[:, None] & ((token < T) & (column < C))[None, :]
    return (at + token * H)[None, :], rows[:, None], column[None, :], there


@triton.jit(do_not_specialize=["T", "H"])
def _grams_kernel(
    x, d, z_da, dgram, T, H, S: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, BT: tl.constexpr
):  # fmt: skip
    """dG by Z dA of every token, BS rows of a head by BS columns."""
    blocks = tl.cdiv(S, BS)
    head, block = tl.program_id(0) // (blocks * blocks), tl.program_id(0) % (blocks * blocks)
    own, other = block // blocks * BS + tl.arange(0, BS), block % blocks * BS + tl.arange(0, BS)
    n = (head // H).to(tl.int64) * T * H + head % H  # of the first token
    d += head.to(tl.int64) * (S * C)
    total = tl.zeros([BS, BS], tl.float64)
    for first in range(0, T, BT):
        at, row, column, there = _side_by_side(n, other, first, T, H, S, C, CP, BT)
        z = tl.load(x + at * S + row, mask=there, other=0.0).to(tl.float64)
        z *= tl.load(d + row * C + column, mask=there, other=0.0).to(tl.float64)
        at, row, column, there = _side_by_side(n, own, first, T, H, S, C, CP, BT)
        total += _times(tl.load(z_da + at * (S * C) + row * C + column, mask=there, other=0.0), tl.trans(z))
    there = (own < S)[:, None] & (other < S)[None, :]
    to = dgram + head.to(tl.int64) * (S * S) + own[:, None] * S + other[None, :]
    tl.store(to, total, mask=there)


@triton.jit(do_not_specialize=["T", "H"])
def _sums_kernel(
    x, d, gram, z_da, dx, dd, T, H, S: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, BT: tl.constexpr
):  # fmt: skip
    """dx and dD by Z dA of every token, BS vectors of a head."""
    blocks = tl.cdiv(S, BS)
    head, start = tl.program_id(0) // blocks, tl.program_id(0) % blocks * BS
    n = (head // H).to(tl.int64) * T * H + head % H  # of the first token
    d += head.to(tl.int64) * (S * C)
    gram += head.to(tl.int64) * (S * S)
    own = start + tl.arange(0, BS)
    sum_d = tl.zeros([BS, CP], tl.float64)
    for first in range(0, T, BT):
        dz = tl.zeros([BS, BT * CP], tl.float64)
        for other in range(0, S, BS):
            at, row, column, there = _side_by_side(n, other + tl.arange(0, BS), first, T, H, S, C, CP, BT)
            other_z_da = tl.load(z_da + at * (S * C) + row * C + column, mask=there, other=0.0)
            dz += _times(_grams(gram, start, other, S), other_z_da)
        dz *= 2.0
        at, row, column, there = _side_by_side(n, own, first, T, H, S, C, CP, BT)
        d_b = tl.load(d + row * C + column, mask=there, other=0.0).to(tl.float64)
        x_b = tl.load(x + at * S + row, mask=there, other=0.0).to(tl.float64)
        token = first + tl.arange(0, BT)
        by_token = tl.sum(tl.reshape(dz * d_b, [BS, BT, CP]), 2)
        there = (own < S)[:, None] & (token < T)[None, :]
        tl.store(dx + (n + token * H)[None, :] * S + own[:, None], by_token.to(dx.dtype.element_ty), mask=there)
        sum_d += tl.sum(tl.reshape(dz * x_b, [BS, BT, CP]), 1)
    column = tl.arange(0, CP)
    there = (own < S)[:, None] & (column < C)[None, :]
    to = dd + head.to(tl.int64) * (S * C) + own[:, None] * C + column[None, :]
    tl.store(to, sum_d.to(dd.dtype.element_ty), mask=there)


def _forward(x: Tensor, d: Tensor, u: Tensor, steps: int, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Q, U^T U, and every P^T P where they are to be kept."""
    y, gram, kept = _outputs(x, d, u, steps, keep)
    (batch, time, heads, _), (rows, vectors) = x.shape, u.shape[-2:]
    blocks = triton.cdiv(vectors, BS.value)
    _square_kernel[batch * heads * blocks**2,](packed(u), gram, rows, vectors, **ALONE)
    given = packed(x), packed(d), gram, y, kept
    _forward_kernel[batch * time * heads,](*given, steps, time, heads, **_sizes(d), KEEP=keep)
    return y, gram, kept


def _outputs(x: Tensor, d: Tensor, u: Tensor, steps: int, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    vectors, columns = d.shape[-2:]
    gram = u.new_empty(*u.shape[:2], vectors, vectors, dtype=torch.float64)
    y = x.new_empty(*x.shape[:3], columns, columns)
    kept = y.shape if keep else (y.shape[0], 0, *y.shape[2:])
    return y, gram, y.new_empty(kept, dtype=torch.float64)


def _backward(
    dy: Tensor, x: Tensor, d: Tensor, u: Tensor, steps: int, keep: bool, gram: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dd, du = _gradients(dy, x, d, u, steps, keep, gram, kept)
    (batch, time, heads, vectors), rows = x.shape, u.shape[-2]
    sizes, count = _sizes(d), x.shape[:3].numel()
    x, d, gram = x.contiguous(), d.contiguous(), gram.contiguous()
    z_da = x.new_empty(count, *d.shape[-2:], dtype=torch.float64)
    dgram = torch.empty_like(gram)
    _squares_kernel[count,](packed(dy), x, d, packed(kept), z_da, steps, time, heads, **sizes)
    blocks, across = triton.cdiv(vectors, BS.value), sizes | {"BT": ACROSS // sizes["CP"]}
    # Programs of one head are neighbours: they read the same.
    _sums_kernel[batch * heads * blocks,](x, d, gram, z_da, dx, dd, time, heads, **across)
    _grams_kernel[batch * heads * blocks**2,](x, d, z_da, dgram, time, heads, **across)
    _vectors_kernel[batch * heads * blocks * triton.cdiv(rows, BR.value),](packed(u), dgram, du, rows, vectors, **ALONE)
    return dx, dd, du


def _gradients(
    dy: Tensor, x: Tensor, d: Tensor, u: Tensor, steps: int, keep: bool, gram: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), d.new_empty(d.shape), u.new_empty(u.shape)


def _sizes(d: Tensor) -> dict[str, Any]:
    vectors, columns = d.shape[-2:]
    width = padded(columns)
    warps = 1 if width <= 16 else 4
    return {"S": vectors, "C": columns, "CP": width, "num_warps": warps, "num_stages": 1}


_spanned_newton_schulz = opaque(
    "spanned_newton_schulz", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=1
)
