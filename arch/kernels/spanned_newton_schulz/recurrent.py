"""One matrix after another, by their squares: what every other implementation must agree with."""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.newton_schulz.recurrent import CUBIC, EPS, LEAST, LINEAR, QUINTIC


def recurrent(x: Tensor, d: Tensor, u: Tensor, *, steps: int) -> Tensor:
    """x [B, T, H, S], d [B, H, S, C], u [B, H, R, S] -> [B, T, H, C, C]."""
    factors = []
    for x_BHS in x.double().unbind(1):
        p_BHRC = u.double() @ (x_BHS[..., None] * d.double())
        factors.append(factor(p_BHRC.mT @ p_BHRC, steps))
    return torch.stack(factors, 1).to(x.dtype)


def factor(square: Tensor, steps: int) -> Tensor:
    """Q by P^T P [..., C, C], in fp64."""
    gram = (square + square.mT) / 2
    unit = torch.eye(square.shape[-1], dtype=square.dtype, device=square.device)
    size = (gram * unit).sum((-2, -1), keepdim=True).clamp(min=LEAST).sqrt() + EPS
    gram, q = gram / size.square(), unit / size
    for step in range(steps):
        by = LINEAR * unit + CUBIC * gram + QUINTIC * (gram @ gram)
        q = by @ q
        if step + 1 < steps:
            gram = by @ gram @ by
    return q
