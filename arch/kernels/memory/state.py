"""The state of a memory that learns at test time."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class MemoryState(NamedTuple):
    """The state of a memory between tokens. B batch, H heads, c window, K key width, V value width

    weights    the matrices [B, H, rows, columns], before the retention
    momentum   alike; None without
    reference  the matrices at the start of the chunk; None where every token is a chunk or it makes no difference
    position   tokens seen
    keys       the last c - 1 keys [B, H, c - 1, K], without their features, zero where there was none
    values     the last c - 1 values [B, H, c - 1, V]
    delta      the thresholds of those [B, H, c - 1]; None where the loss has none
    """

    weights: tuple[Tensor, ...]
    momentum: tuple[Tensor, ...] | None
    reference: tuple[Tensor, ...] | None
    position: int
    keys: Tensor
    values: Tensor
    delta: Tensor | None

    def to(self, dtype: torch.dtype) -> MemoryState:
        """The state in another precision."""
        return MemoryState(*(_to(part, dtype) for part in self))


def _to(part: Any, dtype: torch.dtype) -> Any:
    if isinstance(part, tuple):
        return tuple(_to(one, dtype) for one in part)
    return part.to(dtype) if isinstance(part, Tensor) else part
