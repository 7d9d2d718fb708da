"""The op of Muon and Atlas: a matrix of nearly the same singular vectors whose singular values are all about 1.

X <- X / (|X|_F + eps),   then five times or so   X <- a X + (b A + c A^2) X,   A = X X^T
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.op_interface.input_checks import check_positive, expect, full_precision

__all__ = ["newton_schulz", "newton_schulz_step"]

OP = "newton_schulz"


def newton_schulz(
    x: Tensor,
    *,
    steps: int = 5,
    initial_state: tuple[()] | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, tuple[()] | None]:
    """Outputs in the shape and dtype of `x`, and with `return_state` the empty state: matrices know nothing of each other.

    x               [..., rows, columns]: all matrices at once
    steps           at least 1. Five bring singular values s / |X|_F in [0.005, 1] to [0.68, 1.16]
    initial_state   has no meaning here, nor has `chunk`
    implementation  "auto", or one of `select.implementations("newton_schulz")`

    Odd, commutes with transposition, and blind to the scale of x: a learning rate belongs behind it. Computes in fp32, fp64
    where x is. Differentiable in x; a matrix of zeros stays one, with a finite derivative. Raises ValueError on shapes that do
    not fit and on an implementation that cannot serve. Jordan et al. 2024 (Muon).
    """
    if x.ndim < 2:
        raise ValueError(f"{OP}: x must be [..., rows, columns], got shape {list(x.shape)}")
    expect(OP, "x", x, tuple(x.shape))
    check_positive(OP, "steps", steps)
    check_positive(OP, "chunk", chunk)
    rows, columns = x.shape[-2:]
    name = select.choose(
        OP,
        device=x.device,
        dtype=x.dtype,
        wanted=implementation,
        differentiable=torch.is_grad_enabled(),
        sizes={"heads": rows, "key_width": columns, "value_width": columns},
    )
    final = () if return_state else None
    if x.numel() == 0:
        return x, final
    with full_precision(x.device):
        y: Tensor = select.load(OP, name)(x, steps=steps)
        return y, final


def newton_schulz_step(state: tuple[()] | None, x: Tensor, *, steps: int = 5) -> tuple[Tensor, tuple[()]]:
    """One token's matrix [B, rows, columns], and the state that there is not."""
    return newton_schulz(x, steps=steps)[0], ()
