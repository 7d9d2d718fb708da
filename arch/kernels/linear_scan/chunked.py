"""The linear scan by chunks: all chunks take their tokens in one after the other side by side, then states pass from chunk
to chunk.

Inside a chunk with h_0 ahead of it, G_t the sum of log decays up to token t: h_t = h'_t + e^{G_t} h_0, with h' the scan from
zero. T tokens take about 2 sqrt(T) steps.

B batch, T time, N chunks, C tokens a chunk
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from arch.kernels.inputs import working_dtype


def chunked(
    x: Tensor, *, log_a: Tensor, initial_state: Tensor | None, return_state: bool, chunk: int | None
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence. `chunk` is a number of tokens."""
    dtype = working_dtype(x, log_a, initial_state)
    time = x.shape[1]
    chunk = chunk or math.isqrt(time - 1) + 1
    x_BNC, g_BNC = (_split(part.to(dtype), chunk) for part in (x, log_a))
    h_BNC = _scan(x_BNC, g_BNC.exp(), None, 2)
    state = None if initial_state is None else initial_state.to(dtype)
    if h_BNC.shape[1] == 1 and state is None:
        final = h_BNC[:, 0, -1]
    else:
        fade_BNC = g_BNC.cumsum(2).exp()
        behind_BN = _scan(h_BNC[:, :, -1], fade_BNC[:, :, -1], state, 1)
        first = torch.zeros_like(behind_BN[:, 0]) if state is None else state
        ahead_BN = torch.cat((first[:, None], behind_BN[:, :-1]), 1)
        h_BNC = torch.addcmul(h_BNC, fade_BNC, ahead_BN[:, :, None])
        final = behind_BN[:, -1]
    return h_BNC.flatten(1, 2)[:, :time].to(x.dtype), final if return_state else None


def _split(x: Tensor, chunk: int) -> Tensor:
    """[B, T, ...] -> [B, N, C, ...]; tokens of zeros, which fade nothing and bring nothing, fill up the last chunk."""
    missing = -x.shape[1] % chunk
    if missing:
        x = pad(x, (0, 0) * (x.ndim - 2) + (0, missing))
    return x.unflatten(1, (-1, chunk))


def _scan(x: Tensor, a: Tensor, state: Tensor | None, axis: int) -> Tensor:
    """h_t = a_t h_{t-1} + x_t along an axis, one entry after the other."""
    states = []
    for taken, kept in zip(x.unbind(axis), a.unbind(axis), strict=True):
        state = taken if state is None else torch.addcmul(taken, kept, state)
        states.append(state)
    return torch.stack(states, axis)
