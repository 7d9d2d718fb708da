"""The state of attention: the keys and values that a later token may still see, and the number of tokens so far.

B batch, S tokens kept, G heads of the keys (H or 1), H heads, K key width, V value width
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import expect


class AttentionState(NamedTuple):
    """keys [B, S, G, K] and values [B, S, H, V] of the tokens kept, oldest first, as they came; `position` tokens so far.

    Kept are the first `prefix` tokens and the last `window` of the others; all, where there is no window.
    """

    keys: Tensor
    values: Tensor
    position: int

    def to(self, keys: torch.dtype, values: torch.dtype) -> AttentionState:
        return AttentionState(self.keys.to(keys), self.values.to(values), self.position)


def kept(position: int, window: int | None, prefix: int) -> list[int]:
    """Positions of the tokens that a state holds after `position` tokens."""
    if window is None:
        return list(range(position))
    first = min(prefix, position)
    return [*range(first), *range(max(first, position - window), position)]


def keep(x: Tensor, position: int, window: int | None, prefix: int) -> Tensor:
    """The keys or values of [B, S, ...] to keep after `position` tokens; those of the last `window` are at the end."""
    if window is None:
        return x
    first = min(prefix, position)
    recent = min(window, position - first)
    if x.shape[1] == first + recent:
        return x
    tail = x[:, x.shape[1] - recent :]
    return tail if first == 0 else torch.cat((x[:, :first], tail), 1)


def start(
    state: AttentionState | None,
    keys: tuple[int, ...],
    values: tuple[int, ...],
    window: int | None,
    prefix: int,
    like: Tensor,
) -> AttentionState:
    """The state to go on from; `keys` and `values` are the shapes [B, heads, width]. Raises ValueError where unfit."""
    if state is None:
        return AttentionState(like.new_zeros(keys[0], 0, *keys[1:]), like.new_zeros(values[0], 0, *values[1:]), 0)
    held = len(kept(state.position, window, prefix))
    expect("attention", f"keys of a state at position {state.position}", state.keys, (keys[0], held, *keys[1:]))
    expect("attention", f"values of a state at position {state.position}", state.values, (values[0], held, *values[1:]))
    return state
