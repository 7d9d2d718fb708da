"""All matrices at once, by the products of the vectors; the backward pass goes through the steps again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.recompute import recomputed
from recallmap.arch.kernels.spanned_newton_schulz.recurrent import factor


def chunked(x: Tensor, d: Tensor, u: Tensor, *, steps: int) -> Tensor:
    """x [B, T, H, S], d [B, H, S, C], u [B, H, R, S] -> [B, T, H, C, C]."""
    tokens, columns = x.shape[1], d.shape[-1]
    z_BHSN = (x.double().permute(0, 2, 3, 1)[..., None] * d.double()[:, :, :, None]).flatten(-2)  # side by side
    seen_BHSTC = (_Gram.apply(u) @ z_BHSN).unflatten(-1, (tokens, columns))
    z_BHSTC = z_BHSN.unflatten(-1, (tokens, columns))
    square_BTHCC = z_BHSTC.permute(0, 3, 1, 4, 2) @ seen_BHSTC.permute(0, 3, 1, 2, 4)
    return recomputed(factor, square_BTHCC, steps).to(x.dtype)


class _Gram(torch.autograd.Function):
    """U^T U in fp64. PyTorch's own derivative is two products."""

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor) -> Tensor:
        wide = u.double()
        return wide.mT @ wide

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> Tensor:
        (u,), (d_gram,) = ctx.saved_tensors, signals
        return (u.double() @ (d_gram + d_gram.mT)).to(u.dtype)
