"""Newton-Schulz by S^T S, all matrices at once; its backward pass goes through the steps again."""

from __future__ import annotations

from torch import Tensor

from arch.kernels.gram_newton_schulz.recurrent import factor
from arch.kernels.recomputed import recomputed


def chunked(x: Tensor, *, steps: int) -> Tensor:
    """All matrices [..., C, C]."""
    return recomputed(factor, x.double(), steps).to(x.dtype)
