"""The state of log-linear attention: what is behind a token, in buckets of 1, 2, 4, ... tokens as a binary counter has them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import state_or_zero


class LogLinearState(NamedTuple):
    """The buckets of levels 1 to L - 1, [B, H, L - 1, K, V], and the number of tokens behind. Level l has 2^(l-1) tokens, where
    that bit of the number is set, and 0 otherwise; the last one takes all that is older."""

    buckets: Tensor
    time: int


def start(state: LogLinearState | None, shape: tuple[int, ...], *inputs: Tensor | None) -> LogLinearState:
    """The state to go on from, empty where it is None. Raises ValueError on one that does not fit."""
    held, time = (None, 0) if state is None else state
    return LogLinearState(state_or_zero("log_linear", held, shape, *inputs), time)


def counted(buckets: Tensor, written: Tensor, number: int, first: int) -> Tensor:
    """The buckets [B, H, L - 1, K, V] behind one more block, `written` [B, H, K, V], as the `number`-th (from 0) of its size.
    A block lies in the bucket `first` (from 0), or further up with what it is added to there. Buckets before stay."""
    carried = (~number & (number + 1)).bit_length() - 1  # ones at the end of the number
    at = min(first + carried, buckets.shape[2] - 1)
    first = min(first, at)
    new = buckets[:, :, first : at + 1].sum(2) + written
    emptied = torch.zeros_like(buckets[:, :, first:at])
    return torch.cat((buckets[:, :, :first], emptied, new[:, :, None], buckets[:, :, at + 1 :]), 2)
