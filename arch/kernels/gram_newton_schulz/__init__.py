"""Newton-Schulz of matrices that are never made: by what S is multiplied, told by S^T S alone.

NS(S) = S Q(S^T S);   A = G / n^2,  Q = I / n,  n = sqrt(tr G) + eps,   then five times or so
Q <- P Q,  A <- P A P,   P = a I + b A + c A^2
"""

from __future__ import annotations

import torch
from torch import Tensor

from arch.kernels import select
from arch.kernels.inputs import check_positive, expect, full_precision

__all__ = ["gram_newton_schulz", "gram_newton_schulz_step"]

OP = "gram_newton_schulz"


def gram_newton_schulz(
    x: Tensor,
    *,
    steps: int = 5,
    initial_state: tuple[()] | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, tuple[()] | None]:
    """Q in the shape and dtype of `x`, and with `return_state` the empty state: matrices know nothing of each other.

    x               G = S^T S [..., C, C] of tall matrices S [..., R, C]; only its symmetric part is read
    steps           as those of `newton_schulz`, at least 1
    initial_state   has no meaning here, nor has `chunk`
    implementation  "auto", or one of `select.implementations("gram_newton_schulz")`

    Computes in fp64: G holds the squares of S' singular values, and of those half the digits that S had. Give it in fp64 where
    small ones count. Differentiable in x; of zeros Q is finite, and so is its derivative. Raises ValueError on shapes that do
    not fit and on an implementation that cannot serve. Jordan et al. 2024 (Muon), whose steps commute with S^T S.
    """
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError(f"{OP}: x must be [..., columns, columns], got shape {list(x.shape)}")
    expect(OP, "x", x, tuple(x.shape))
    check_positive(OP, "steps", steps)
    check_positive(OP, "chunk", chunk)
    name = select.choose(
        OP,
        device=x.device,
        dtype=x.dtype,
        wanted=implementation,
        differentiable=torch.is_grad_enabled(),
        sizes={"key_width": x.shape[-1], "value_width": x.shape[-1]},
    )
    final = () if return_state else None
    if x.numel() == 0:
        return x, final
    with full_precision(x.device):
        y: Tensor = select.load(OP, name)(x, steps=steps)
        return y, final


def gram_newton_schulz_step(state: tuple[()] | None, x: Tensor, *, steps: int = 5) -> tuple[Tensor, tuple[()]]:
    """One token's matrix [B, C, C], and the state that there is not."""
    return gram_newton_schulz(x, steps=steps)[0], ()
