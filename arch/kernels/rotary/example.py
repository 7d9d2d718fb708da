"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch

VARIANTS = ("plain", "shared")


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `rotary` in fp64: an angle for each head, or one that all heads share and that grows with time."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(batch, time, *shape, generator=generator, dtype=torch.float64)

    half = (value_width + 1) // 2
    angle = 3.0 * normal(1 if variant == "shared" else heads, half)
    if variant == "shared":
        angle += torch.arange(time)[:, None, None]
    return {"x": normal(heads, 2 * half), "angle": angle}
