"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

VARIANTS = ("gated", "plain")
SLOTS = 7


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `slots` in fp64: writes that are what a slot lets go of; nothing that fades, and writes of their own."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    inputs = {name: normalize(normal(batch, time, heads, key_width), dim=-1) for name in ("q", "k")}
    inputs["v"] = normal(batch, time, heads, value_width)
    gates = logsigmoid(normal(batch, time, heads, SLOTS) + 1)
    inputs["write"] = -torch.expm1(gates)
    return inputs | ({"log_decay": gates} if variant == "gated" else {})
