"""A matrix read through its retention, many tokens at once: each has a matrix of its own.

B batch, H heads, N tokens of a piece, R rows, C columns
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import state_or_zero
from recallmap.arch.kernels.recurrence.decay import pair_decays, running_sums
from recallmap.arch.kernels.test_time.learning_rule import Retention

AT_ONCE = 16  # tokens


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    retention: Retention,
    log_decay: Tensor,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence, `chunk` tokens at a time."""
    batch, _, heads, rows = k.shape
    state = state_or_zero("retained", initial_state, (batch, heads, rows, v.shape[-1]), q, k, v, log_decay)
    pieces = (x.to(state.dtype).transpose(1, 2).split(chunk or AT_ONCE, 2) for x in (q, k, v, log_decay))
    outputs = []
    for q_BHNR, k_BHNR, v_BHNC, g_BHN in zip(*pieces, strict=True):
        each_BHNF = (k_BHNR[..., :, None] * v_BHNC[..., None, :]).flatten(-2)
        taken_BHNRC = (pair_decays(g_BHN) @ each_BHNF).unflatten(-1, state.shape[-2:])
        a_BHNRC = running_sums(g_BHN).exp()[..., None, None] * state[:, :, None] + taken_BHNRC
        outputs.append((q_BHNR[..., None, :] @ retention.weights(a_BHNRC)).squeeze(-2))
        state = a_BHNRC[:, :, -1]
    return torch.cat(outputs, 2).transpose(1, 2).to(v.dtype), state if return_state else None
