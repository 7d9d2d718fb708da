"""Rows of a table and their RMSNorm in one launch, and their derivatives in one launch and a sum.

y_r = W_{i_r},   n_r = c y_r * w,  c = (mean(y_r^2) + eps)^{-1/2},    dW = E d,   E_vr = 1 where i_r = v, and 0 elsewhere
u = dn * w,   d = dy + c (u - c y mean(c y * u)),   dw = sum of dn * c y

The derivative is a product with E, which a program makes as it goes: it takes a piece of a group's tokens, a block of token ids
and a block of channels. The pieces of a group are summed behind it, always in the same order. E is exact in any precision; the
products keep 21 bits of dy.

G groups of members (tables [G, V, D]), R tokens of a group, V token ids, D channels
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.op_interface.custom_op import opaque, packed, padded
from recallmap.arch.kernels.triton_tiles.token_matrices import times

TILE = 2048  # entries of a block, forward
MOST_ROWS = 32
# Of a block, backward; whatever the vocabulary, so that kernels can be compiled ahead.
IDS, CHANNELS, TOKENS = 64, 64, 32
PROGRAMS = 528  # into which backward cuts the tokens, where there are fewer groups
WARPS = 4
WIDEST = 128  # of rows whose norm is taken, too


def fused(ids: Tensor, weight: Tensor) -> Tensor:
    """[B, T, D] from ids [B, T] and weight [V, D]."""
    (y,) = _embedding(ids, weight[None])
    return y


def fused_norm(ids: Tensor, weight: Tensor, scale: Tensor, eps: float, output: torch.dtype) -> tuple[Tensor, Tensor]:
    """The same, and the norms of the rows [B, T, D] in `output`, with the weight `scale` [D]."""
    y, normed = _embedding_norm(ids, weight[None], scale[None], eps, output)
    return y, normed


@triton.jit(do_not_specialize=["rows", "blocks", "ids_of_all"])
def _embedding_forward_kernel(
    ids, weight, scale, y, normed, rows, blocks, ids_of_all, eps, D: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    group, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    row, channel = block * ROWS + tl.arange(0, ROWS), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    own = tl.load(ids + group * rows + row, mask=row < rows, other=0)
    there = (row < rows)[:, None] & (channel < D)[None, :]
    found = tl.load(weight + ((group * ids_of_all + own) * D)[:, None] + channel[None, :], mask=there, other=0.0)
    place = ((group * rows + row) * D)[:, None] + channel[None, :]
    tl.store(y + place, found, mask=there)
    if scale is not None:  # WIDTH holds all channels
        w = tl.load(scale + group * D + channel, mask=channel < D, other=0.0).to(tl.float32)[None, :]
        n = found * tl.rsqrt(tl.sum(found * found, 1, keep_dims=True) / D + eps) * w
        tl.store(normed + place, n.to(normed.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows", "pieces", "length", "ids_of_all"])
def _embedding_backward_kernel(
    dy, d_normed, ids, weight, scale, d_weight, d_scale, rows, pieces, length, ids_of_all, eps,
    D: tl.constexpr, IDS: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """The part of a piece of `length` tokens in the derivative by a block of the table, and in that by the norm's weight."""
    group, piece = (tl.program_id(0) // pieces).to(tl.int64), tl.program_id(0) % pieces
    one, channel = tl.program_id(1) * IDS + tl.arange(0, IDS), tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    summed = tl.zeros([IDS, WIDTH], tl.float32)
    by_scale = tl.zeros([TOKENS, WIDTH], tl.float32)
    if scale is not None:
        w = tl.load(scale + group * D + channel, mask=channel < D, other=0.0).to(tl.float32)[None, :]
    for start in range(piece * length, tl.minimum(piece * length + length, rows), TOKENS):
        row = start + tl.arange(0, TOKENS)
        own = tl.load(ids + group * rows + row, mask=row < rows, other=-1)
        there = (row < rows)[:, None] & (channel < D)[None, :]
        place = ((group * rows + row) * D)[:, None] + channel[None, :]
        d = tl.zeros([TOKENS, WIDTH], tl.float32)
        if dy is not None:
            d = tl.load(dy + place, mask=there, other=0.0).to(tl.float32)
        if scale is not None:
            from_table = weight + ((group * ids_of_all + own) * D)[:, None] + channel[None, :]
            x = tl.load(from_table, mask=there, other=0.0).to(tl.float32)
            dn = tl.load(d_normed + place, mask=there, other=0.0).to(tl.float32)
            r = tl.rsqrt(tl.sum(x * x, 1, keep_dims=True) / D + eps)
            n = x * r
            by_scale += dn * n
            u = dn * w
            d += r * (u - n * (tl.sum(n * u, 1, keep_dims=True) / D))
        summed += times((one[:, None] == own[None, :]).to(tl.float32), d)
    at = (tl.program_id(0).to(tl.int64) * ids_of_all + one)[:, None] * D + channel[None, :]
    tl.store(d_weight + at, summed, mask=(one < ids_of_all)[:, None] & (channel < D)[None, :])
    if scale is not None:
        if tl.program_id(1) == 0:
            tl.store(d_scale + tl.program_id(0) * D + channel, tl.sum(by_scale, 0), mask=channel < D)


def _launch_forward(
    ids: Tensor, weight: Tensor, scale: Tensor | None, y: Tensor, normed: Tensor | None, eps: float
) -> None:
    ids, weight = ids.contiguous(), weight.contiguous()
    groups, count, width = weight.shape
    block = min(TILE, triton.next_power_of_2(width))
    tokens, rows = ids.numel() // groups, max(1, min(MOST_ROWS, TILE // block))
    blocks = triton.cdiv(tokens, rows)
    _embedding_forward_kernel[(groups * blocks, triton.cdiv(width, block))](
        ids, weight, scale, y, normed, tokens, blocks, count, eps, width, rows, block, num_warps=WARPS
    )


def _launch_backward(
    dy: Tensor | None, d_normed: Tensor | None, ids: Tensor, weight: Tensor, scale: Tensor | None, eps: float
) -> tuple[Tensor, Tensor | None]:
    """The derivatives by the table, and by the norm's weight where there is one."""
    ids, weight, dy = ids.contiguous(), weight.contiguous(), packed(dy)
    groups, count, width = weight.shape
    channels = padded(width) if scale is not None else min(CHANNELS, padded(width))
    tokens, tables = ids.numel() // groups, (triton.cdiv(count, IDS), triton.cdiv(width, channels))
    steps = triton.cdiv(tokens, TOKENS)
    length = TOKENS * triton.cdiv(steps, min(steps, triton.cdiv(PROGRAMS, groups * tables[0] * tables[1])))
    pieces = triton.cdiv(tokens, length)
    d_weight = weight.new_empty(groups, pieces, count, width, dtype=torch.float32)
    d_scale = None if scale is None else d_weight.new_empty(groups, pieces, width)
    _embedding_backward_kernel[(groups * pieces, *tables)](
        dy, packed(d_normed), ids, weight, scale, d_weight, d_scale, tokens, pieces, length, count, eps, width, IDS,
        channels, TOKENS, num_warps=WARPS,
    )  # fmt: skip
    return d_weight.sum(1).to(weight.dtype), None if d_scale is None else d_scale.sum(1)


def _forward(ids: Tensor, weight: Tensor) -> tuple[Tensor]:
    (y,) = _outputs(ids, weight)
    _launch_forward(ids, weight, None, y, None, 0.0)
    return (y,)


def _outputs(ids: Tensor, weight: Tensor) -> tuple[Tensor]:
    return (weight.new_empty(*ids.shape, weight.shape[-1]),)


def _backward(dy: Tensor, ids: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    by_weight, _ = _launch_backward(dy, None, ids, weight, None, 0.0)
    return dy.new_empty(len(ids)), by_weight


def _gradients(dy: Tensor, ids: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return dy.new_empty(len(ids)), weight.new_empty(weight.shape)


_embedding = opaque("embedding", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=1)


def _forward_norm(ids: Tensor, weight: Tensor, scale: Tensor, eps: float, output: torch.dtype) -> tuple[Tensor, Tensor]:
    y, normed = _outputs_norm(ids, weight, scale, eps, output)
    _launch_forward(ids, weight, scale.contiguous(), y, normed, eps)
    return y, normed


def _outputs_norm(ids: Tensor, weight: Tensor, scale: Tensor, eps: float, output: torch.dtype) -> tuple[Tensor, Tensor]:
    shape = (*ids.shape, weight.shape[-1])
    return weight.new_empty(shape), weight.new_empty(shape, dtype=output)


def _backward_norm(
    dy: Tensor | None,
    d_normed: Tensor,
    ids: Tensor,
    weight: Tensor,
    scale: Tensor,
    eps: float,
    output: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    by_weight, by_scale = _launch_backward(dy, d_normed, ids, weight, scale.contiguous(), eps)
    assert by_scale is not None
    return d_normed.new_empty(len(ids)), by_weight, by_scale.to(scale.dtype)


def _gradients_norm(
    dy: Tensor | None,
    d_normed: Tensor,
    ids: Tensor,
    weight: Tensor,
    scale: Tensor,
    eps: float,
    output: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    return d_normed.new_empty(len(ids)), weight.new_empty(weight.shape), scale.new_empty(scale.shape)


_embedding_norm = opaque(
    "embedding_norm",
    _forward_norm,
    _backward_norm,
    outputs=_outputs_norm,
    gradients=_gradients_norm,
    differentiable=2,
)
