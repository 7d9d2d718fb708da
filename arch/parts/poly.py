"""Polynomial features: every monomial up to a degree, or a random sketch of one power.

phi(x)_m = sqrt(a_|m| |m|! / m!) x^m over multi-indices |m| <= p, so that phi(x) . phi(y) = sum_i a_i (x . y)^i;  a_i = rho_i^2

K key width, F features, R sketch width
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from arch.parts.precision import widen


def count_monomials(key_dim: int, degree: int) -> int:
    """F, the monomials of K variables up to `degree`, the constant among them."""
    return math.comb(key_dim + degree, degree)


def poly_features(x: Tensor, roots: Tensor) -> Tensor:
    """[..., K] -> [..., F] for roots rho [p + 1], by ascending degree.

    Monomials of one degree are in groups by their first variable j, and in a group as those of the degree below that it is
    multiplied with: the monomials of j and the variables behind, which are the end of that degree.
    """
    degree = roots.shape[0] - 1
    shares = _shares(x, degree)
    weights = torch.cat([roots[i] * math.factorial(i) ** 0.5 * share for i, share in enumerate(shares)])
    powers: Tensor = _Monomials.apply(x, degree)
    return (powers * weights).to(x.dtype)


class _Monomials(torch.autograd.Function):
    """x^m up to a degree. Left to itself, PyTorch would pad and add a derivative for every variable.

    A degree is made of the one below, F', by one product [..., K, F'] of which each variable takes its group.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, degree: int) -> Tensor:
        parts, block = [torch.ones_like(x[..., :1]), *[x][:degree]], x
        for i in range(2, degree + 1):
            groups = _groups(x[..., :, None] * block[..., None, :], i)
            parts += groups
            block = torch.cat(groups, -1) if i < degree else block
        return torch.cat(parts, -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        x, ctx.degree = inputs
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor, None]:
        (x, powers), (d_powers,), degree = ctx.saved_tensors, signals, ctx.degree
        key_dim = x.shape[-1]
        counts = _counts(key_dim, degree)
        blocks, d_blocks = powers.split(counts, -1), list(d_powers.split(counts, -1))
        d_x = torch.zeros_like(x)
        for i in range(degree, 1, -1):
            starts = _starts(key_dim, i)
            groups = d_blocks[i].split([counts[i - 1] - start for start in starts], -1)
            none = torch.zeros_like(d_blocks[i - 1])  # where a variable's group lacks what lies ahead of it
            rows = [part for start, group in zip(starts, groups, strict=True) for part in (none[..., :start], group)]
            d_every = torch.cat(rows, -1).unflatten(-1, (key_dim, counts[i - 1]))
            d_x = d_x + (d_every @ blocks[i - 1][..., None]).squeeze(-1)
            d_blocks[i - 1] = d_blocks[i - 1] + (x[..., None, :] @ d_every).squeeze(-2)
        return d_x + d_blocks[1] if degree else d_x, None


def _counts(key_dim: int, degree: int) -> list[int]:
    """Monomials of every degree."""
    return [math.comb(key_dim + i - 1, i) for i in range(degree + 1)]


def _starts(key_dim: int, degree: int) -> list[int]:
    """Where, one degree below, the monomials of j and the variables behind begin, for all j."""
    below = degree - 1
    return [math.comb(key_dim + below - 1, below) - math.comb(key_dim - j + below - 1, below) for j in range(key_dim)]


def _groups(every: Tensor, degree: int) -> list[Tensor]:
    """Of every product [..., K, F'] of a variable and a monomial of the degree below, those that a degree takes."""
    return [every[..., j, start:] for j, start in enumerate(_starts(every.shape[-2], degree))]


def _shares(x: Tensor, degree: int) -> list[Tensor]:
    """1 / sqrt(m!) of the monomials of every degree."""
    unit = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    often = unit  # [K, F], how often a monomial of this degree has a variable
    found = [unit.new_ones(1), *[unit.new_ones(len(unit))][:degree]]
    for i in range(2, degree + 1):
        found.append(torch.cat(_groups((often + 1).rsqrt() * found[-1], i)))
        if i < degree:
            starts = enumerate(_starts(len(unit), i))
            often = torch.cat([often[:, start:] + unit[:, j, None] for j, start in starts], -1)
    return found


class PolyFeatures(nn.Module):
    """[..., K] -> [..., F] with learned coefficients, at first those of the exponential, a_i = 1 / i!."""

    def __init__(self, degree: int) -> None:
        super().__init__()
        self.roots = nn.Parameter(torch.tensor([math.factorial(i) ** -0.5 for i in range(degree + 1)]))

    def forward(self, x: Tensor) -> Tensor:
        return poly_features(x, widen(self.roots))

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
        """F"""
        return (key_dim if degree == 2 else sketch) ** 2

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
