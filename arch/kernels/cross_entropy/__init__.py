"""The cross entropy of answers over vocabularies that differ by member, in one pass each way. This is no op of `select`:
targets are whole numbers, and nothing is carried from one token to the next."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import full_precision, working_dtype
from recallmap.arch.kernels.select import fuses

__all__ = ["cross_entropy"]


def cross_entropy(logits: Tensor, targets: Tensor, vocabs: Tensor) -> Tensor:
    """[N, R] in fp32, fp64 where the logits are: -log softmax(logits)[target] of each row.

    logits   [N, R, V], rows of N members; those of token ids that a member does not have count as minus infinity
    targets  [N, R], int64; below 0 counts as 0
    vocabs   [N], int64: a member's token ids are 0..vocabs - 1

    Differentiable in logits. Raises ValueError on shapes that do not fit.
    """
    if logits.ndim != 3 or targets.shape != logits.shape[:2] or vocabs.shape != logits.shape[:1]:
        raise ValueError(
            "cross_entropy: logits, targets and vocabs must be [members, rows, token ids], [members, rows] and [members], "
            f"got shapes {list(logits.shape)}, {list(targets.shape)} and {list(vocabs.shape)}"
        )
    if logits.numel() and logits.dtype != torch.float64 and fuses(logits):
        from recallmap.arch.kernels.cross_entropy.fused import fused  # it needs Triton

        return fused(logits, targets, vocabs)
    with full_precision(logits.device):
        beyond_N1V = (torch.arange(logits.shape[-1], device=logits.device) >= vocabs[:, None])[:, None]
        wide = logits.to(working_dtype(logits)).masked_fill(beyond_N1V, -torch.inf)
        return F.cross_entropy(wide.flatten(0, 1), targets.clamp(min=0).flatten(), reduction="none").view(targets.shape)
