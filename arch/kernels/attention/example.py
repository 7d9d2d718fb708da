"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

VARIANTS = ("full", "window", "prefix", "shared", "fading")


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `attention` in fp64: all tokens in sight, a window of 16, the same with a prefix of 3, q and k that heads
    share, a gate that forgets."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    groups = 1 if variant == "shared" else heads
    inputs: dict[str, Any] = {
        "q": normal(batch, time, groups, key_width),
        "k": normal(batch, time, groups, key_width),
        "v": normal(batch, time, heads, value_width),
    }
    if variant in ("window", "prefix"):
        inputs["window"] = 16
    if variant == "fading":
        inputs["log_decay"] = torch.nn.functional.logsigmoid(2 + normal(batch, time, heads))
    if variant == "prefix":
        inputs["prefix"] = 3
    return inputs
