"""Slots by the kernels of gated linear attention, called twice: values are read as there, keys as its derivative reads.

What slots answer to their weights p is gated linear attention, with weights for queries, writes for keys:
o_t = p_t Y_t,   Y_t = diag(e^{g_t}) Y_{t-1} + s_t^T v_t
Scores x_t = q_t X_t^T read the same kind of state along its other axis. With u_t for queries, sum_t u_t . x_t is
sum_t q_t . (u_t X_t): so x_t is the derivative by u_t where q_t is that by the outputs u_t X_t. And where derivatives by scores
come back they are u: the outputs are then the derivative by q, and the derivatives by writes, keys, decays and the first
state are those of the scores.

All of it is fp32: softmax's derivative is a difference, for which 16 bits are too few. Forward is three calls of those
kernels, backward is three.

B batch, T time, H heads, M slots, K key width, V value width
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from recallmap.arch.kernels.gated_linear.fused import WIDEST
from recallmap.arch.kernels.gated_linear.fused.launch import backward, forward, gated_linear_op
from recallmap.arch.kernels.gated_linear.fused.plan import Inputs
from recallmap.arch.kernels.op_interface.custom_op import opaque
from recallmap.arch.kernels.op_interface.first_call import together
from recallmap.arch.kernels.slots.state import SlotsState


class _Read(NamedTuple):
    """Inputs of the read: q, k [B, T, H, K], write and log_decay [B, T, H, M], the first state [B, H, M, K]."""

    q: Tensor
    k: Tensor
    write: Tensor
    log_decay: Tensor | None
    initial: Tensor | None
    return_state: bool


class _Scores(NamedTuple):
    """Scores [B, T, H, M], and the last state, empty where nobody asked for it."""

    scores: Tensor
    final: Tensor


def _turned(x: _Read, queries: Tensor, *, return_state: bool) -> Inputs:
    """The gated linear attention of which scores are the derivative by `queries`."""
    return Inputs(queries, x.write, x.k, x.log_decay, None, None, x.initial, 1.0, return_state)


def _read(x: _Read) -> _Scores:
    walked = forward(_turned(x, x.write, return_state=x.return_state))
    # No derivative by the last state is asked for here, and that by queries does not depend on queries.
    derived = backward((x.q, walked.final), _turned(x, x.write, return_state=False), (walked.states,))
    return _Scores(derived.q, walked.final)


def _read_backward(derivatives: tuple[Tensor, ...], x: _Read, rest: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    d_scores, d_final = derivatives
    turned = _turned(x, d_scores, return_state=x.return_state)
    walked = forward(turned)
    d = backward((x.q, d_final), turned, (walked.states,))
    return walked.o, d.v, d.k, d.log_decay, d.initial


def _empty_scores(x: _Read) -> _Scores:
    shape = (*x.write.shape[::2], x.write.shape[3], x.k.shape[3])
    final = x.k.new_empty(shape if x.return_state else (len(x.k), 0), dtype=torch.float32)
    return _Scores(torch.empty_like(x.write, memory_format=torch.contiguous_format), final)


def _empty_gradients(derivatives: tuple[Tensor, ...], x: _Read, rest: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(
        x.k.new_empty((len(x.k), 0))
        if given is None
        else torch.empty_like(given, memory_format=torch.contiguous_format)
        for given in x[:5]
    )


_slots_read = opaque(
    "slots_read",
    _read,
    _read_backward,
    outputs=_empty_scores,
    gradients=_empty_gradients,
    differentiable=2,
    inputs=_Read,
    results=_Scores,
)


@together
def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    write: Tensor,
    log_decay: Tensor | None,
    scale: float,
    initial_state: SlotsState | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, SlotsState | None]:
    """The whole sequence. `chunk` has no meaning here."""
    q, k = (x.float().expand(-1, -1, v.shape[2], -1) for x in (q, k))
    keys, values = initial_state or (None, None)
    write, log_decay = write.float(), None if log_decay is None else log_decay.float()
    scores, last_keys = _slots_read(*_Read(q, k, write, log_decay, keys, return_state))
    weights = (scale * scores).softmax(-1)
    given = Inputs(weights, write, v.float(), log_decay, None, None, values, 1.0, return_state)
    o, last_values, _ = gated_linear_op(*given)
    return o.to(v.dtype), SlotsState(last_keys, last_values) if return_state else None


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call; None where this implementation serves."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    for name in ("key_width", "value_width", "slots"):
        if sizes.get(name, 1) > WIDEST:
            return f"takes keys, values and slots up to {WIDEST}, got {name} {sizes[name]}"
    return None
