"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch

VARIANTS = ("muon",)


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `newton_schulz` in fp64: a matrix a token, of as many rows as there are heads, and value_width columns."""
    return {"x": torch.randn(batch, time, heads, value_width, generator=generator, dtype=torch.float64)}
