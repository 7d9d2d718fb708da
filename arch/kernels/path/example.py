"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

VARIANTS = ("plain", "fading")


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `path` in fp64: reflections of all strengths; the same with a gate that forgets."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    inputs = {name: normal(batch, time, heads, key_width) for name in ("q", "k", "w")}
    inputs["w"] = normalize(inputs["w"], dim=-1)
    inputs["v"] = normal(batch, time, heads, value_width)
    inputs["beta"] = 2 * normal(batch, time, heads).sigmoid()
    if variant == "fading":
        inputs["log_decay"] = logsigmoid(2 + normal(batch, time, heads))
    return inputs
