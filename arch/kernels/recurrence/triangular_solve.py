"""Solve (I + A) X = Y for strictly lower triangular A, in the precision of its inputs."""

from __future__ import annotations

import torch
from torch import Tensor


def solve_unit_lower(a: Tensor, y: Tensor) -> Tensor:
    """X with (I + A) X = Y: A [..., C, C], of which only what lies below the diagonal is read; Y [..., C, D].

    Forward substitution. The product (I - A)(I + A^2)(I + A^4)... is not used: where keys repeat the powers of A grow like
    binomial coefficients while the inverse stays small.
    """
    return torch.linalg.solve_triangular(a, y, upper=False, unitriangular=True)
