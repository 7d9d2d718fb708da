"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from arch.kernels.rule import Rule

VARIANTS = ("deep", "linear")
RULES = {
    "deep": Rule(momentum="inside", window=2, chunk=16),
    "linear": Rule(window=3),
}


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `memory` in fp64: Titans' rule in a deep memory, the Omega rule in a linear one."""
    rule = RULES[variant]

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def gate(*shape: int) -> Tensor:
        return normal(batch, time, heads, *shape).sigmoid()

    def matrix(rows: int, columns: int) -> Tensor:
        return normal(heads, rows, columns) * rows**-0.5

    hidden = 2 * key_width
    deep = (matrix(key_width, hidden), matrix(hidden, value_width))
    inputs = {
        "q": normalize(normal(batch, time, heads, key_width), dim=-1),
        "k": normalize(normal(batch, time, heads, key_width), dim=-1),
        "v": normal(batch, time, heads, value_width),
        "alpha": 1 - 0.1 * gate(),
        "eta": gate() / (rule.chunk * rule.window),
        "gamma": gate(rule.window),
        "weights": (matrix(key_width, value_width),) if variant == "linear" else deep,
        "rule": rule,
    }
    return inputs if rule.momentum == "none" else {**inputs, "theta": gate()}
