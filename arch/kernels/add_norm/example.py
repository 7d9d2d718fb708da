"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

VARIANTS = ("plain",)


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `add_norm` in fp64; weights near 1, as those of `norm_gate`."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, added = normal(batch, time, heads, value_width), normal(batch, time, heads, value_width)
    return {"x": x, "added": added, "weight": 1 + 0.1 * normal(value_width)}
