"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch

VARIANTS = ("quadratic",)


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `monomials` in fp64."""
    x = torch.randn(batch, time, heads, key_width, generator=generator, dtype=torch.float64)
    return {"x": x, "roots": torch.randn(3, generator=generator, dtype=torch.float64)}
