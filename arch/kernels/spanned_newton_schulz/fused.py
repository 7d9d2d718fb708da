"""Newton-Schulz of spanned matrices, a matrix a program, in registers and in fp64.

Q' = B Q,   A' = B A B,   B = a I + b A + c A^2
dB = dQ' Q^T + T + T^T,  T = dA' B A,   dQ = B dQ',   dA = B dA' B + b dB + c (dB A + A dB),   dB and dA made symmetric
By the square, P^T P = Z^T G Z with Z = diag(x) D:   dZ = 2 G Z dA,   dG = sum_t Z dA Z^T,   dx = dZ . D,   dD = sum_t x dZ

One launch forward. Backward one gives every token's dA, going through the steps again and keeping what each begins with in
scratch memory, which a program uses again for every matrix that it takes, so that all of it stays in the caches; a second sums
over tokens, BS vectors a program, token after token, so that sums are the same every time.

N matrices, T tokens, H heads, S vectors, SP their power of two, C columns, CP their power of two, BS vectors at once
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
from arch.kernels.opaque import opaque, packed, padded, scratch

WIDEST = 32  # columns
MOST_VECTORS = 64
SCRATCH = 11 * 2**20  # doubles of scratch memory for all programs

_LINEAR, _CUBIC, _QUINTIC = tl.constexpr(LINEAR), tl.constexpr(CUBIC), tl.constexpr(QUINTIC)
_EPS, _LEAST = tl.constexpr(EPS), tl.constexpr(LEAST)
BS = tl.constexpr(16)


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """What these kernels cannot do."""
    vectors, columns = sizes.get("key_width", 1), sizes.get("value_width", 1)
    if columns > WIDEST:
        return f"takes matrices of at most {WIDEST} columns, got {columns}"
    return f"takes at most {MOST_VECTORS} vectors, got {vectors}" if vectors > MOST_VECTORS else None


def fused(x: Tensor, d: Tensor, gram: Tensor, *, steps: int) -> Tensor:
    """x [B, T, H, S], d [B, H, S, C], gram [B, H, S, S] -> [B, T, H, C, C]."""
    (y,) = _spanned_newton_schulz(x, d, gram, steps)
    return y


@triton.jit
def _times(x, y):
    return tl.dot(x, y, out_dtype=tl.float64)


@triton.jit
def _tile(CP: tl.constexpr):
    return tl.arange(0, CP)[:, None], tl.arange(0, CP)[None, :]


@triton.jit
def _rows(x, d, first, ROWS: tl.constexpr, S: tl.constexpr, C: tl.constexpr, CP: tl.constexpr):
    """Of a token's x and a head's D, which they point at: entries and rows from the first on."""
    row, column = first + tl.arange(0, ROWS), tl.arange(0, CP)
    x_s = tl.load(x + row, mask=row < S, other=0.0).to(tl.float64)
    there = (row[:, None] < S) & (column[None, :] < C)
    d_sc = tl.load(d + row[:, None] * C + column[None, :], mask=there, other=0.0).to(tl.float64)
    return x_s, d_sc


@triton.jit
def _grams(gram, first, S: tl.constexpr, SP: tl.constexpr):
    """BS rows of a head's G."""
    row, column = first + tl.arange(0, BS), tl.arange(0, SP)
    there = (row[:, None] < S) & (column[None, :] < S)
    return tl.load(gram + row[:, None] * S + column[None, :], mask=there, other=0.0).to(tl.float64)


@triton.jit
def _begun(x, d, gram, n, T, H, S: tl.constexpr, SP: tl.constexpr, C: tl.constexpr, CP: tl.constexpr):
    """The square of a matrix, one of 1 and 0, and which entries there are; the trace and its root."""
    head = (n // (T * H)) * H + n % H
    x += n.to(tl.int64) * S
    d += head.to(tl.int64) * (S * C)
    gram += head.to(tl.int64) * (S * S)
    x_s, d_sc = _rows(x, d, 0, SP, S, C, CP)
    z = x_s[:, None] * d_sc
    square = tl.zeros([CP, CP], tl.float64)
    for first in range(0, SP, BS):
        x_b, d_b = _rows(x, d, first, BS, S, C, CP)
        square += _times(tl.trans(x_b[:, None] * d_b), _times(_grams(gram, first, S, SP), z))
    square = (square + tl.trans(square)) * 0.5
    row, column = _tile(CP)
    unit = tl.where(row == column, 1.0, 0.0).to(tl.float64)
    trace = tl.sum(square * unit)
    return square, unit, (row < C) & (column < C), trace, tl.sqrt(tl.maximum(trace, _LEAST))


@triton.jit
def _by(gram, unit):
    return unit * _LINEAR + gram * _CUBIC + _times(gram, gram) * _QUINTIC


@triton.jit(do_not_specialize=["steps", "T", "H"])
def _forward_kernel(x, d, gram, y, steps, T, H, S: tl.constexpr, SP: tl.constexpr, C: tl.constexpr, CP: tl.constexpr):
    n = tl.program_id(0)
    square, unit, there, _trace, size = _begun(x, d, gram, n, T, H, S, SP, C, CP)
    shrunk = 1.0 / (size + _EPS)
    square, factor = square * (shrunk * shrunk), unit * shrunk
    for _ in range(steps):
        by = _by(square, unit)
        factor = _times(by, factor)
        square = _times(_times(by, square), by)
    row, column = _tile(CP)
    tl.store(y + n.to(tl.int64) * (C * C) + row * C + column, factor.to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["steps", "N", "T", "H"])
def _squares_kernel(
    dy, x, d, gram, da, scratch, steps, N, T, H, S: tl.constexpr, SP: tl.constexpr, C: tl.constexpr, CP: tl.constexpr
):
    """dA of every matrix, [N, CP, CP] in fp64."""
    row, column = _tile(CP)
    here, at = row * CP + column, row * C + column
    scratch += tl.program_id(0).to(tl.int64) * steps * (2 * CP * CP)
    n = tl.program_id(0)
    for _ in range(tl.program_id(0), N, tl.num_programs(0)):
        given, unit, there, trace, size = _begun(x, d, gram, n, T, H, S, SP, C, CP)
        shrunk = 1.0 / (size + _EPS)
        square, factor = given * (shrunk * shrunk), unit
        for step in range(steps):
            tl.store(scratch + step * (2 * CP * CP) + here, factor)
            tl.store(scratch + step * (2 * CP * CP) + CP * CP + here, square)
            by = _by(square, unit)
            factor = _times(by, factor)
            square = _times(_times(by, square), by)
        tl.debug_barrier()  # other threads read what these wrote
        d_factor = tl.load(dy + n.to(tl.int64) * (C * C) + at, mask=there, other=0.0).to(tl.float64)
        d_shrunk = tl.sum(d_factor * factor)
        d_factor = d_factor * shrunk
        d_square = unit * 0.0
        for back in range(steps):
            step = steps - 1 - back
            before = tl.load(scratch + step * (2 * CP * CP) + here)
            square = tl.load(scratch + step * (2 * CP * CP) + CP * CP + here)
            by = _by(square, unit)
            turn = _times(d_square, _times(by, square))
            d_by = _times(d_factor, tl.trans(before)) + turn + tl.trans(turn)
            d_by = (d_by + tl.trans(d_by)) * 0.5
            d_factor = _times(by, d_factor)
            turn = _times(d_by, square)
            d_square = _times(_times(by, d_square), by) + d_by * _CUBIC + (turn + tl.trans(turn)) * _QUINTIC
        d_shrunk += 2.0 * shrunk * tl.sum(d_square * given)
        d_trace = tl.where(trace >= _LEAST, -0.5 * d_shrunk * shrunk * shrunk / size, 0.0)
        tl.store(da + n.to(tl.int64) * (CP * CP) + here, d_square * (shrunk * shrunk) + unit * d_trace)
        tl.debug_barrier()  # before these write again
        n += tl.num_programs(0)


@triton.jit(do_not_specialize=["T", "H"])
def _sums_kernel(
    x, d, gram, da, dx, dd, dgram, T, H, S: tl.constexpr, SP: tl.constexpr, C: tl.constexpr, CP: tl.constexpr
):
    """By dA of every token, BS vectors of a head: dx, dD and dG."""
    head, first = tl.program_id(0), tl.program_id(1) * BS
    n = (head // H).to(tl.int64) * T * H + head % H  # of the first token
    d += head.to(tl.int64) * (S * C)
    grams = _grams(gram + head.to(tl.int64) * (S * S), first, S, SP)
    row, column, wide = first + tl.arange(0, BS), tl.arange(0, CP), tl.arange(0, SP)
    here, at = _tile(CP)
    there = (row[:, None] < S) & (column[None, :] < C)
    sum_d, sum_gram = tl.zeros([BS, CP], tl.float64), tl.zeros([BS, SP], tl.float64)
    for _ in range(T):
        x_s, d_sc = _rows(x + n * S, d, 0, SP, S, C, CP)
        z = x_s[:, None] * d_sc
        x_b, d_b = _rows(x + n * S, d, first, BS, S, C, CP)
        da_cc = tl.load(da + n * (CP * CP) + here * CP + at)
        dz = _times(_times(grams, z), da_cc) * 2.0
        tl.store(dx + n * S + row, tl.sum(dz * d_b, 1).to(dx.dtype.element_ty), mask=row < S)
        sum_d += x_b[:, None] * dz
        sum_gram += _times(_times(x_b[:, None] * d_b, da_cc), tl.trans(z))
        n += H
    tl.store(
        dd + head.to(tl.int64) * (S * C) + row[:, None] * C + column[None, :], sum_d.to(dd.dtype.element_ty), mask=there
    )
    there = (row[:, None] < S) & (wide[None, :] < S)
    to = dgram + head.to(tl.int64) * (S * S) + row[:, None] * S + wide[None, :]
    tl.store(to, sum_gram.to(dgram.dtype.element_ty), mask=there)


def _forward(x: Tensor, d: Tensor, gram: Tensor, steps: int) -> tuple[Tensor]:
    (y,) = _outputs(x, d, gram, steps)
    _, time, heads, _ = x.shape
    grid = (x.shape[:3].numel(),)
    _forward_kernel[grid](packed(x), packed(d), packed(gram), y, steps, time, heads, **_sizes(d))
    return (y,)


def _outputs(x: Tensor, d: Tensor, gram: Tensor, steps: int) -> tuple[Tensor]:
    return (x.new_empty(*x.shape[:3], d.shape[-1], d.shape[-1]),)


def _backward(dy: Tensor, x: Tensor, d: Tensor, gram: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    dx, dd, dgram = _gradients(dy, x, d, gram, steps)
    batch, time, heads, vectors = x.shape
    sizes, count = _sizes(d), x.shape[:3].numel()
    x, d, gram = x.contiguous(), d.contiguous(), gram.contiguous()
    da = x.new_empty(count, sizes["CP"], sizes["CP"], dtype=torch.float64)
    room, programs = scratch(da, 2 * steps * sizes["CP"] ** 2, SCRATCH, torch.float64)
    _squares_kernel[programs,](packed(dy), x, d, gram, da, room, steps, count, time, heads, **sizes)
    grid = (batch * heads, triton.cdiv(vectors, BS.value))
    _sums_kernel[grid](x, d, gram, da, dx, dd, dgram, time, heads, **{**sizes, "num_warps": 4})
    return dx, dd, dgram


def _gradients(dy: Tensor, x: Tensor, d: Tensor, gram: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), d.new_empty(d.shape), gram.new_empty(gram.shape)


def _sizes(d: Tensor) -> dict[str, Any]:
    vectors, columns = d.shape[-2:]
    width = padded(columns)
    warps = 1 if width <= 16 else 4
    return {"S": vectors, "SP": padded(vectors), "C": columns, "CP": width, "num_warps": warps, "num_stages": 1}


_spanned_newton_schulz = opaque(
    "spanned_newton_schulz", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=1
)
