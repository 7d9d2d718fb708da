"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

VARIANTS = ("head", "shared")


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `mlstm` in fp64: gates by head, or also q and k that heads share."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    groups = 1 if variant == "shared" else heads
    return {
        "q": normal(batch, time, groups, key_width),
        "k": normal(batch, time, groups, key_width),
        "v": normal(batch, time, heads, value_width),
        "i": normal(batch, time, heads),
        "f": normal(batch, time, heads) + 2,
    }
