"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import logsigmoid

from recallmap.arch.kernels.test_time.learning_rule import KL, LQ, LqRetention

RETENTIONS = {"memora": KL, "moneta": LQ, "mirror": LqRetention(q=3.0, mirror=True)}
VARIANTS = tuple(RETENTIONS)


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `retained` in fp64: matrices of key_width rows and value_width columns."""

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(batch, time, heads, *shape, generator=generator, dtype=torch.float64)

    return {
        "q": drawn(key_width),
        "k": drawn(key_width) / key_width**0.5,
        "v": drawn(value_width),
        "retention": RETENTIONS[variant],
        "log_decay": logsigmoid(drawn() + 2),
    }
