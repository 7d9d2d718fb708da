"""Spanned matrices in one launch forward and one backward: forward a program makes BT of a head's, backward one walks all.

dx_t = rows' sums of D . (U dP_t),   dD = sum_t diag(x_t) U dP_t,   dU = sum_t diag(x_t) D dP_t^T
dP_0 = sum_t slowed_t dP_t,          dslowed_t = <dP_t, P_0>

B batch, T time, H heads, S vectors, R rows, C columns; SP, RP, CP their powers of two
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.op_interface.custom_op import opaque, packed, padded
from recallmap.arch.kernels.triton_tiles.token_matrices import load_vector, matrix_places, times

WIDEST = 32  # rows, and columns
MOST_VECTORS = 64
BT = 4  # tokens
NARROW = 512  # numbers of the vectors, or of what they span, that one warp holds


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call; None where these kernels serve."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    rows, columns, vectors = sizes.get("key_width", 1), sizes.get("value_width", 1), sizes.get("vectors", 1)
    if max(rows, columns) > WIDEST:
        return f"takes at most {WIDEST} rows and columns, got {rows} x {columns}"
    return f"takes at most {MOST_VECTORS} vectors, got {vectors}" if vectors > MOST_VECTORS else None


def fused(x: Tensor, d: Tensor, u: Tensor, *, slowed: Tensor | None, p: Tensor | None) -> Tensor:
    """x [B, T, H, S], d [B, H, S, C], u [B, H, S, R] -> [B, T, H, R, C]."""
    before = None if p is None else p.float()
    (y,) = _spanned(x, d.float(), u.float(), None if slowed is None else slowed.float(), before)
    return y


@triton.jit(do_not_specialize=["T", "H"])
def _spanned_forward_kernel(
    x, d, u, slowed, p, y, T, H,
    S: tl.constexpr, SP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr, C: tl.constexpr, CP: tl.constexpr,
    BT: tl.constexpr,
):  # fmt: skip
    parts = tl.cdiv(T, BT)
    head, first = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts * BT
    n = (head // H) * T * H + head % H + first * H  # of the first token
    s, r, c = tl.arange(0, SP), tl.arange(0, RP), tl.arange(0, CP)
    of_d, there_d = matrix_places(s, c, S, C)
    of_u, there_u = matrix_places(s, r, S, R)
    of_p, there_p = matrix_places(r, c, R, C)
    d_sc = tl.load(d + head * (S * C) + of_d, mask=there_d, other=0.0)
    u_rs = tl.trans(tl.load(u + head * (S * R) + of_u, mask=there_u, other=0.0))
    if p is not None:
        before = tl.load(p + head * (R * C) + of_p, mask=there_p, other=0.0)
    for _ in range(tl.minimum(BT, T - first)):
        made = times(u_rs, load_vector(x + n * S, s, S)[:, None] * d_sc)
        if p is not None:
            made += tl.load(slowed + n) * before
        tl.store(y + n * (R * C) + of_p, made.to(y.dtype.element_ty), mask=there_p)
        n += H


@triton.jit(do_not_specialize=["T", "H"])
def _spanned_backward_kernel(
    dy, x, d, u, slowed, p, dx, dd, du, dslowed, dp, T, H,
    S: tl.constexpr, SP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr, C: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64)
    n = (head // H) * T * H + head % H  # of the first token
    s, r, c = tl.arange(0, SP), tl.arange(0, RP), tl.arange(0, CP)
    of_d, there_d = matrix_places(s, c, S, C)
    of_u, there_u = matrix_places(s, r, S, R)
    of_p, there_p = matrix_places(r, c, R, C)
    d_sc = tl.load(d + head * (S * C) + of_d, mask=there_d, other=0.0)
    u_sr = tl.load(u + head * (S * R) + of_u, mask=there_u, other=0.0)
    sum_d, sum_u, sum_p = tl.zeros([SP, CP], tl.float32), tl.zeros([SP, RP], tl.float32), tl.zeros([RP, CP], tl.float32)
    if p is not None:
        before = tl.load(p + head * (R * C) + of_p, mask=there_p, other=0.0)
    for _ in range(T):
        signal = tl.load(dy + n * (R * C) + of_p, mask=there_p, other=0.0).to(tl.float32)
        weight = load_vector(x + n * S, s, S)
        through = times(u_sr, signal)
        tl.store(dx + n * S + s, tl.sum(through * d_sc, 1).to(dx.dtype.element_ty), mask=s < S)
        sum_d += weight[:, None] * through
        sum_u += weight[:, None] * times(d_sc, tl.trans(signal))
        if p is not None:
            tl.store(dslowed + n, tl.sum(signal * before))
            sum_p += tl.load(slowed + n) * signal
        n += H
    tl.store(dd + head * (S * C) + of_d, sum_d, mask=there_d)
    tl.store(du + head * (S * R) + of_u, sum_u, mask=there_u)
    if p is not None:
        tl.store(dp + head * (R * C) + of_p, sum_p, mask=there_p)


def _forward(x: Tensor, d: Tensor, u: Tensor, slowed: Tensor | None, p: Tensor | None) -> tuple[Tensor]:
    (y,) = _outputs(x, d, u, slowed, p)
    batch, time, heads, _ = x.shape
    given = (packed(t) for t in (x, d, u, slowed, p))
    _spanned_forward_kernel[(batch * heads * triton.cdiv(time, BT),)](*given, y, time, heads, **_sizes(d, u), BT=BT)
    return (y,)


def _outputs(x: Tensor, d: Tensor, u: Tensor, slowed: Tensor | None, p: Tensor | None) -> tuple[Tensor]:
    return (x.new_empty(*x.shape[:3], u.shape[-1], d.shape[-1]),)


def _backward(
    dy: Tensor, x: Tensor, d: Tensor, u: Tensor, slowed: Tensor | None, p: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    results = _gradients(dy, x, d, u, slowed, p)
    batch, time, heads, _ = x.shape
    given = (packed(t) for t in (dy, x, d, u, slowed, p))
    _spanned_backward_kernel[(batch * heads,)](*given, *results, time, heads, **_sizes(d, u))
    return results


def _gradients(
    dy: Tensor, x: Tensor, d: Tensor, u: Tensor, slowed: Tensor | None, p: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    by_slowed, by_p = (d.new_empty(d.shape[0], 0) if t is None else t.new_empty(t.shape) for t in (slowed, p))
    return x.new_empty(x.shape), d.new_empty(d.shape), u.new_empty(u.shape), by_slowed, by_p


def _sizes(d: Tensor, u: Tensor) -> dict[str, Any]:
    (vectors, columns), rows = d.shape[-2:], u.shape[-1]
    high, tall, wide = padded(vectors), padded(rows), padded(columns)
    warps = 1 if max(high * max(tall, wide), tall * wide) <= NARROW else 4
    return {
        "S": vectors, "SP": high, "R": rows, "RP": tall, "C": columns, "CP": wide, "num_warps": warps, "num_stages": 1,
    }  # fmt: skip


_spanned = opaque("spanned", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=1)
