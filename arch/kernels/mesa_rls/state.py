"""The state of recursive least squares: the inverse of all keys' second moment, and all values under their keys."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import expect, state_or_zero, working_dtype


class MesaRlsState(NamedTuple):
    """P [B, H, K, K], symmetric; kv [B, H, K, V] takes in k^T v."""

    P: Tensor
    kv: Tensor


def start(
    state: MesaRlsState | None, lam: Tensor, shape: tuple[int, int, int, int], *inputs: Tensor | None
) -> MesaRlsState:
    """The state to go on from, diag(lam)^-1 and zero where it is None; `shape` is [B, H, K, V].

    Raises ValueError on a state that does not fit.
    """
    batch, heads, key_width, _ = shape
    if state is None:
        P = torch.diag_embed(1 / lam.to(working_dtype(lam, *inputs))).expand(batch, -1, -1, -1)
        return MesaRlsState(P, state_or_zero("mesa_rls", None, shape, lam, *inputs))
    expect("mesa_rls", "state", state.P, (batch, heads, key_width, key_width))
    dtype = working_dtype(state.P, state.kv, lam, *inputs)
    P = 0.5 * (state.P + state.P.mT).to(dtype)  # implementations read one half of it or the other
    return MesaRlsState(P, state_or_zero("mesa_rls", state.kv, shape, state.P, lam, *inputs))
