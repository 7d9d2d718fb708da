"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch

VARIANTS = ("atlas",)


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `spanned_newton_schulz` in fp64: key_width vectors twice as long, and matrices of value_width
    columns."""

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(batch, *shape, generator=generator, dtype=torch.float64)

    x, d = drawn(time, heads, key_width), drawn(heads, key_width, value_width)
    return {"x": x, "d": d, "u": drawn(heads, 2 * key_width, key_width)}
