"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

VARIANTS = ("unit", "plain")


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `short_conv` in fp64: four taps, activated, at length 1; or three taps with a bias and no more."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = normal(batch, time, heads, value_width)
    if variant == "unit":
        return {"x": x, "weight": normal(heads, value_width, 4), "activation": "silu", "unit": True}
    return {"x": x, "weight": normal(heads, value_width, 3), "bias": normal(heads, value_width)}
