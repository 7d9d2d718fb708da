"""A degree by one product of the one below: monomials of one degree are in groups by their first variable j, and in a group as
those of the degree below that it is multiplied with, the monomials of j and the variables behind, which are the end of it.

K variables, F' monomials of the degree below
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import working_dtype


def chunked(x: Tensor, roots: Tensor) -> Tensor:
    """x [..., K], roots [p + 1] -> [..., F]."""
    dtype, degree = working_dtype(x, roots), len(roots) - 1
    wide, roots = x.to(dtype), roots.to(dtype)
    weights = [roots[i] * math.factorial(i) ** 0.5 * share for i, share in enumerate(_shares(wide, degree))]
    powers: Tensor = _Monomials.apply(wide, degree)
    return (powers * torch.cat(weights)).to(x.dtype)


class _Monomials(torch.autograd.Function):
    """x^m up to a degree. Left to itself, PyTorch would pad and add a derivative for every variable."""

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
    """The products of a degree among all [..., K, F'] of a variable and a monomial of the degree below."""
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
