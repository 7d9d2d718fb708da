"""One matrix after another: what every other implementation must agree with."""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import working_dtype


def recurrent(x: Tensor, d: Tensor, u: Tensor, *, slowed: Tensor | None, p: Tensor | None) -> Tensor:
    """x [B, T, H, S], d [B, H, S, C], u [B, H, S, R] -> [B, T, H, R, C]."""
    dtype = working_dtype(x, d, u, slowed, p)
    matrices = []
    for t, x_BHS in enumerate(x.to(dtype).unbind(1)):
        p_BHRC = u.to(dtype).mT @ (x_BHS[..., None] * d.to(dtype))
        if slowed is not None and p is not None:
            p_BHRC = p_BHRC + slowed[:, t, :, None, None].to(dtype) * p.to(dtype)
        matrices.append(p_BHRC)
    return torch.stack(matrices, 1).to(x.dtype)
