"""The vectors of tokens. On a GPU, for the vocabularies of small models, by kernels of our own: torch's sort the tokens for
their derivative. This is no op of `select`: tokens are whole numbers, and nothing is carried from one to the next."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from recallmap.arch.kernels.select import fuses

__all__ = ["embedding"]

MOST = 256  # token ids that the kernels serve: their derivative reads everything once more for each 64


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """[B, T, D], the rows of `weight` [V, D] at `ids` [B, T], int64 in 0..V - 1. Differentiable in weight, with the same bits
    every time."""
    if ids.ndim == 2 and ids.numel() and len(weight) <= MOST and weight.dtype == torch.float32 and fuses(weight):
        from recallmap.arch.kernels.embedding.fused import fused  # it needs Triton

        return fused(ids, weight)
    return F.embedding(ids, weight)
