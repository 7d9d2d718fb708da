"""All matrices by one product: of every token's weights with the outer products, P_0 among them."""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import working_dtype


def chunked(x: Tensor, d: Tensor, u: Tensor, *, slowed: Tensor | None, p: Tensor | None) -> Tensor:
    """x [B, T, H, S], d [B, H, S, C], u [B, H, S, R] -> [B, T, H, R, C]."""
    dtype = working_dtype(x, d, u, slowed, p)
    weight_BHTS = x.to(dtype).transpose(1, 2)
    each_BHSF = (u.to(dtype)[..., :, None] * d.to(dtype)[..., None, :]).flatten(-2)
    if slowed is not None and p is not None:
        weight_BHTS = torch.cat([weight_BHTS, slowed.to(dtype).transpose(1, 2)[..., None]], -1)
        each_BHSF = torch.cat([each_BHSF, p.to(dtype).flatten(-2).unsqueeze(-2)], -2)
    every_BHTF = weight_BHTS @ each_BHSF
    return every_BHTF.transpose(1, 2).unflatten(-1, (u.shape[-1], d.shape[-1])).to(x.dtype)
