"""The gated scan as a linear scan of what gates let in."""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.gated_scan.recurrent import log_decay, room
from recallmap.arch.kernels.linear_scan.chunked import chunked as scan
from recallmap.arch.kernels.op_interface.input_checks import working_dtype


def chunked(
    x: Tensor,
    *,
    r: Tensor,
    i: Tensor,
    rate: Tensor,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence. `chunk` is a number of tokens."""
    dtype = working_dtype(x, r, i, rate, initial_state)
    log_a = log_decay(r.to(dtype), rate.to(dtype))
    let_in = room(log_a)
    if initial_state is None:
        let_in = torch.cat([torch.ones_like(let_in[:, :1]), let_in[:, 1:]], dim=1)
    taken = let_in * torch.sigmoid(i.to(dtype)) * x.to(dtype)
    h, final = scan(taken, log_a=log_a, initial_state=initial_state, return_state=return_state, chunk=chunk)
    return h.to(x.dtype), final
