"""All matrices at once; the backward pass goes through the steps again."""

from __future__ import annotations

from torch import Tensor

from arch.kernels.recomputed import recomputed
from arch.kernels.spanned_newton_schulz.recurrent import factor


def chunked(x: Tensor, d: Tensor, gram: Tensor, *, steps: int) -> Tensor:
    """x [B, T, H, S], d [B, H, S, C], gram [B, H, S, S] -> [B, T, H, C, C]."""
    tokens, columns = x.shape[1], d.shape[-1]
    z_BHSN = (x.double().permute(0, 2, 3, 1)[..., None] * d.double()[:, :, :, None]).flatten(-2)  # side by side
    seen_BHSTC = (gram.double() @ z_BHSN).unflatten(-1, (tokens, columns))
    z_BHSTC = z_BHSN.unflatten(-1, (tokens, columns))
    square_BTHCC = z_BHSTC.permute(0, 3, 1, 4, 2) @ seen_BHSTC.permute(0, 3, 1, 2, 4)
    return recomputed(factor, square_BTHCC, steps).to(x.dtype)
