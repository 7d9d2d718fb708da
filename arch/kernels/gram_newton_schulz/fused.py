"""Newton-Schulz by S^T S, a matrix a program, in registers and in fp64; one launch forward and one backward.

Q' = P Q,   A' = P A P,   P = a I + b A + c A^2
dP = dQ' Q^T + T + T^T,  T = dA' P A,   dQ = P dQ',   dA = P dA' P + b dP + c (dP A + A dP),   dP and dA made symmetric
Backward goes through the steps again and keeps what each begins with in scratch memory. A program uses its own again for every
matrix that it takes, so that all of it stays in the caches.

N matrices, C columns, CP their power of two
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
from arch.kernels.opaque import matrices, opaque, packed, padded, scratch

WIDEST = 32
SCRATCH = 11 * 2**20  # doubles of scratch memory for all programs

_LINEAR, _CUBIC, _QUINTIC = tl.constexpr(LINEAR), tl.constexpr(CUBIC), tl.constexpr(QUINTIC)
_EPS, _LEAST = tl.constexpr(EPS), tl.constexpr(LEAST)


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """What these kernels cannot do."""
    width = sizes.get("value_width", 1)
    return f"takes squares up to {WIDEST} wide, got {width}" if width > WIDEST else None


def fused(x: Tensor, *, steps: int) -> Tensor:
    """All matrices [..., C, C]."""
    (y,) = _gram_newton_schulz(x[None] if x.ndim == 2 else x, steps)
    return y[0] if x.ndim == 2 else y


@triton.jit
def _times(x, y):
    return tl.dot(x, y, out_dtype=tl.float64)


@triton.jit
def _tile(CP: tl.constexpr):
    return tl.arange(0, CP)[:, None], tl.arange(0, CP)[None, :]


@triton.jit
def _begun(x, n, C: tl.constexpr, CP: tl.constexpr):
    """The symmetric part of a matrix, one of 1 and 0, and which entries there are; the trace and its root."""
    row, column = _tile(CP)
    there = (row < C) & (column < C)
    x += n.to(tl.int64) * (C * C)
    gram = tl.load(x + row * C + column, mask=there, other=0.0).to(tl.float64)
    gram = (gram + tl.load(x + column * C + row, mask=there, other=0.0).to(tl.float64)) * 0.5
    unit = tl.where(row == column, 1.0, 0.0).to(tl.float64)
    trace = tl.sum(gram * unit)
    return gram, unit, there, trace, tl.sqrt(tl.maximum(trace, _LEAST))


@triton.jit
def _by(gram, unit):
    return unit * _LINEAR + gram * _CUBIC + _times(gram, gram) * _QUINTIC


@triton.jit(do_not_specialize=["steps"])
def _forward_kernel(x, y, steps, C: tl.constexpr, CP: tl.constexpr):
    n = tl.program_id(0)
    gram, unit, there, _trace, size = _begun(x, n, C, CP)
    shrunk = 1.0 / (size + _EPS)
    gram, factor = gram * (shrunk * shrunk), unit * shrunk
    for _ in range(steps):
        by = _by(gram, unit)
        factor = _times(by, factor)
        gram = _times(_times(by, gram), by)
    row, column = _tile(CP)
    tl.store(y + n.to(tl.int64) * (C * C) + row * C + column, factor.to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["steps", "N"])
def _backward_kernel(dy, x, dx, scratch, steps, N, C: tl.constexpr, CP: tl.constexpr):
    row, column = _tile(CP)
    here, at = row * CP + column, row * C + column
    scratch += tl.program_id(0).to(tl.int64) * steps * (2 * CP * CP)
    n = tl.program_id(0)
    for _ in range(tl.program_id(0), N, tl.num_programs(0)):
        given, unit, there, trace, size = _begun(x, n, C, CP)
        shrunk = 1.0 / (size + _EPS)
        gram, factor = given * (shrunk * shrunk), unit
        for step in range(steps):
            tl.store(scratch + step * (2 * CP * CP) + here, factor)
            tl.store(scratch + step * (2 * CP * CP) + CP * CP + here, gram)
            by = _by(gram, unit)
            factor = _times(by, factor)
            gram = _times(_times(by, gram), by)
        tl.debug_barrier()  # other threads read what these wrote
        d_factor = tl.load(dy + n.to(tl.int64) * (C * C) + at, mask=there, other=0.0).to(tl.float64)
        d_shrunk = tl.sum(d_factor * factor)
        d_factor = d_factor * shrunk
        d_gram = unit * 0.0
        for back in range(steps):
            step = steps - 1 - back
            before = tl.load(scratch + step * (2 * CP * CP) + here)
            gram = tl.load(scratch + step * (2 * CP * CP) + CP * CP + here)
            by = _by(gram, unit)
            turn = _times(d_gram, _times(by, gram))
            d_by = _times(d_factor, tl.trans(before)) + turn + tl.trans(turn)
            d_by = (d_by + tl.trans(d_by)) * 0.5
            d_factor = _times(by, d_factor)
            turn = _times(d_by, gram)
            d_gram = _times(_times(by, d_gram), by) + d_by * _CUBIC + (turn + tl.trans(turn)) * _QUINTIC
        d_shrunk += 2.0 * shrunk * tl.sum(d_gram * given)
        d_trace = tl.where(trace >= _LEAST, -0.5 * d_shrunk * shrunk * shrunk / size, 0.0)
        d = d_gram * (shrunk * shrunk) + unit * d_trace
        tl.store(dx + n.to(tl.int64) * (C * C) + at, d.to(dx.dtype.element_ty), mask=there)
        tl.debug_barrier()  # before these write again
        n += tl.num_programs(0)


def _forward(x: Tensor, steps: int) -> tuple[Tensor]:
    (y,) = _outputs(x, steps)
    _forward_kernel[matrices(x),](packed(x), y, steps, **_sizes(x))
    return (y,)


def _outputs(x: Tensor, steps: int) -> tuple[Tensor]:
    return (x.new_empty(x.shape),)


def _backward(dy: Tensor, x: Tensor, steps: int) -> tuple[Tensor]:
    (dx,) = _gradients(dy, x, steps)
    sizes = _sizes(x)
    room, programs = scratch(x, 2 * steps * sizes["CP"] ** 2, SCRATCH, torch.float64)
    _backward_kernel[programs,](packed(dy), packed(x), dx, room, steps, matrices(x), **sizes)
    return (dx,)


def _gradients(dy: Tensor, x: Tensor, steps: int) -> tuple[Tensor]:
    return (x.new_empty(x.shape),)


def _sizes(x: Tensor) -> dict[str, Any]:
    width = padded(x.shape[-1])
    return {"C": x.shape[-1], "CP": width, "num_warps": 1 if width <= 16 else 4, "num_stages": 1}


_gram_newton_schulz = opaque(
    "gram_newton_schulz", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=1
)
