"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize, softplus

VARIANTS = ("gated", "plain")
LEVELS = 6


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `log_linear` in fp64: with gates and write strengths; without, which is linear attention by levels."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    inputs = {name: normalize(normal(batch, time, heads, key_width), dim=-1) for name in ("q", "k")}
    inputs["v"] = normal(batch, time, heads, value_width)
    inputs["levels"] = softplus(normal(batch, time, heads, LEVELS))
    if variant == "gated":
        inputs["log_decay"] = logsigmoid(normal(batch, time, heads) + 3)
        inputs["beta"] = normal(batch, time, heads).sigmoid()
    return inputs
