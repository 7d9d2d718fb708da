"""The state of slots: a key and a value for each, which fade and take in what is written to the slot."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import state_or_zero


class SlotsState(NamedTuple):
    """keys [B, H, M, K] and values [B, H, M, V] of the slots."""

    keys: Tensor
    values: Tensor


def start(
    state: SlotsState | None, keys: tuple[int, ...], values: tuple[int, ...], *inputs: Tensor | None
) -> SlotsState:
    """The state to go on from, zero where it is None; `keys` and `values` are its shapes. Raises ValueError on one that does
    not fit."""
    held, answers = (None, None) if state is None else state
    return SlotsState(
        state_or_zero("slots", held, keys, answers, *inputs), state_or_zero("slots", answers, values, held, *inputs)
    )
