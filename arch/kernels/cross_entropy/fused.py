"""Cross entropy, one launch forward and one backward: logits are read once, in the dtype that they have.

l_r = L_r - z_rt,   L_r = ln sum_v exp(z_rv),   dz_rv = (exp(z_rv - L_r) - [v = t]) dl_r;   over the ids v of the member

N members, R rows of a member, V token ids
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.op_interface.custom_op import opaque

ROWS, COLUMNS = 32, 64  # of a block; whatever the vocabulary, so that kernels can be compiled ahead
WARPS = 4


def fused(logits: Tensor, targets: Tensor, vocabs: Tensor) -> Tensor:
    """[N, R] in fp32."""
    loss, _ = _cross_entropy(logits, targets, vocabs)
    return loss


@triton.jit
def _block(targets, vocabs, rows, blocks, V, ROWS: tl.constexpr):
    """This program's rows, which of them are there, where their logits begin, their targets, and how many ids they have."""
    group, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    within = block * ROWS + tl.arange(0, ROWS)
    row, there = group * rows + within, within < rows
    target = tl.load(targets + row, mask=there, other=0)
    return row, there, row * V, tl.maximum(target, 0).to(tl.int32), tl.load(vocabs + group).to(tl.int32)


@triton.jit(do_not_specialize=["rows", "blocks", "V"])
def _cross_entropy_forward_kernel(
    logits, targets, vocabs, loss, log_sum, rows, blocks, V, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    row, there, at, target, vocab = _block(targets, vocabs, rows, blocks, V, ROWS)
    top, total = tl.full([ROWS], -1e30, tl.float32), tl.zeros([ROWS], tl.float32)
    for start in range(0, vocab, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = there[:, None] & (column < vocab)[None, :]
        z = tl.load(logits + at[:, None] + column[None, :], mask=inside, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(z, 1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(z - higher[:, None]), 1)
        top = higher
    own = tl.load(logits + at + target, mask=there & (target < vocab), other=float("-inf")).to(tl.float32)
    of_all = top + tl.log(tl.where(there, total, 1.0))
    tl.store(log_sum + row, of_all, mask=there)
    tl.store(loss + row, of_all - own, mask=there)


@triton.jit(do_not_specialize=["rows", "blocks", "V"])
def _cross_entropy_backward_kernel(
    d_loss, logits, targets, vocabs, log_sum, d_logits, rows, blocks, V, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    row, there, at, target, vocab = _block(targets, vocabs, rows, blocks, V, ROWS)
    d = tl.load(d_loss + row, mask=there, other=0.0)
    of_all = tl.load(log_sum + row, mask=there, other=0.0)
    for start in range(0, V, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        place = at[:, None] + column[None, :]
        inside = there[:, None] & (column < vocab)[None, :]
        z = tl.load(logits + place, mask=inside, other=float("-inf")).to(tl.float32)
        hit = (column[None, :] == target[:, None]).to(tl.float32)
        dz = tl.where(inside, (tl.exp(z - of_all[:, None]) - hit) * d[:, None], 0.0)
        tl.store(d_logits + place, dz.to(d_logits.dtype.element_ty), mask=there[:, None] & (column < V)[None, :])


def _forward(logits: Tensor, targets: Tensor, vocabs: Tensor) -> tuple[Tensor, Tensor]:
    logits, targets, vocabs = logits.contiguous(), targets.contiguous(), vocabs.contiguous()
    loss, log_sum = _outputs(logits, targets, vocabs)
    members, rows, count = logits.shape
    blocks = triton.cdiv(rows, ROWS)
    _cross_entropy_forward_kernel[(members * blocks,)](
        logits, targets, vocabs, loss, log_sum, rows, blocks, count, ROWS, COLUMNS, num_warps=WARPS
    )
    return loss, log_sum


def _outputs(logits: Tensor, targets: Tensor, vocabs: Tensor) -> tuple[Tensor, Tensor]:
    return (
        logits.new_empty(targets.shape, dtype=torch.float32),
        logits.new_empty(targets.shape, dtype=torch.float32),
    )


def _backward(
    d_loss: Tensor, logits: Tensor, targets: Tensor, vocabs: Tensor, log_sum: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    d_loss, logits, targets = d_loss.contiguous(), logits.contiguous(), targets.contiguous()
    results = _gradients(d_loss, logits, targets, vocabs, log_sum)
    members, rows, count = logits.shape
    blocks = triton.cdiv(rows, ROWS)
    _cross_entropy_backward_kernel[(members * blocks,)](
        d_loss, logits, targets, vocabs.contiguous(), log_sum.contiguous(), results[0], rows, blocks, count, ROWS,
        COLUMNS, num_warps=WARPS,
    )  # fmt: skip
    return results


def _gradients(
    d_loss: Tensor, logits: Tensor, targets: Tensor, vocabs: Tensor, log_sum: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return logits.new_empty(logits.shape), d_loss.new_empty(len(targets)), d_loss.new_empty(len(vocabs))


_cross_entropy = opaque("cross_entropy", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=1)
