"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch

VARIANTS = ("atlas",)


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `gram_newton_schulz` in fp64: S^T S of a matrix a token with value_width columns, and `heads` rows more."""
    s = torch.randn(batch, time, heads + value_width, value_width, generator=generator, dtype=torch.float64)
    return {"x": s.mT @ s}
