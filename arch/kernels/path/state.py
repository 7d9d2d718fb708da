"""The state of PaTH: all keys as later tokens have reflected them, all values, and what gates took since.

B batch, S tokens so far, H heads, K key width, V value width
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import expect


class PathState(NamedTuple):
    """keys [B, S, H, K] reflected by all tokens behind them, values [B, S, H, V] as they came, and `fades` [B, S, H], the sum
    of the log decays behind a token; None where there is no decay. Keys and fades are fp32 at least."""

    keys: Tensor
    values: Tensor
    fades: Tensor | None = None


def start(
    state: PathState | None,
    keys: tuple[int, ...],
    values: tuple[int, ...],
    like: Tensor,
    log_decay: Tensor | None,
    dtype: torch.dtype,
) -> PathState:
    """The state to go on from, in `dtype` but for the values; `keys` and `values` are the shapes [B, H, width]. Raises
    ValueError where unfit."""
    if state is None:
        fades = None if log_decay is None else like.new_zeros(values[0], 0, values[1], dtype=dtype)
        held = like.new_zeros(keys[0], 0, *keys[1:], dtype=dtype)
        return PathState(held, like.new_zeros(values[0], 0, *values[1:]), fades)
    count = state.keys.shape[1]
    expect("path", "keys of the state", state.keys, (keys[0], count, *keys[1:]))
    expect("path", "values of the state", state.values, (values[0], count, *values[1:]))
    expect("path", "fades of the state", state.fades, (values[0], count, values[1]))
    if (state.fades is None) != (log_decay is None):
        got, wanted = ("no fades", "with") if state.fades is None else ("fades", "without")
        raise ValueError(f"path: the state has {got}, must be of a call {wanted} log_decay, as this one is")
    return PathState(state.keys.to(dtype), state.values, None if state.fades is None else state.fades.to(dtype))
