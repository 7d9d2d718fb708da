"""Newton-Schulz, step by step: what every other implementation must agree with.

X <- X / (|X|_F + eps),   then five times or so   X <- a X + (b A + c A^2) X,   A = X X^T
"""

from __future__ import annotations

from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import working_dtype

LINEAR, CUBIC, QUINTIC = 3.4445, -4.7750, 2.0315
EPS = 1e-7
LEAST = 1e-30  # beneath the root of a norm, which has no derivative at 0


def recurrent(x: Tensor, *, steps: int) -> Tensor:
    """All matrices [..., rows, columns]."""
    return orthogonal(x.to(working_dtype(x)), steps).to(x.dtype)


def orthogonal(x: Tensor, steps: int) -> Tensor:
    """The iteration, on whichever side of the matrices is the shorter one."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    size = x.square().sum((-2, -1), keepdim=True).clamp(min=LEAST).sqrt()
    x = x / (size + EPS)
    for _ in range(steps):
        gram = x @ x.mT
        x = LINEAR * x + (CUBIC * gram + QUINTIC * (gram @ gram)) @ x
    return x.mT if tall else x
