"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch

VARIANTS = ("plain",)


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `swiglu` in fp64."""
    return {"x": torch.randn(batch, time, heads, 2 * value_width, generator=generator, dtype=torch.float64)}
