"""Rotary positions, one launch forward and one backward: each input is read once.

[y, y'] = [x c - x' s, x' c + x s],    [dx, dx'] = [dy c + dy' s, dy' c - dy s],    da = dy' y - dy y'

x' the second half of the channels, c and s cosine and sine of the angle a

B batch, G groups of members (angles [G, T, ...]), T time, H heads, K width
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.op_interface.custom_op import dense, opaque

BLOCK = 1024  # pairs of a program
WARPS = 4


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call; None where these kernels serve."""
    return "computes in fp32 at most" if dtype == torch.float64 else None


def fused(x: Tensor, *, angle: Tensor, learned: bool) -> Tensor:
    """The whole sequence."""
    (y,) = _rotary(x, angle.float(), learned)
    return y


@triton.jit
def _places(T, H, per_group, angle_g, angle_t, angle_h, count, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """Sequence, token, head and channel of this program's pairs, which of them are there, and where their angles lie."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel, row = at % HALF, at // HALF
    head, token = row % H, row // H
    b, t = token // T, token % T
    return b, t, head, channel, row, at < count, b // per_group * angle_g + t * angle_t + head * angle_h + channel


@triton.jit(do_not_specialize=["T", "H", "per_group", "count"])
def _rotary_forward_kernel(
    x, angle, y, x_b, x_t, x_h, angle_g, angle_t, angle_h, T, H, per_group, count,
    HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b, t, head, channel, row, there, of_angle = _places(T, H, per_group, angle_g, angle_t, angle_h, count, HALF, BLOCK)
    from_x = x + b * x_b + t * x_t + head * x_h + channel
    first = tl.load(from_x, mask=there, other=0.0).to(tl.float32)
    second = tl.load(from_x + HALF, mask=there, other=0.0).to(tl.float32)
    a = tl.load(angle + of_angle, mask=there, other=0.0)
    c, s = tl.cos(a), tl.sin(a)
    to_y = y + row * (2 * HALF) + channel
    tl.store(to_y, (first * c - second * s).to(y.dtype.element_ty), mask=there)
    tl.store(to_y + HALF, (second * c + first * s).to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["T", "H", "per_group", "count"])
def _rotary_backward_kernel(
    dy, x, angle, dx, d_angle, dy_b, dy_t, dy_h, x_b, x_t, x_h, angle_g, angle_t, angle_h, T, H, per_group, count,
    HALF: tl.constexpr, LEARNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b, t, head, channel, row, there, of_angle = _places(T, H, per_group, angle_g, angle_t, angle_h, count, HALF, BLOCK)
    from_dy = dy + b * dy_b + t * dy_t + head * dy_h + channel
    first = tl.load(from_dy, mask=there, other=0.0).to(tl.float32)
    second = tl.load(from_dy + HALF, mask=there, other=0.0).to(tl.float32)
    a = tl.load(angle + of_angle, mask=there, other=0.0)
    c, s = tl.cos(a), tl.sin(a)
    back, back_second = first * c + second * s, second * c - first * s
    to_dx = dx + row * (2 * HALF) + channel
    tl.store(to_dx, back.to(dx.dtype.element_ty), mask=there)
    tl.store(to_dx + HALF, back_second.to(dx.dtype.element_ty), mask=there)
    if LEARNED:  # turned back, the derivative stands to x as dy does to y
        from_x = x + b * x_b + t * x_t + head * x_h + channel
        x_first = tl.load(from_x, mask=there, other=0.0).to(tl.float32)
        x_second = tl.load(from_x + HALF, mask=there, other=0.0).to(tl.float32)
        tl.store(d_angle + row * HALF + channel, back_second * x_first - back * x_second, mask=there)


def _forward(x: Tensor, angle: Tensor, learned: bool) -> tuple[Tensor]:
    x, angle = dense(x), angle.contiguous()
    (y,) = _outputs(x, angle, learned)
    count, (batch, time, heads, width) = y.numel() // 2, x.shape
    _rotary_forward_kernel[(triton.cdiv(count, BLOCK),)](
        x, angle, y, *x.stride()[:3], *_of_angle(angle), time, heads, batch // len(angle), count, width // 2, BLOCK,
        num_warps=WARPS,
    )  # fmt: skip
    return (y,)


def _outputs(x: Tensor, angle: Tensor, learned: bool) -> tuple[Tensor]:
    return (x.new_empty(x.shape),)


def _backward(dy: Tensor, x: Tensor, angle: Tensor, learned: bool) -> tuple[Tensor, Tensor]:
    dy, x, angle = dense(dy), dense(x), angle.contiguous()
    dx, d_angle = _gradients(dy, x, angle, learned)
    count, (batch, time, heads, width) = x.numel() // 2, x.shape
    of_all = x.new_empty(*x.shape[:-1], width // 2, dtype=torch.float32) if learned else None
    _rotary_backward_kernel[(triton.cdiv(count, BLOCK),)](
        dy, x, angle, dx, of_all, *dy.stride()[:3], *x.stride()[:3], *_of_angle(angle), time, heads,
        batch // len(angle), count, width // 2, learned, BLOCK, num_warps=WARPS,
    )  # fmt: skip
    if of_all is not None:
        by_group = of_all.unflatten(0, (len(angle), -1)).sum(1)
        d_angle = by_group.sum(2, keepdim=True) if angle.shape[2] == 1 else by_group
    return dx, d_angle


def _gradients(dy: Tensor, x: Tensor, angle: Tensor, learned: bool) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), angle.new_empty(angle.shape if learned else len(angle))


def _of_angle(angle: Tensor) -> tuple[int, int, int]:
    """Its strides by group, token and head; heads that share it stand still."""
    return angle.stride(0), angle.stride(1), 0 if angle.shape[2] == 1 else angle.stride(2)


_rotary = opaque("rotary", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=1)
