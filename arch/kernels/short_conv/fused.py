"""The short convolution in one launch forward and two backward: every input is read once from memory, for all its taps.

z_t = sum_i w_i * x_{t-i} + b,    a_t = z_t or SiLU(z_t),    y_t = a_t r_t,  r_t = (|a_t|^2 + eps)^{-1/2} or 1
da_t = r_t (dy_t - y_t (y_t . dy_t)),   dz_t = da_t a'(z_t),   dx_t = sum_i w_i dz_{t+i},   dw_i = sum_t dz_{t+i} x_t

A program takes a block of tokens and a block of channels: some whole heads, or a part of one where no length is taken.
Backward computes z again. It leaves dz to its second launch, for a program cannot shift rows that it holds; there dw_i is
summed from the shifted rows that dx takes.

B batch, G groups of members (weights [G, H, K, taps]), T time, H heads, K width, N blocks of tokens
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.op_interface.custom_op import dense, opaque, packed
from recallmap.arch.kernels.short_conv.recurrent import EPS

ROWS = 16  # tokens of a block
FEW_ROWS = 4  # of a block of the outer launch, which holds a sum a tap besides
PROGRAMS = 512  # into which backward cuts sequences, where there are fewer
MOST_TAPS = 4
COLUMNS = 128  # channels of a block, where a head has no more
WIDEST = 256  # of heads brought to length 1


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call; None where these kernels serve."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    if sizes.get("taps", 1) > MOST_TAPS:
        return f"takes {MOST_TAPS} taps at most"
    if sizes.get("unit") and sizes["key_width"] > WIDEST:
        return f"brings heads up to {WIDEST} wide to length 1"
    return None


def fused(
    x: Tensor,
    *,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    unit: bool,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence; `chunk` has no meaning here."""
    (y,) = _short_conv(x, weight[None], None if bias is None else bias[None], initial_state, activation == "silu", unit)
    return y, _last(x, initial_state, weight.shape[-1] - 1) if return_state else None


def _last(x: Tensor, initial_state: Tensor | None, past: int) -> Tensor:
    """The last inputs, in fp32."""
    tail = x[:, max(x.shape[1] - past, 0) :].float()
    missing = past - tail.shape[1]
    if not missing:
        return tail
    before = (
        x.new_zeros(x.shape[0], past, *x.shape[2:], dtype=torch.float32) if initial_state is None else initial_state
    )
    return torch.cat([before[:, past - missing :].float(), tail], 1)


class _Share(NamedTuple):
    """How channels are shared out: HEADS whole heads of WIDTH channels each (a power of two) a program, or, where WIDTH is
    less than a head, one of `parts` of it."""

    heads: int
    width: int
    parts: int

    def form(self, taps: int, rows: int) -> dict[str, int]:
        """The constants of compilation."""
        warps = 4 if self.heads * self.width <= COLUMNS else 8
        own = {"PARTS": self.parts, "HEADS": self.heads, "WIDTH": self.width}
        return own | {"TAPS": taps, "ROWS": rows, "num_warps": warps}


def _shares(heads: int, width: int, unit: bool) -> _Share:
    whole = triton.next_power_of_2(width)
    if whole > COLUMNS and not unit:
        return _Share(1, COLUMNS, triton.cdiv(width, COLUMNS))
    return _Share(max(1, min(COLUMNS // whole, triton.next_power_of_2(heads))), whole, 1)


@triton.jit
def _where(H: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Head and channel of every column of this program, and which of them are there. Where all are, no mask is left that
    would keep neighbours from being read together."""
    column = tl.arange(0, HEADS * WIDTH)
    block = tl.program_id(1)
    head = block // PARTS * HEADS + column // WIDTH
    channel = block % PARTS * WIDTH + column % WIDTH
    there = (head < H) & (channel < K)
    if H % HEADS == 0 and K == PARTS * WIDTH:
        there = tl.full((HEADS * WIDTH,), True, tl.int1)
    return head, channel, there


@triton.jit
def _input(x, initial, row, at, there, T, stride_t, HK, head_channel, PAST: tl.constexpr):  # type: ignore[no-untyped-def]
    """Inputs of these rows [ROWS, COLUMNS]; those before the first token are the state's."""
    now = (row >= 0) & (row < T)
    tile = tl.load(x + row[:, None] * stride_t + at[None, :], mask=now[:, None] & there[None, :], other=0.0).to(
        tl.float32
    )
    if initial is not None:
        before = (row < 0) & (row >= -PAST)
        where = (row + PAST)[:, None] * HK + head_channel[None, :]
        tile += tl.load(initial + where, mask=before[:, None] & there[None, :], other=0.0).to(tl.float32)
    return tile


@triton.jit
def _sum(x, weight, bias, initial, row, at, there, T, stride_t, HK, head_channel, TAPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """z of these rows."""
    z = tl.zeros([row.shape[0], at.shape[0]], tl.float32)
    for ago in tl.static_range(TAPS):
        w = tl.load(weight + head_channel * TAPS + ago, mask=there, other=0.0).to(tl.float32)
        z += w[None, :] * _input(x, initial, row - ago, at, there, T, stride_t, HK, head_channel, TAPS - 1)
    if bias is not None:
        z += tl.load(bias + head_channel, mask=there, other=0.0).to(tl.float32)[None, :]
    return z


@triton.jit
def _by_head(x, ROWS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums over the channels of every head, at each of its channels."""
    sums = tl.sum(tl.reshape(x, (ROWS, HEADS, WIDTH)), 2, keep_dims=True)
    return tl.reshape(tl.broadcast_to(sums, (ROWS, HEADS, WIDTH)), (ROWS, HEADS * WIDTH))


@triton.jit(do_not_specialize=["T", "per_group", "blocks"])
def _short_conv_forward_kernel(  # type: ignore[no-untyped-def]
    x, weight, bias, initial, y, stride_b, stride_t, stride_h, T, per_group, blocks, eps,
    H: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr, TAPS: tl.constexpr, SILU: tl.constexpr, UNIT: tl.constexpr,
    ROWS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    b, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    head, channel, there = _where(H, K, PARTS, HEADS, WIDTH)
    at, head_channel = head * stride_h + channel, head * K + channel
    row = block * ROWS + tl.arange(0, ROWS)
    group = b // per_group
    weight += group * H * K * TAPS
    if bias is not None:
        bias += group * H * K
    if initial is not None:
        initial += b * (TAPS - 1) * H * K
    a = _sum(x + b * stride_b, weight, bias, initial, row, at, there, T, stride_t, H * K, head_channel, TAPS)
    if SILU:
        a = a * tl.sigmoid(a)
    if UNIT:
        a = a * tl.rsqrt(_by_head(a * a, ROWS, HEADS, WIDTH) + eps)
    mask = (row < T)[:, None] & there[None, :]
    tl.store(y + b * T * H * K + row[:, None] * (H * K) + head_channel[None, :], a.to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["T", "per_group", "blocks"])
def _short_conv_inner_kernel(  # type: ignore[no-untyped-def]
    dy, x, weight, bias, initial, dz, dy_b, dy_t, dy_h, stride_b, stride_t, stride_h, T, per_group, blocks, eps,
    H: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr, TAPS: tl.constexpr, SILU: tl.constexpr, UNIT: tl.constexpr,
    ROWS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """dz, of a block of tokens."""
    b, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    head, channel, there = _where(H, K, PARTS, HEADS, WIDTH)
    at, dy_at, head_channel = head * stride_h + channel, head * dy_h + channel, head * K + channel
    row = block * ROWS + tl.arange(0, ROWS)
    group = b // per_group
    weight += group * H * K * TAPS
    if bias is not None:
        bias += group * H * K
    if initial is not None:
        initial += b * (TAPS - 1) * H * K
    mask = (row < T)[:, None] & there[None, :]
    d = tl.load(dy + b * dy_b + row[:, None] * dy_t + dy_at[None, :], mask=mask, other=0.0).to(tl.float32)
    z = _sum(x + b * stride_b, weight, bias, initial, row, at, there, T, stride_t, H * K, head_channel, TAPS)
    s = tl.sigmoid(z)
    if UNIT:
        a = z * s if SILU else z
        r = tl.rsqrt(_by_head(a * a, ROWS, HEADS, WIDTH) + eps)
        unit = a * r
        d = r * (d - unit * _by_head(unit * d, ROWS, HEADS, WIDTH))
    if SILU:
        d = d * s * (1 + z * (1 - s))
    tl.store(dz + b * T * H * K + row[:, None] * (H * K) + head_channel[None, :], d.to(dz.dtype.element_ty), mask=mask)


@triton.jit
def _ahead(dz, row, head_channel, there, T, HK):  # type: ignore[no-untyped-def]
    """dz of these rows [ROWS, COLUMNS]."""
    inside = ((row >= 0) & (row < T))[:, None] & there[None, :]
    return tl.load(dz + row[:, None] * HK + head_channel[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["T", "per_group", "pieces", "length"])
def _short_conv_outer_kernel(  # type: ignore[no-untyped-def]
    dz, x, weight, initial, dx, d_initial, d_weight, d_bias, stride_b, stride_t, stride_h, dx_b, dx_t,
    T, per_group, pieces, length,
    H: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr,
    TAPS: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """dx of a piece of `length` inputs, and their part in the derivatives by weight and bias. Where there is a state, it is
    the first of the inputs, and its derivative goes where it came from."""
    b, piece = (tl.program_id(0) // pieces).to(tl.int64), tl.program_id(0) % pieces
    head, channel, there = _where(H, K, PARTS, HEADS, WIDTH)
    at, head_channel = head * stride_h + channel, head * K + channel
    PAST: tl.constexpr = TAPS - 1 if initial is not None else 0
    weight += b // per_group * H * K * TAPS + head_channel * TAPS
    x += b * stride_b
    dz += b * T * H * K
    dx += b * dx_b
    if initial is not None:
        initial += b * PAST * H * K
        d_initial += b * PAST * H * K
    w0 = tl.load(weight, mask=there, other=0.0).to(tl.float32)[None, :]
    w1, w2, w3 = w0, w0, w0
    if TAPS > 1:
        w1 = tl.load(weight + 1, mask=there, other=0.0).to(tl.float32)[None, :]
    if TAPS > 2:
        w2 = tl.load(weight + 2, mask=there, other=0.0).to(tl.float32)[None, :]
    if TAPS > 3:
        w3 = tl.load(weight + 3, mask=there, other=0.0).to(tl.float32)[None, :]
    # One sum a tap, over inputs that lie in one row of the block: the rows are added up in the end alone.
    sum0 = tl.zeros([ROWS, HEADS * WIDTH], tl.float32)
    sum1, sum2, sum3, sum_bias = sum0, sum0, sum0, sum0
    for start in range(piece * length - PAST, tl.minimum(piece * length + length - PAST, T), ROWS):
        row = start + tl.arange(0, ROWS)
        here = _input(x, initial, row, at, there, T, stride_t, H * K, head_channel, PAST)
        later = _ahead(dz, row, head_channel, there, T, H * K)
        d = w0 * later
        sum0 += later * here
        if d_bias is not None:
            sum_bias += later
        if TAPS > 1:
            later = _ahead(dz, row + 1, head_channel, there, T, H * K)
            d += w1 * later
            sum1 += later * here
        if TAPS > 2:
            later = _ahead(dz, row + 2, head_channel, there, T, H * K)
            d += w2 * later
            sum2 += later * here
        if TAPS > 3:
            later = _ahead(dz, row + 3, head_channel, there, T, H * K)
            d += w3 * later
            sum3 += later * here
        now = ((row >= 0) & (row < T))[:, None] & there[None, :]
        tl.store(dx + row[:, None] * dx_t + head_channel[None, :], d.to(dx.dtype.element_ty), mask=now)
        if initial is not None:
            before = (row < 0)[:, None] & there[None, :]
            tl.store(d_initial + (row + PAST)[:, None] * (H * K) + head_channel[None, :], d, mask=before)
    of_piece = tl.program_id(0).to(tl.int64) * H * K
    d_weight += of_piece * TAPS + head_channel
    tl.store(d_weight, tl.sum(sum0, 0), mask=there)
    if TAPS > 1:
        tl.store(d_weight + H * K, tl.sum(sum1, 0), mask=there)
    if TAPS > 2:
        tl.store(d_weight + 2 * H * K, tl.sum(sum2, 0), mask=there)
    if TAPS > 3:
        tl.store(d_weight + 3 * H * K, tl.sum(sum3, 0), mask=there)
    if d_bias is not None:
        tl.store(d_bias + of_piece + head_channel, tl.sum(sum_bias, 0), mask=there)


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, silu: bool, unit: bool
) -> tuple[Tensor]:
    (y,) = _outputs(x, weight, bias, initial, silu, unit)
    _launch_forward(y, x, weight, bias, initial, silu, unit)
    return (y,)


def _launch_forward(
    y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, silu: bool, unit: bool
) -> None:
    """Fill y, which has no gaps."""
    x, weight, bias, initial = dense(x), weight.contiguous(), packed(bias), packed(initial)
    (batch, time, heads, width), taps = x.shape, weight.shape[-1]
    share, blocks = _shares(heads, width, unit), triton.cdiv(time, ROWS)
    _short_conv_forward_kernel[batch * blocks, triton.cdiv(heads, share.heads) * share.parts](
        x, weight, bias, initial, y, *x.stride()[:3], time, batch // len(weight), blocks, EPS,
        H=heads, K=width, SILU=silu, UNIT=unit, **share.form(taps, ROWS),
    )  # fmt: skip


def _outputs(
    x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, silu: bool, unit: bool
) -> tuple[Tensor]:
    return (x.new_empty(x.shape),)


def _backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, silu: bool, unit: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dx, _, nothing, d_initial = _gradients(dy, x, weight, bias, initial, silu, unit)
    by_weight, by_bias = _launch_backward(dx, d_initial, dy, x, weight, bias, initial, silu, unit)
    return dx, by_weight, nothing if by_bias is None else by_bias, d_initial


def _launch_backward(
    dx: Tensor,
    d_initial: Tensor | None,
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial: Tensor | None,
    silu: bool,
    unit: bool,
) -> tuple[Tensor, Tensor | None]:
    """Fill dx, whose tokens have no gaps within, and d_initial where there is a state; the derivatives by weight and bias."""
    dy, x, weight, bias, initial = dense(dy), dense(x), weight.contiguous(), packed(bias), packed(initial)
    (batch, time, heads, width), taps, groups = x.shape, weight.shape[-1], len(weight)
    share = _shares(heads, width, unit)
    columns = triton.cdiv(heads, share.heads) * share.parts
    dz = x.new_empty(x.shape, dtype=torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float32)
    blocks = triton.cdiv(time, ROWS)
    _short_conv_inner_kernel[batch * blocks, columns](
        dy, x, weight, bias, initial, dz, *dy.stride()[:3], *x.stride()[:3], time, batch // groups, blocks, EPS,
        H=heads, K=width, SILU=silu, UNIT=unit, **share.form(taps, ROWS),
    )  # fmt: skip
    inputs = time + (0 if initial is None else taps - 1)
    blocks = triton.cdiv(inputs, FEW_ROWS)
    length = FEW_ROWS * triton.cdiv(blocks, min(blocks, triton.cdiv(PROGRAMS, batch * columns)))
    pieces = triton.cdiv(inputs, length)
    d_weight = dz.new_empty(batch * pieces, taps, heads, width, dtype=torch.float32)
    d_bias = None if bias is None else d_weight.new_empty(batch * pieces, heads, width)
    _short_conv_outer_kernel[batch * pieces, columns](
        dz, x, weight, initial, dx, None if initial is None else d_initial, d_weight, d_bias, *x.stride()[:3],
        *dx.stride()[:2], time, batch // groups, pieces, length, H=heads, K=width, **share.form(taps, FEW_ROWS),
    )  # fmt: skip
    summed = d_weight.view(groups, -1, taps, heads, width).sum(1).permute(0, 2, 3, 1).to(weight.dtype).contiguous()
    if d_bias is None or bias is None:
        return summed, None
    return summed, d_bias.view(groups, -1, heads, width).sum(1).to(bias.dtype)


def _gradients(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, silu: bool, unit: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape),
        weight.new_empty(weight.shape),
        x.new_empty(len(weight)) if bias is None else bias.new_empty(bias.shape),
        x.new_empty(len(x)) if initial is None else initial.new_empty(initial.shape),
    )


_short_conv = opaque("short_conv", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=1)


# Queries, keys and values that one linear map gives side by side: three results, and one derivative of all.


def fused_qkv(
    x: Tensor, *, weight: Tensor, heads: int, pairs: int, key_width: int, activation: str, unit: bool
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """What `short_conv_qkv` gives."""
    convolved = weight.shape[0]
    q, k, v = _short_conv_qkv(x, weight[None], heads, pairs, key_width, activation == "silu", unit)
    return (q, k, v), _last(x[..., None, :convolved], None, weight.shape[-1] - 1).squeeze(2)


class _Part(NamedTuple):
    """Some heads of as many channels each, from a channel on."""

    first: int
    heads: int
    width: int

    @property
    def channels(self) -> slice:
        return slice(self.first, self.first + self.heads * self.width)

    def of(self, x: Tensor) -> Tensor:
        """[B, T, H, K] of x [B, T, C]."""
        return x[..., self.channels].unflatten(-1, (self.heads, self.width))

    def weights(self, weight: Tensor) -> Tensor:
        """[G, H, K, taps] of weights [G, C, taps]."""
        return weight[:, self.channels].unflatten(1, (self.heads, self.width))


def _qkv_parts(x: Tensor, heads: int, pairs: int, key_width: int) -> tuple[_Part, _Part, _Part]:
    keys = (heads + pairs) * key_width
    return (
        _Part(0, heads, key_width),
        _Part(heads * key_width, pairs, key_width),
        _Part(keys, pairs, (x.shape[-1] - keys) // pairs),
    )


def _forward_qkv(
    x: Tensor, weight: Tensor, heads: int, pairs: int, key_width: int, silu: bool, unit: bool
) -> tuple[Tensor, Tensor, Tensor]:
    results = _outputs_qkv(x, weight, heads, pairs, key_width, silu, unit)
    for i, (part, y) in enumerate(zip(_qkv_parts(x, heads, pairs, key_width), results, strict=True)):
        if part.first < weight.shape[1]:
            _launch_forward(y, part.of(x), part.weights(weight), None, None, silu, unit and i < 2)
        else:
            y.copy_(part.of(x))
    return results


def _outputs_qkv(
    x: Tensor, weight: Tensor, heads: int, pairs: int, key_width: int, silu: bool, unit: bool
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (x.new_empty(*x.shape[:2], part.heads, part.width) for part in _qkv_parts(x, heads, pairs, key_width))
    return q, k, v


def _backward_qkv(
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    x: Tensor,
    weight: Tensor,
    heads: int,
    pairs: int,
    key_width: int,
    silu: bool,
    unit: bool,
) -> tuple[Tensor, Tensor]:
    dx, _ = _gradients_qkv(dq, dk, dv, x, weight, heads, pairs, key_width, silu, unit)
    by_weight = []
    for i, (part, dy) in enumerate(zip(_qkv_parts(x, heads, pairs, key_width), (dq, dk, dv), strict=True)):
        if part.first < weight.shape[1]:
            to, own = part.of(dx), part.weights(weight)
            summed, _ = _launch_backward(to, None, dy, part.of(x), own, None, None, silu, unit and i < 2)
            by_weight.append(summed.flatten(1, 2))
        else:
            part.of(dx).copy_(dy)
    return dx, torch.cat(by_weight, 1)


def _gradients_qkv(
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    x: Tensor,
    weight: Tensor,
    heads: int,
    pairs: int,
    key_width: int,
    silu: bool,
    unit: bool,
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


_short_conv_qkv = opaque(
    "short_conv_qkv",
    _forward_qkv,
    _backward_qkv,
    outputs=_outputs_qkv,
    gradients=_gradients_qkv,
    differentiable=3,
)
