"""The state of Mesa: two matrices that fade and take in outer products."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import state_or_zero


class MesaState(NamedTuple):
    """kk [B, H, K, K] takes in k^T k, kv [B, H, K, V] takes in k^T v."""

    kk: Tensor
    kv: Tensor


def start(state: MesaState | None, shape: tuple[int, int, int, int], *inputs: Tensor | None) -> MesaState:
    """The state to go on from, zero where it is None; `shape` is [B, H, K, V]. Raises ValueError on one that does not fit."""
    batch, heads, key_width, _ = shape
    kk, kv = (None, None) if state is None else state
    return MesaState(
        state_or_zero("mesa", kk, (batch, heads, key_width, key_width), kv, *inputs),
        state_or_zero("mesa", kv, shape, kk, *inputs),
    )
