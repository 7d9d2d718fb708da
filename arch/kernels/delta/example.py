"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

VARIANTS = ("head", "plain", "channel", "shared", "signed", "pair", "pair_channel", "pair_signed")


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `delta` in fp64: with beta, a decay by head, none, one by channel, q and k that heads share, signs; with
    the pair a, b, a decay by head or by channel, signs."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    groups = 1 if variant == "shared" else heads
    inputs = {
        "q": normalize(normal(batch, time, groups, key_width), dim=-1),
        "k": normalize(normal(batch, time, groups, key_width), dim=-1),
        "v": normal(batch, time, heads, value_width),
    }
    if variant.startswith("pair"):
        inputs["a"] = normalize(normal(batch, time, heads, key_width), dim=-1)
        inputs["b"] = inputs["a"] * normal(batch, time, heads, key_width).sigmoid()
    else:
        inputs["beta"] = normal(batch, time, heads).sigmoid()
    if variant.endswith("channel"):
        inputs["log_decay"] = -0.6065 * normal(batch, time, heads, key_width).sigmoid()
    elif variant != "plain":
        inputs["log_decay"] = logsigmoid(normal(batch, time, heads) + 2)
    if variant.endswith("signed"):
        inputs["sign"] = normal(batch, time, heads).sign()
    return inputs
