"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

VARIANTS = ("gates",)


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `gated_scan` in fp64, with heads times value_width channels, of short and of long memories."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, r, i = (normal(batch, time, heads, value_width) for _ in "xri")
    return {"x": x, "r": 2 * r.tanh(), "i": i, "rate": normal(heads, value_width).tanh() - 3}
