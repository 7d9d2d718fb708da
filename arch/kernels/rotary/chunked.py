"""Rotary positions, all tokens at once: one kernel when compiled."""

from __future__ import annotations

from torch import Tensor

from recallmap.arch.kernels.rotary.recurrent import turned


def chunked(x: Tensor, *, angle: Tensor, learned: bool) -> Tensor:
    """The whole sequence."""
    return turned(x, angle)
