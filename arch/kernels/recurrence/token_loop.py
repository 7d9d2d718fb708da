"""The loop over tokens that makes a step into the `recurrent` implementation of its op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

State = TypeVar("State")


def loop(
    step: Callable[..., tuple[Tensor, State]], state: State, sequences: Mapping[str, Tensor | None], **constants: Any
) -> tuple[Tensor, State]:
    """Outputs [B, T, H, V] and the last state.

    `step(state, name=x_t, ..., **constants)` takes one token of each of the `sequences` [B, T, ...]; None stays None.
    """
    tokens = {name: x.unbind(1) for name, x in sequences.items() if x is not None}
    outputs = []
    for now in zip(*tokens.values(), strict=True):
        o, state = step(state, **dict(zip(tokens, now, strict=True)), **constants)
        outputs.append(o)
    return torch.stack(outputs, 1), state
