"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

VARIANTS = ("exponential",)
WINDOW = 2


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `kernel_attention` in fp64: a linear memory over all powers of the key, with a window."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def gate(*shape: int) -> Tensor:
        return normal(batch, time, heads, *shape).sigmoid()

    return {
        "q": normalize(normal(batch, time, heads, key_width), dim=-1),
        "k": normalize(normal(batch, time, heads, key_width), dim=-1),
        "v": normal(batch, time, heads, value_width),
        "alpha": 1 - 0.1 * gate(),
        "eta": 0.3 * gate(),
        "gamma": gate(WINDOW),
        "window": WINDOW,
    }
