"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

VARIANTS = ("head", "channel", "shared", "signed", "plain")


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `gated_linear` in fp64: a decay by head or by channel, q and k that heads share, signs, or no gates."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    groups = 1 if variant == "shared" else heads
    inputs = {
        "q": normalize(normal(batch, time, groups, key_width), dim=-1),
        "k": normalize(normal(batch, time, groups, key_width), dim=-1),
        "v": normal(batch, time, heads, value_width),
    }
    if variant == "plain":
        return inputs
    if variant == "channel":
        return {**inputs, "log_decay": logsigmoid(normal(batch, time, heads, key_width) + 1)}
    inputs["log_decay"] = logsigmoid(normal(batch, time, heads) + 2)
    inputs["beta"] = normal(batch, time, heads).sigmoid()
    if variant == "signed":
        inputs["sign"] = normal(batch, time, heads).sign()
    return inputs
