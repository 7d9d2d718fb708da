"""The state of mLSTM, and the normalisation of its reads.

The gates are exponentials, so C and n are kept divided by e^m, with m such that nothing overflows. No output depends on which
m it is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import state_or_zero

LARGEST_EXPONENT = 80.0  # e^80 is still a float32, and so is e^-80


class MlstmState(NamedTuple):
    """C [B, H, K, V] and n [B, H, K], both divided by e^m; m [B, H]."""

    C: Tensor
    n: Tensor
    m: Tensor


def start(state: MlstmState | None, shape: tuple[int, int, int, int], *inputs: Tensor | None) -> MlstmState:
    """The state to go on from, zero where it is None; `shape` is [B, H, K, V]. Raises ValueError on one that does not fit."""
    C, n, m = state or (None, None, None)
    return MlstmState(
        state_or_zero("mlstm", C, shape, n, m, *inputs),
        state_or_zero("mlstm", n, shape[:3], C, m, *inputs),
        state_or_zero("mlstm", m, shape[:2], C, n, *inputs),
    )


def in_proportion(read: Tensor, weight: Tensor, m: Tensor) -> Tensor:
    """read [..., V] / max(|weight|, 1), where both come divided by e^m: weight and m are [...]."""
    one = (-m).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT).exp()
    return read / torch.maximum(weight.abs(), one)[..., None]
