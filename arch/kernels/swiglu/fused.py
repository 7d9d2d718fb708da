"""SwiGLU, one launch forward and one backward: each input is read once.

y = g s v,  s = sigmoid(g),    dg = dy v s (1 + g (1 - s)),   dv = dy g s

B batch, T time, H heads, V width
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.op_interface.custom_op import opaque

BLOCK = 1024  # outputs of a program
WARPS = 4


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call; None where these kernels serve."""
    return "computes in fp32 at most" if dtype == torch.float64 else None


def fused(x: Tensor) -> Tensor:
    """The whole sequence."""
    (y,) = _swiglu(x)
    return y


@triton.jit
def _read(x, count, V: tl.constexpr, BLOCK: tl.constexpr):
    """Places of this program's outputs, which of them are there, those of their gates, gates, and values."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    first = at // V * (2 * V) + at % V
    g = tl.load(x + first, mask=there, other=0.0).to(tl.float32)
    v = tl.load(x + first + V, mask=there, other=0.0).to(tl.float32)
    return at, there, first, g, v


@triton.jit(do_not_specialize=["count"])
def _swiglu_forward_kernel(x, y, count, V: tl.constexpr, BLOCK: tl.constexpr):
    at, there, _, g, v = _read(x, count, V, BLOCK)
    tl.store(y + at, (g * tl.sigmoid(g) * v).to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["count"])
def _swiglu_backward_kernel(dy, x, dx, count, V: tl.constexpr, BLOCK: tl.constexpr):
    at, there, first, g, v = _read(x, count, V, BLOCK)
    d = tl.load(dy + at, mask=there, other=0.0).to(tl.float32)
    s = tl.sigmoid(g)
    tl.store(dx + first, (d * v * s * (1 + g * (1 - s))).to(dx.dtype.element_ty), mask=there)
    tl.store(dx + first + V, (d * g * s).to(dx.dtype.element_ty), mask=there)


def _forward(x: Tensor) -> tuple[Tensor]:
    x = x.contiguous()
    (y,) = _outputs(x)
    _swiglu_forward_kernel[(triton.cdiv(y.numel(), BLOCK),)](x, y, y.numel(), y.shape[-1], BLOCK, num_warps=WARPS)
    return (y,)


def _outputs(x: Tensor) -> tuple[Tensor]:
    return (x.new_empty(*x.shape[:-1], x.shape[-1] // 2),)


def _backward(dy: Tensor, x: Tensor) -> tuple[Tensor]:
    dy, x = dy.contiguous(), x.contiguous()
    (dx,) = _gradients(dy, x)
    _swiglu_backward_kernel[(triton.cdiv(dy.numel(), BLOCK),)](
        dy, x, dx, dy.numel(), dy.shape[-1], BLOCK, num_warps=WARPS
    )
    return (dx,)


def _gradients(dy: Tensor, x: Tensor) -> tuple[Tensor]:
    return (x.new_empty(x.shape),)


_swiglu = opaque("swiglu", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=1)
