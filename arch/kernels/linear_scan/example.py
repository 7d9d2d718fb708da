"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

VARIANTS = ("scan",)


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `linear_scan` in fp64, with heads times value_width channels."""

    def normal() -> Tensor:
        return torch.randn(batch, time, heads, value_width, generator=generator, dtype=torch.float64)

    return {"x": normal(), "log_a": logsigmoid(normal() + 2)}
