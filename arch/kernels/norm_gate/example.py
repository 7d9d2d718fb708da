"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

VARIANTS = ("silu", "sigmoid", "plain")


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `norm_gate` in fp64: weights of every head and a SiLU, weights for all and a sigmoid, or no gate. Weights
    near 1 and bounded gates: in 16 bits a product of many tails is rounded by more than a tolerance allows."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = normal(batch, time, heads, value_width)
    if variant == "plain":
        return {"x": x, "weight": 1 + 0.1 * normal(heads, value_width)}
    weight = 1 + 0.1 * normal(heads if variant == "silu" else 1, value_width)
    return {"x": x, "weight": weight, "gate": 2 * normal(*x.shape).tanh(), "activation": variant}
