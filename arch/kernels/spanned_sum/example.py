"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import logsigmoid

VARIANTS = ("atlas",)


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `spanned_sum` in fp64: key_width vectors, and matrices of value_width columns."""

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(batch, *shape, generator=generator, dtype=torch.float64)

    return {
        "q": drawn(time, heads, key_width),
        "x": drawn(time, heads, key_width),
        "factor": drawn(time, heads, value_width, value_width),
        "d": drawn(heads, key_width, value_width),
        "log_decay": logsigmoid(drawn(time, heads) + 2),
    }
