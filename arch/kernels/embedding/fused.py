"""Rows of a table in one launch, and their derivative in one launch and a sum.

y_r = W_{i_r},    dW = E dy,   E_vr = 1 where i_r = v, and 0 elsewhere

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

from recallmap.arch.kernels.op_interface.custom_op import opaque, padded
from recallmap.arch.kernels.triton_tiles.token_matrices import times

TILE = 2048  # entries of a block, forward
MOST_ROWS = 32
# Of a block, backward; whatever the vocabulary, so that kernels can be compiled ahead.
IDS, CHANNELS, TOKENS = 64, 64, 32
PROGRAMS = 528  # into which backward cuts the tokens, where there are fewer groups
WARPS = 4


def fused(ids: Tensor, weight: Tensor) -> Tensor:
    """[B, T, D] from ids [B, T] and weight [V, D]."""
    (y,) = _embedding(ids, weight[None])
    return y


@triton.jit(do_not_specialize=["rows", "blocks", "ids_of_all"])
def _forward_kernel(ids, weight, y, rows, blocks, ids_of_all, D: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    group, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    row, channel = block * ROWS + tl.arange(0, ROWS), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    own = tl.load(ids + group * rows + row, mask=row < rows, other=0)
    there = (row < rows)[:, None] & (channel < D)[None, :]
    found = tl.load(weight + ((group * ids_of_all + own) * D)[:, None] + channel[None, :], mask=there, other=0.0)
    tl.store(y + ((group * rows + row) * D)[:, None] + channel[None, :], found, mask=there)


@triton.jit(do_not_specialize=["rows", "pieces", "length", "ids_of_all"])
def _backward_kernel(
    dy, ids, d_weight, rows, pieces, length, ids_of_all,
    D: tl.constexpr, IDS: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """The part of a piece of `length` tokens in the derivative by a block of the table."""
    group, piece = (tl.program_id(0) // pieces).to(tl.int64), tl.program_id(0) % pieces
    one, channel = tl.program_id(1) * IDS + tl.arange(0, IDS), tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    summed = tl.zeros([IDS, WIDTH], tl.float32)
    for start in range(piece * length, tl.minimum(piece * length + length, rows), TOKENS):
        row = start + tl.arange(0, TOKENS)
        own = tl.load(ids + group * rows + row, mask=row < rows, other=-1)
        there = (row < rows)[:, None] & (channel < D)[None, :]
        d = tl.load(dy + ((group * rows + row) * D)[:, None] + channel[None, :], mask=there, other=0.0)
        which = (one[:, None] == own[None, :]).to(tl.float32)
        summed += times(which, d.to(tl.float32))
    at = (tl.program_id(0).to(tl.int64) * ids_of_all + one)[:, None] * D + channel[None, :]
    tl.store(d_weight + at, summed, mask=(one < ids_of_all)[:, None] & (channel < D)[None, :])


def _forward(ids: Tensor, weight: Tensor) -> tuple[Tensor]:
    ids, weight = ids.contiguous(), weight.contiguous()
    (y,) = _outputs(ids, weight)
    groups, count, width = weight.shape
    block = min(TILE, triton.next_power_of_2(width))
    tokens, rows = ids.numel() // groups, max(1, min(MOST_ROWS, TILE // block))
    blocks = triton.cdiv(tokens, rows)
    _forward_kernel[(groups * blocks, triton.cdiv(width, block))](
        ids, weight, y, tokens, blocks, count, width, rows, block, num_warps=WARPS
    )
    return (y,)


def _outputs(ids: Tensor, weight: Tensor) -> tuple[Tensor]:
    return (weight.new_empty(*ids.shape, weight.shape[-1]),)


def _backward(dy: Tensor, ids: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    dy, ids = dy.contiguous(), ids.contiguous()
    nothing, _ = _gradients(dy, ids, weight)
    groups, count, width = weight.shape
    tokens, channels = ids.numel() // groups, min(CHANNELS, padded(width))
    tables = triton.cdiv(count, IDS), triton.cdiv(width, channels)
    steps = triton.cdiv(tokens, TOKENS)
    length = TOKENS * triton.cdiv(steps, min(steps, triton.cdiv(PROGRAMS, groups * tables[0] * tables[1])))
    pieces = triton.cdiv(tokens, length)
    d_weight = dy.new_empty(groups, pieces, count, width, dtype=torch.float32)
    _backward_kernel[(groups * pieces, *tables)](
        dy, ids, d_weight, tokens, pieces, length, count, width, IDS, channels, TOKENS, num_warps=WARPS
    )
    return nothing, d_weight.sum(1).to(weight.dtype)


def _gradients(dy: Tensor, ids: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return dy.new_empty(len(ids)), weight.new_empty(weight.shape)


_embedding = opaque("embedding", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=1)
