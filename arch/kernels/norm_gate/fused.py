"""The norm of every head and its gate, one launch forward and one backward, and a sum: each input is read once.

n = r x,  r = (mean(x^2) + eps)^{-1/2},    y = n * w * a(g)
dn = dy * w * a(g),   dx = r (dn - n mean(n * dn)),   dg = dy * n * w * a'(g),   dw = sum of dy * n * a(g)

A program takes a block of tokens and a block of channels: some whole heads. Backward adds up dw over a piece of a sequence; the
pieces of a member are summed behind it, always in the same order.

B batch, G groups of members (weights [G, H or 1, V]), T time, H heads, V width
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.op_interface.custom_op import dense, opaque

WIDEST = 1024
TILE, BACKWARD_TILE = 2048, 1024  # entries of a block: of bf16, two loads and one of every thread
COLUMNS = 128  # channels of a block, where a head has no more
MOST_ROWS = 32
PROGRAMS = 2048  # into which backward cuts sequences, where there are fewer
WARPS = 4


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call; None where these kernels serve."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    width = sizes.get("value_width", 1)
    return f"holds heads up to {WIDEST} wide, got {width}" if width > WIDEST else None


def fused(
    x: Tensor, *, weight: Tensor, gate: Tensor | None, activation: str, eps: float, output: torch.dtype
) -> Tensor:
    """The whole sequence."""
    (y,) = _norm_gate(x, weight[None], gate, activation == "sigmoid", eps, output)
    return y


class _Form(NamedTuple):
    """A block: ROWS tokens of HEADS heads of WIDTH channels, powers of two all."""

    rows: int
    heads: int
    width: int

    def constants(self, value_width: int, sigmoid: bool) -> dict[str, Any]:
        """The constants of compilation."""
        block = {"ROWS": self.rows, "HEADS": self.heads, "WIDTH": self.width}
        return {"V": value_width, "SIGMOID": sigmoid, **block, "num_warps": WARPS, "num_stages": 1}


def _table(heads: int, width: int, tile: int) -> _Form:
    whole = triton.next_power_of_2(width)
    together = max(1, min(COLUMNS // whole, triton.next_power_of_2(heads)))
    return _Form(max(1, min(MOST_ROWS, tile // (together * whole))), together, whole)


@triton.jit
def _where(H, V: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    """Heads and channels of this program's blocks [ROWS, HEADS, WIDTH], and which of them are there."""
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[None, :, None]
    channel = tl.arange(0, WIDTH)[None, None, :]
    return head, channel, (head < H) & (channel < V)


@triton.jit
def _load(x, at, there):
    return tl.load(x + at, mask=there, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["T", "H", "per_group", "blocks"])
def _norm_gate_forward_kernel(
    x, weight, gate, y, x_b, x_t, x_h, gate_b, gate_t, gate_h, weight_g, weight_h, T, H, per_group, blocks, eps,
    V: tl.constexpr, SIGMOID: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    b, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    head, channel, inside = _where(H, V, HEADS, WIDTH)
    row = block * ROWS + tl.arange(0, ROWS)[:, None, None]
    there = (row < T) & inside
    a = _load(x + b * x_b, row * x_t + head * x_h + channel, there)
    if gate is not None:
        g = _load(gate + b * gate_b, row * gate_t + head * gate_h + channel, there)
    w = _load(weight + b // per_group * weight_g, head * weight_h + channel, inside)
    a = a * tl.rsqrt(tl.sum(a * a, 2, keep_dims=True) / V + eps) * w
    if gate is not None:
        s = tl.sigmoid(g)
        a = a * s if SIGMOID else a * (g * s)
    tl.store(y + b * T * H * V + (row * (H * V) + head * V + channel), a.to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["T", "H", "per_group", "pieces", "length"])
def _norm_gate_backward_kernel(
    dy, x, weight, gate, dx, d_weight, d_gate, dy_b, dy_t, dy_h, x_b, x_t, x_h, gate_b, gate_t, gate_h,
    weight_g, weight_h, T, H, per_group, pieces, length, eps,
    V: tl.constexpr, SIGMOID: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Derivatives of a piece of `length` tokens, and its part in the one by the weight."""
    b, piece = (tl.program_id(0) // pieces).to(tl.int64), tl.program_id(0) % pieces
    head, channel, inside = _where(H, V, HEADS, WIDTH)
    w = _load(weight + b // per_group * weight_g, head * weight_h + channel, inside)
    dy += b * dy_b
    x += b * x_b
    dx += b * T * H * V
    if gate is not None:
        gate += b * gate_b
        d_gate += b * T * H * V
    # One sum for every row of the block: the rows are added up in the end alone.
    dw = tl.zeros([ROWS, HEADS, WIDTH], tl.float32)
    for start in range(piece * length, tl.minimum(piece * length + length, T), ROWS):
        row = start + tl.arange(0, ROWS)[:, None, None]
        there = (row < T) & inside
        d = _load(dy, row * dy_t + head * dy_h + channel, there)
        a = _load(x, row * x_t + head * x_h + channel, there)
        if gate is not None:
            g = _load(gate, row * gate_t + head * gate_h + channel, there)
        at = row * (H * V) + head * V + channel
        r = tl.rsqrt(tl.sum(a * a, 2, keep_dims=True) / V + eps)
        n = a * r
        if gate is not None:
            s = tl.sigmoid(g)
            slope = s * (1 - s) if SIGMOID else s * (1 + g * (1 - s))
            dg = d * n * w * slope
            tl.store(d_gate + at, dg.to(d_gate.dtype.element_ty), mask=there)
            d = d * s if SIGMOID else d * (g * s)
        dw += d * n
        dn = d * w
        da = r * (dn - n * (tl.sum(n * dn, 2, keep_dims=True) / V))
        tl.store(dx + at, da.to(dx.dtype.element_ty), mask=there)
    at = tl.program_id(0).to(tl.int64) * H * V + head * V + channel
    tl.store(d_weight + at, tl.sum(dw, 0, keep_dims=True), mask=inside)


def _forward(
    x: Tensor, weight: Tensor, gate: Tensor | None, sigmoid: bool, eps: float, output: torch.dtype
) -> tuple[Tensor]:
    x, weight, gate = dense(x), weight.contiguous(), None if gate is None else dense(gate)
    batch, time, heads, width = x.shape
    (y,) = _outputs(x, weight, gate, sigmoid, eps, output)
    form = _table(heads, width, TILE)
    blocks = triton.cdiv(time, form.rows)
    _norm_gate_forward_kernel[batch * blocks, triton.cdiv(heads, form.heads)](
        x, weight, gate, y, *x.stride()[:3], *_strides(gate), *_of_weight(weight), time, heads,
        batch // len(weight), blocks, eps, **form.constants(width, sigmoid),
    )  # fmt: skip
    return (y,)


def _outputs(
    x: Tensor, weight: Tensor, gate: Tensor | None, sigmoid: bool, eps: float, output: torch.dtype
) -> tuple[Tensor]:
    return (x.new_empty(x.shape, dtype=output),)


def _backward(
    dy: Tensor, x: Tensor, weight: Tensor, gate: Tensor | None, sigmoid: bool, eps: float, output: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    dy, x, weight, gate = dense(dy), dense(x), weight.contiguous(), None if gate is None else dense(gate)
    (batch, time, heads, width), groups = x.shape, len(weight)
    dx, _, d_gate = _gradients(dy, x, weight, gate, sigmoid, eps, output)
    form = _table(heads, width, BACKWARD_TILE)
    columns, blocks = triton.cdiv(heads, form.heads), triton.cdiv(time, form.rows)
    length = form.rows * triton.cdiv(blocks, min(blocks, triton.cdiv(PROGRAMS, batch * columns)))
    pieces = triton.cdiv(time, length)
    d_weight = x.new_empty(batch * pieces, heads, width, dtype=torch.float32)
    _norm_gate_backward_kernel[batch * pieces, columns](
        dy, x, weight, gate, dx, d_weight, None if gate is None else d_gate, *dy.stride()[:3], *x.stride()[:3],
        *_strides(gate), *_of_weight(weight), time, heads, batch // groups, pieces, length, eps,
        **form.constants(width, sigmoid),
    )  # fmt: skip
    over = (1, 2) if weight.shape[1] == 1 else (1,)
    summed = d_weight.view(groups, -1, heads, width).sum(over).view(weight.shape)
    return dx, summed.to(weight.dtype), d_gate


def _gradients(
    dy: Tensor, x: Tensor, weight: Tensor, gate: Tensor | None, sigmoid: bool, eps: float, output: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape),
        weight.new_empty(weight.shape),
        x.new_empty(len(x)) if gate is None else gate.new_empty(gate.shape),
    )


def _strides(gate: Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0) if gate is None else gate.stride()[:3]


def _of_weight(weight: Tensor) -> tuple[int, int]:
    """Its strides by group and head; heads that share it stand still."""
    return weight.stride(0), 0 if weight.shape[1] == 1 else weight.stride(1)


_norm_gate = opaque("norm_gate", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=1)
