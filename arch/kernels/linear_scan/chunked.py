"""The linear scan by chunks: all chunks take their tokens in one after the other, side by side.

Twice: first from zero, for what each chunk brings to its end; then, when states have passed from chunk to chunk, from the state
ahead of it. T tokens take about 3 sqrt(T) steps.

B batch, T time, N chunks, C tokens a chunk
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from recallmap.arch.kernels.op_interface.input_checks import working_dtype


def chunked(
    x: Tensor, *, log_a: Tensor, initial_state: Tensor | None, return_state: bool, chunk: int | None
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence. `chunk` is a number of tokens."""
    dtype = working_dtype(x, log_a, initial_state)
    time = x.shape[1]
    x_BNC, g_BNC = (_split(part.to(dtype), chunk or math.isqrt(time - 1) + 1) for part in (x, log_a))
    a_BNC, ahead_BN = g_BNC.exp(), None
    if initial_state is not None:
        ahead_BN = initial_state.to(dtype)[:, None]
    if x_BNC.shape[1] > 1:
        *_, brought_BN = _scan(x_BNC, a_BNC, None, 2)
        first = torch.zeros_like(x_BNC[:, 0, 0]) if ahead_BN is None else ahead_BN[:, 0]
        behind = _scan(brought_BN[:, :-1], g_BNC[:, :-1].sum(2).exp(), first, 1)
        ahead_BN = torch.stack([first, *behind], 1)
    h_BNC = torch.stack([*_scan(x_BNC, a_BNC, ahead_BN, 2)], 2)
    return h_BNC.flatten(1, 2)[:, :time].to(x.dtype), h_BNC[:, -1, -1] if return_state else None


def _split(x: Tensor, chunk: int) -> Tensor:
    """[B, T, ...] -> [B, N, C, ...]; tokens of zeros, which fade nothing and bring nothing, fill up the last chunk."""
    missing = -x.shape[1] % chunk
    if missing:
        x = pad(x, (0, 0) * (x.ndim - 2) + (0, missing))
    return x.unflatten(1, (-1, chunk))


def _scan(x: Tensor, a: Tensor, state: Tensor | None, axis: int) -> Iterator[Tensor]:
    """h_t = a_t h_{t-1} + x_t along an axis, one entry after the other; `state` is ahead of the first, None for zero."""
    for taken, kept in zip(x.unbind(axis), a.unbind(axis), strict=True):
        state = taken if state is None else torch.addcmul(taken, kept, state)
        yield state
