"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

VARIANTS = ("rates", "keys")


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `selective_scan` in fp64: all heads share their keys, and fade by learned rates; or each by its own keys."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shared = 1 if variant == "rates" else heads
    q, k = (normal(batch, time, shared, key_width) for _ in "qk")
    inputs = {"q": q, "k": k, "v": normal(batch, time, heads, value_width)}
    step = normal(batch, time, heads, value_width)
    if variant == "rates":
        return inputs | {
            "step": softplus(step.tanh() - 1),
            "rate": (normal(heads, value_width, key_width).tanh() / 2).exp(),
        }
    return inputs | {"k": normalize(k, dim=-1), "step": step.sigmoid()}
