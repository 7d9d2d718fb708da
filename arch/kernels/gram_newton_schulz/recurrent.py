"""Newton-Schulz by S^T S, step by step: what every other implementation must agree with."""

from __future__ import annotations

import torch
from torch import Tensor

from arch.kernels.newton_schulz.recurrent import CUBIC, EPS, LEAST, LINEAR, QUINTIC


def recurrent(x: Tensor, *, steps: int) -> Tensor:
    """All matrices [..., C, C]."""
    return factor(x.double(), steps).to(x.dtype)


def factor(x: Tensor, steps: int) -> Tensor:
    """Q of G in fp64."""
    gram = (x + x.mT) / 2
    unit = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    size = (gram * unit).sum((-2, -1), keepdim=True).clamp(min=LEAST).sqrt() + EPS
    gram, q = gram / size.square(), unit / size
    for step in range(steps):
        by = LINEAR * unit + CUBIC * gram + QUINTIC * (gram @ gram)
        q = by @ q
        if step + 1 < steps:
            gram = by @ gram @ by
    return q
