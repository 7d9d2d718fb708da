"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize, softplus

VARIANTS = ("head", "unrolled", "from_query", "plain", "shared", "signed", "ridge")


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `mesa` in fp64: gates by head; the same with the gradient of few steps unrolled, or with the solver
    started at the query; no gates; q and k that heads share; signs; a
    share of the norm for a regulariser."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    groups = 1 if variant == "shared" else heads
    inputs: dict[str, Any] = {
        "q": normalize(normal(batch, time, groups, key_width), dim=-1),
        "k": normalize(normal(batch, time, groups, key_width), dim=-1),
        "v": normal(batch, time, heads, value_width),
        "lam": 0.25 + softplus(normal(heads, key_width)),
    }
    if variant != "plain":
        inputs["log_decay"] = logsigmoid(normal(batch, time, heads) + 2)
        inputs["beta"] = normal(batch, time, heads).sigmoid()
    if variant == "unrolled":
        inputs |= {"gradient": "unroll", "steps": 5}
    if variant == "from_query":
        inputs |= {"x0": "q", "steps": 10}
    if variant == "signed":
        inputs["sign"] = normal(batch, time, heads).sign()
        inputs["lam"] = inputs["lam"] + 49
    if variant == "ridge":
        del inputs["lam"]
        inputs |= {"ridge": 1.0, "steps": 8, "alpha": normal(batch, time, heads).sigmoid()}
    return inputs
