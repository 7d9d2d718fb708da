"""Every monomial by itself: what every other implementation must agree with.

phi(x)_m = sqrt(|m|! / m!) rho_|m| x^m
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import working_dtype


def count_monomials(key_dim: int, degree: int) -> int:
    """F, the monomials of K variables up to `degree`, the constant among them."""
    return math.comb(key_dim + degree, degree)


def recurrent(x: Tensor, roots: Tensor) -> Tensor:
    """x [..., K], roots [p + 1] -> [..., F]."""
    dtype = working_dtype(x, roots)
    wide, found = x.to(dtype), []
    for degree, root in enumerate(roots.to(dtype)):
        for variables in combinations_with_replacement(range(x.shape[-1]), degree):
            same = math.prod(map(math.factorial, Counter(variables).values()))
            power = math.prod((wide[..., j] for j in variables), start=torch.ones_like(wide[..., 0]))
            found.append(root * math.sqrt(math.factorial(degree) / same) * power)
    return torch.stack(found, -1).to(x.dtype)
