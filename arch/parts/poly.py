"""Polynomial features: every monomial up to a degree, or a random sketch of one power.

phi(x)_m = sqrt(a_|m| |m|! / m!) x^m over multi-indices |m| <= p, so that phi(x) . phi(y) = sum_i a_i (x . y)^i;  a_i = rho_i^2

K key width, F features, R sketch width
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from recallmap.arch.kernels.monomials import monomials
from recallmap.arch.parts.precision import widen

MOST_DEGREE = 32  # 1 / 32! is still a float32


class PolyFeatures(nn.Module):
    """[..., K] -> [..., F] with learned coefficients, at first those of the exponential, a_i = 1 / i!."""

    def __init__(self, degree: int) -> None:
        super().__init__()
        self.roots = nn.Parameter(torch.tensor([math.factorial(i) ** -0.5 for i in range(degree + 1)]))

    def forward(self, x: Tensor) -> Tensor:
        return monomials(x, widen(self.roots))[0]

    def coefficients(self) -> Tensor:
        """a [p + 1], never negative."""
        return widen(self.roots).square()

    def energy(self) -> Tensor:
        """phi(x) . phi(x) of an x of norm 1."""
        return self.coefficients().sum()


class PolySketch(nn.Module):
    """[..., K] -> [..., F] with phi(x) . phi(y) = (m(x) . m(y))^2 >= 0, a sketch of (x . y)^degree (Kacham et al. 2024).

    m sketches half the degree: m_1 = x, m_2n = (m_n G) * (m'_n G') / sqrt(R) with sketches m_n, m'_n of their own. G starts
    as Gaussian, which makes m(x) . m(y) unbiased, and is learned.
    """

    def __init__(self, key_dim: int, degree: int, sketch: int) -> None:
        super().__init__()
        self.maps = nn.ParameterList()
        leaves = degree // 2
        width = key_dim
        while leaves > 1:  # one entry a level of the tree, from the leaves up
            self.maps.append(nn.Parameter(torch.randn(leaves, width, sketch)))
            leaves, width = leaves // 2, sketch

    @staticmethod
    def count(key_dim: int, degree: int, sketch: int) -> int:
        """The number F of features."""
        return (key_dim if degree == 2 else sketch) ** 2

    @staticmethod
    def parameters_of(key_dim: int, degree: int, sketch: int) -> int:
        """Parameters of the maps G, for every level of the tree."""
        count, leaves, width = 0, degree // 2, key_dim
        while leaves > 1:
            count += leaves * width * sketch
            leaves, width = leaves // 2, sketch
        return count

    def forward(self, x: Tensor) -> Tensor:
        half = self.root(x)
        return (half[..., :, None] * half[..., None, :]).flatten(-2)

    def root(self, x: Tensor) -> Tensor:
        """m(x) [..., R], a sketch of half the degree."""
        nodes = widen(x)[..., None, :]
        for maps in self.maps:
            nodes = (nodes[..., None, :] @ widen(maps)).squeeze(-2)
            nodes = nodes[..., 0::2, :] * nodes[..., 1::2, :] * maps.shape[-1] ** -0.5
        return nodes.squeeze(-2)
