"""Chebyshev's iteration for many symmetric positive definite systems x (A + lam) = rhs whose lam is a share of |A|.

The eigenvalues lie between lam = a |A| and (1 + a) |A|, with the Frobenius norm: how fast it converges depends on a alone. It
takes no inner products and divides by nothing that data make small. Golub and Varga 1961; as in Peng et al. 2025
(arXiv:2511.21016).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def iterate(multiply: Callable[[Tensor], Tensor], rhs: Tensor, lam: Tensor, ridge: float, steps: int) -> Tensor:
    """x [..., K] after `steps`, from rhs [..., K] and lam [..., 1] = `ridge` times the norm; 0 where the norm is 0.

    multiply  x -> x (A + lam)
    """
    sum_of_ends = lam * (2 + 1 / ridge)
    present = sum_of_ends > 0
    rate = torch.where(present, 2 / torch.where(present, sum_of_ends, 1.0), 0.0)
    square = (1 + 2 * ridge) ** -2
    x, before, omega = rate * rhs, torch.zeros_like(rhs), 2.0
    for _ in range(steps):
        omega = 4 / (4 - square * omega)
        x, before = omega * (x + rate * (rhs - multiply(x))) + (1 - omega) * before, x
    return x


def length(square: Tensor) -> Tensor:
    """The root, with a gradient of 0 at 0."""
    present = square > 0
    return torch.where(present, torch.where(present, square, 1.0).sqrt(), 0.0)
