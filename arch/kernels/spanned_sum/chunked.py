"""Steps in a span, many tokens at once: each reads its own sum of all that is taken.

B batch, H heads, N tokens of a piece, S vectors, C columns
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import working_dtype
from recallmap.arch.kernels.recurrence.decay import pair_decays, running_sums

AT_ONCE = 16  # tokens


def chunked(
    q: Tensor,
    x: Tensor,
    factor: Tensor,
    d: Tensor,
    *,
    log_decay: Tensor,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence, `chunk` tokens at a time."""
    dtype = working_dtype(q, x, factor, d, log_decay, initial_state)
    state, d_BHSC = initial_state if initial_state is None else initial_state.to(dtype), d.to(dtype)
    pieces = (t.to(dtype).transpose(1, 2).split(chunk or AT_ONCE, 2) for t in (q, x, factor, log_decay))
    outputs = []
    for q_BHNS, x_BHNS, factor_BHNCC, g_BHN in zip(*pieces, strict=True):
        y_BHNC, state = _piece(state, q_BHNS, x_BHNS, factor_BHNCC, g_BHN, d_BHSC)
        outputs.append(y_BHNC)
    return torch.cat(outputs, 2).transpose(1, 2).to(x.dtype), state if return_state else None


def _piece(
    state: Tensor | None, q_BHNS: Tensor, x_BHNS: Tensor, factor_BHNCC: Tensor, g_BHN: Tensor, d_BHSC: Tensor
) -> tuple[Tensor, Tensor]:
    """y [B, H, N, C], and W behind the last token."""
    tokens, columns = factor_BHNCC.shape[2:4]
    fade_BHNN = pair_decays(g_BHN)
    stepped_BHSNC = (d_BHSC @ factor_BHNCC.transpose(2, 3).flatten(-2)).unflatten(-1, (tokens, columns))
    taken_BHSNC = x_BHNS.mT[..., None] * stepped_BHSNC
    every_BHNNC = (q_BHNS @ taken_BHSNC.flatten(-2)).unflatten(-1, (tokens, columns))
    y_BHNC = (fade_BHNN[..., None] * every_BHNNC).sum(-2)
    w_BHSC = (fade_BHNN[:, :, -1:, :, None] * taken_BHSNC).sum(-2)
    if state is None:
        return y_BHNC, w_BHSC
    kept_BHN = running_sums(g_BHN).exp()
    return y_BHNC + kept_BHN[..., None] * (q_BHNS @ state), w_BHSC + kept_BHN[..., -1, None, None] * state
