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

    Kept are the first `prefix` tokens and the last `window` of the others; all, where there is no window. `fades` [B, S, H] is
    the sum of the log decays of all tokens behind a kept one, fp32 at least; None where there is no decay.
    """

    keys: Tensor
    values: Tensor
    position: int
    fades: Tensor | None = None

    def to(self, keys: torch.dtype, values: torch.dtype) -> AttentionState:
        return AttentionState(self.keys.to(keys), self.values.to(values), self.position, self.fades)


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
    log_decay: Tensor | None = None,
) -> AttentionState:
    """The state to go on from; `keys` and `values` are the shapes [B, heads, width]. Raises ValueError where unfit."""
    if state is None:
        fades = None if log_decay is None else log_decay.new_zeros(values[0], 0, values[1])
        return AttentionState(
            like.new_zeros(keys[0], 0, *keys[1:]), like.new_zeros(values[0], 0, *values[1:]), 0, fades
        )
    held = len(kept(state.position, window, prefix))
    expect("attention", f"keys of a state at position {state.position}", state.keys, (keys[0], held, *keys[1:]))
    expect("attention", f"values of a state at position {state.position}", state.values, (values[0], held, *values[1:]))
    expect("attention", f"fades of a state at position {state.position}", state.fades, (values[0], held, values[1]))
    if (state.fades is None) != (log_decay is None):
        got, wanted = ("no fades", "with") if state.fades is None else ("fades", "without")
        raise ValueError(f"attention: the state has {got}, must be of a call {wanted} log_decay, as this one is")
    return state


def sums(past: AttentionState, log_decay: Tensor) -> Tensor:
    """C [B, S, H] in fp64, so that C_t - C_j is the sum of the log decays behind key j up to token t, for j <= t: keys of the
    state first, then those of `log_decay` [B, T, H]. Over long sequences the sums themselves need more digits than fp32 has."""
    assert past.fades is not None
    return torch.cat((-past.fades.double(), log_decay.double().cumsum(1)), 1)


def finish(
    past: AttentionState,
    keys: Tensor,
    values: Tensor,
    log_decay: Tensor | None,
    window: int | None,
    prefix: int,
    dtype: torch.dtype,
) -> AttentionState:
    """The state behind the tokens of `log_decay` [B, T, H], from all keys and values at hand; fades are of `dtype`."""
    position = past.position + values.shape[1] - past.values.shape[1]
    fades = None
    if log_decay is not None and past.fades is not None:
        # From a token on, summed up from the end: the nearest keep all their digits.
        behind = log_decay.double().flip(1).cumsum(1).flip(1)
        every = (behind[:, :1] + past.fades.double(), behind[:, 1:], torch.zeros_like(behind[:, :1]))
        fades = keep(torch.cat(every, 1).to(dtype), position, window, prefix)
    return AttentionState(keep(keys, position, window, prefix), keep(values, position, window, prefix), position, fades)


def hidden(queries: range, keys: list[int], window: int | None, prefix: int, like: Tensor) -> Tensor:
    """0 where a query sees a key, -inf elsewhere: [C, S]."""
    at = torch.arange(queries.start, queries.stop, device=like.device)[:, None]
    of = _on_device(keys, like.device)[None, :]
    unseen = of > at
    if window is not None:
        unseen = unseen | ((of <= at - window) & (of >= prefix))
    return torch.zeros(unseen.shape, dtype=like.dtype, device=like.device).masked_fill(unseen, -torch.inf)


def _on_device(positions: list[int], device: torch.device) -> Tensor:
    """The positions as a tensor, made of runs: a copy from the host has no place in a recorded graph."""
    begins = [i for i, p in enumerate(positions) if i == 0 or p != positions[i - 1] + 1]
    ends = [*begins[1:], len(positions)]
    runs = [torch.arange(positions[a], positions[a] + b - a, device=device) for a, b in zip(begins, ends, strict=True)]
    return runs[0] if len(runs) == 1 else torch.cat(runs)
