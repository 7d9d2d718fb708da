"""The vectors of tokens. On a GPU, for the vocabularies of small models, by kernels of our own: torch's sort the tokens for
their derivative. This is no op of `select`: tokens are whole numbers, and nothing is carried from one to the next."""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.select import fuses

__all__ = ["embedding", "embedding_norm"]

MOST = 256  # token ids that the kernels serve: their derivative reads everything once more for each 64


def embedding(ids: Tensor, weight: Tensor) -> Tensor | None:
    """[B, T, D], the rows of `weight` [V, D] at `ids` [B, T], int64 in 0..V - 1. Differentiable in weight, with the same bits
    every time. None where the kernels cannot serve: then call torch's."""
    if not _serves(ids, weight):
        return None
    from recallmap.arch.kernels.embedding.fused import fused  # it needs Triton

    return fused(ids, weight)


def embedding_norm(
    ids: Tensor, weight: Tensor, scale: Tensor, *, eps: float, output: torch.dtype
) -> tuple[Tensor, Tensor] | None:
    """The same, and the rows' RMSNorm with the weight `scale` [D], in `output`: nothing reads the rows again for it, and their
    derivative is summed where it is computed. None where the kernels cannot serve."""
    if not _serves(ids, weight):
        return None
    from recallmap.arch.kernels.embedding.fused import WIDEST, fused_norm

    return fused_norm(ids, weight, scale, eps, output) if weight.shape[-1] <= WIDEST else None


def _serves(ids: Tensor, weight: Tensor) -> bool:
    """True where the kernels take the place of torch's."""
    return (
        ids.ndim == 2 and bool(ids.numel()) and len(weight) <= MOST and weight.dtype == torch.float32 and fuses(weight)
    )
