"""The sum and its norm, token by token: what every other implementation must agree with.

s_t = x_t + a_t,    n_t = s_t / sqrt(mean(s_t^2) + eps) * w
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import promoted, working_dtype


def step(
    state: tuple[()] | None,
    x: Tensor,
    added: Tensor,
    *,
    weight: Tensor,
    eps: float = 1e-5,
    output: torch.dtype | None = None,
) -> tuple[tuple[Tensor, Tensor], tuple[()]]:
    """One token x [B, H, V] and what is added to it: the sum, its norm in the dtype of x or in `output`, and the state that
    there is not."""
    return shaped(x, added, weight, eps, output or x.dtype), ()


def recurrent(x: Tensor, added: Tensor, *, weight: Tensor, eps: float, output: torch.dtype) -> tuple[Tensor, Tensor]:
    """`step` over time."""
    tokens = zip(x.unbind(1), added.unbind(1), strict=True)
    both = [step((), a, b, weight=weight, eps=eps, output=output)[0] for a, b in tokens]
    totals, norms = zip(*both, strict=True)
    return torch.stack(totals, 1), torch.stack(norms, 1)


def shaped(x: Tensor, added: Tensor, weight: Tensor, eps: float, output: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sum and norm of x [..., V]."""
    dtype = working_dtype(x, added, weight)
    total = (x.to(dtype) + added.to(dtype)).to(promoted(x, added))
    wide = total.to(dtype)
    return total, (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.to(dtype)).to(output)
