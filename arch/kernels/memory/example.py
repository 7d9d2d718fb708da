"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from recallmap.arch.kernels.test_time.learning_rule import Rule
from recallmap.arch.kernels.test_time.network import LayerNorm

VARIANTS = ("deep", "linear", "ttt", "omega")
RULES = {
    "deep": Rule(momentum="inside", window=2, chunk=16),
    "linear": Rule(window=3),
    "ttt": Rule(chunk=16, bias=True, residual=True),
    "omega": Rule(window=4, chunk=16, residual=True),
}


def quadratic(x: Tensor) -> Tensor:
    """[..., K] -> [..., 1 + K + K (K + 1) / 2]: 1, x, and products of two of its entries. Entries are picked by products with
    ones and zeros, for the derivative of picking by index sorts all that it adds up, at ten times the cost of the memory."""
    width = x.shape[-1]
    one = torch.eye(width, dtype=x.dtype, device=x.device)
    first, second = torch.triu_indices(width, width, device=x.device)
    products = (x @ one[:, first]) * (x @ one[:, second])
    return torch.cat([torch.ones_like(x[..., :1]), x, 0.5**0.5 * products], -1)


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `memory` in fp64: Titans' rule in a deep memory, the Omega rule in a linear one, TTT-Linear and OmegaNet
    (whose values are as wide as their keys), the latter over quadratic features."""
    rule = RULES[variant]

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def gate(*shape: int) -> Tensor:
        return normal(batch, time, heads, *shape).sigmoid()

    def matrix(rows: int, columns: int) -> Tensor:
        return normal(heads, rows, columns) * rows**-0.5

    hidden = 2 * key_width
    value_width = key_width if rule.residual else value_width
    first = 1 + key_width + key_width * (key_width + 1) // 2 if variant == "omega" else key_width
    shapes = [(first, hidden), (hidden, value_width)] if variant in ("deep", "omega") else [(first, value_width)]
    inputs = {
        "q": normalize(normal(batch, time, heads, key_width), dim=-1),
        "k": normalize(normal(batch, time, heads, key_width), dim=-1),
        "v": normal(batch, time, heads, value_width),
        "alpha": 1 - 0.1 * gate(),
        "eta": gate() / (rule.chunk * rule.window),
        "gamma": gate(rule.window),
        "weights": tuple(matrix(rows + rule.bias, columns) for rows, columns in shapes),
        "rule": rule,
    }
    if variant == "omega":
        inputs["features"] = quadratic
    if variant == "ttt":
        inputs["norm"] = LayerNorm(1 + 0.1 * normal(heads, value_width), 0.1 * normal(heads, value_width))
    return inputs if rule.momentum == "none" else {**inputs, "theta": gate()}
