"""Monomials up to the second degree in one launch forward and one backward: a program takes a block of vectors.

y_il = rho_2 c_il x_i x_l,   dx_i = rho_1 dy_i + rho_2 sum_l c_il (1, or 2 of i itself) dy_il x_l,   c sqrt 2, or 1 of a square

B batch and all else that vectors stand in, G groups (roots [G, 3]), K variables, KP their power of two, F features; BN vectors,
BF features of a block
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.monomials.recurrent import count_monomials
from recallmap.arch.kernels.op_interface.custom_op import opaque

DEGREE = 2
WIDEST = 64
TILE = 2048  # numbers of a block
ROOT = tl.constexpr(2**0.5)


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call; None where these kernels serve."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    degree, width = sizes.get("degree", DEGREE), sizes.get("key_width", 1)
    if degree != DEGREE:
        return f"takes degree {DEGREE}, got {degree}"
    return f"takes vectors at most {WIDEST} wide, got {width}" if width > WIDEST else None


def fused(x: Tensor, roots: Tensor) -> Tensor:
    """x [..., K], roots [3] -> [..., F]."""
    (y,) = _monomials(x.reshape(-1, x.shape[-1]), roots.float()[None])
    return y.view(*x.shape[:-1], -1)


@triton.jit
def _ahead(j, K: tl.constexpr):
    """Products whose first variable is less than j."""
    return j * K - j * (j - 1) // 2


@triton.jit
def _load(at, there, other):
    return tl.load(at, mask=there, other=other).to(tl.float32)


@triton.jit(do_not_specialize=["B", "per_group"])
def _monomials_forward_kernel(
    x, roots, y, B, per_group, K: tl.constexpr, F: tl.constexpr, BN: tl.constexpr, BF: tl.constexpr
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    product = tl.minimum(tl.maximum(f - 1 - K, 0), F - 2 - K)
    # The j of which _ahead(j) <= product < _ahead(j + 1), by the root of a quadratic, and what its rounding missed.
    j = ((2 * K + 1 - tl.sqrt(((2 * K + 1) * (2 * K + 1) - 8 * product).to(tl.float32))) * 0.5).to(tl.int32)
    j = tl.minimum(tl.maximum(j, 0), K - 1)
    j = tl.where(_ahead(j, K) > product, j - 1, j)
    j = tl.where(_ahead(j + 1, K) <= product, j + 1, j)
    second = j + product - _ahead(j, K)
    alone = f <= K
    a = tl.where(alone, f - 1, j)
    there = (n < B)[:, None]
    own = x + n[:, None] * K
    x_a = _load(own + a[None, :], there & ((f > 0) & (f < F))[None, :], 1.0)
    x_b = _load(own + second[None, :], there & ((f > K) & (f < F))[None, :], 1.0)
    degree = tl.where(f > 0, 1, 0) + tl.where(alone, 0, 1)
    rho = _load(roots + (n // per_group * 3)[:, None] + degree[None, :], there, 0.0)
    share = tl.where(alone | (j == second), 1.0, ROOT)
    value = rho * share[None, :] * x_a * x_b
    tl.store(y + n[:, None] * F + f[None, :], value.to(y.dtype.element_ty), mask=there & (f < F)[None, :])


@triton.jit(do_not_specialize=["B", "per_group"])
def _monomials_backward_kernel(
    dy, x, roots, dx, by_degree, B, per_group, K: tl.constexpr, KP: tl.constexpr, F: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """by_degree [B, 3]: what a vector adds to the derivative by the roots."""
    n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    i, j = tl.arange(0, KP)[None, :, None], tl.arange(0, KP)[None, None, :]
    first, last = tl.minimum(i, j), tl.maximum(i, j)
    there = n < B
    rows = there[:, None, None]
    pair = 1 + K + _ahead(first, K) + last - first
    signal = _load(dy + n[:, None, None] * F + pair, rows & (i < K) & (j < K), 0.0)
    k = tl.arange(0, KP)[None, :]
    inside = there[:, None] & (k < K)
    x_k = _load(x + n[:, None] * K + k, inside, 0.0)
    alone = _load(dy + n[:, None] * F + 1 + k, inside, 0.0)
    own = n // per_group * 3
    rho_1, rho_2 = _load(roots + own + 1, there, 0.0), _load(roots + own + 2, there, 0.0)
    signal *= tl.where(i == j, 2.0, ROOT)
    slope = tl.sum(signal * tl.reshape(x_k, [BN, 1, KP]), 2)
    dx_k = rho_1[:, None] * alone + rho_2[:, None] * slope
    tl.store(dx + n[:, None] * K + k, dx_k.to(dx.dtype.element_ty), mask=inside)
    to = by_degree + n * 3
    tl.store(to, _load(dy + n * F, there, 0.0), mask=there)
    tl.store(to + 1, tl.sum(alone * x_k, 1), mask=there)
    tl.store(to + 2, tl.sum(slope * x_k, 1) * 0.5, mask=there)  # of a form of degree two x times its slope is twice it


def _forward(x: Tensor, roots: Tensor) -> tuple[Tensor]:
    (y,) = _outputs(x, roots)
    (count, width), features = x.shape, y.shape[-1]
    block = min(256, triton.next_power_of_2(features))
    grid = triton.cdiv(count, TILE // block), triton.cdiv(features, block)
    sizes: dict[str, Any] = {"K": width, "F": features, "BN": TILE // block, "BF": block}
    _monomials_forward_kernel[grid](x.contiguous(), roots.contiguous(), y, count, count // len(roots), **sizes)
    return (y,)


def _outputs(x: Tensor, roots: Tensor) -> tuple[Tensor]:
    return (x.new_empty(len(x), count_monomials(x.shape[-1], DEGREE)),)


def _backward(dy: Tensor, x: Tensor, roots: Tensor) -> tuple[Tensor, Tensor]:
    dx, _ = _gradients(dy, x, roots)
    (count, width), features = x.shape, dy.shape[-1]
    high = triton.next_power_of_2(width)
    block = max(1, TILE // high**2)
    by_degree = roots.new_empty(count, DEGREE + 1)
    given = dy.contiguous(), x.contiguous(), roots.contiguous()
    sizes: dict[str, Any] = {"K": width, "KP": high, "F": features, "BN": block}
    _monomials_backward_kernel[triton.cdiv(count, block),](*given, dx, by_degree, count, count // len(roots), **sizes)
    return dx, by_degree.view(len(roots), -1, DEGREE + 1).sum(1)


def _gradients(dy: Tensor, x: Tensor, roots: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), roots.new_empty(roots.shape)


_monomials = opaque("monomials", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=1)
