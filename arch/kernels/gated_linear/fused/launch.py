"""Launches of gated linear attention's kernels, forward and backward, as one custom op."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recallmap.arch.kernels.gated_linear.fused.gradients import gated_linear_gradient_kernel
from recallmap.arch.kernels.gated_linear.fused.plan import Case, Inputs, case_for, levels
from recallmap.arch.kernels.gated_linear.fused.read_out import gated_linear_read_out_kernel
from recallmap.arch.kernels.gated_linear.fused.state_carry import gated_linear_carry_kernel
from recallmap.arch.kernels.op_interface.custom_op import dense, opaque, packed, padded


class Results(NamedTuple):
    """Outputs, the final state, and the states ahead of the chunks; empty where there is none."""

    o: Tensor
    final: Tensor
    states: Tensor


class Gradients(NamedTuple):
    """Derivatives by every tensor of `Inputs`, in their order; empty by what is not there."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor
    beta: Tensor
    sign: Tensor
    initial: Tensor


def _laid_out(x: Inputs) -> Inputs:
    """The inputs as kernels can read them, but for the initial state."""
    g = x.log_decay
    gate = g if g is None or g.ndim == 3 else dense(g)
    return x._replace(q=dense(x.q), k=dense(x.k), v=dense(x.v), log_decay=gate)


def _strides(*tensors: Tensor | None) -> list[int]:
    """Strides over batch, time and heads; none over heads that share what they read."""
    return [0 if x is None or (axis == 2 and x.shape[2] == 1) else x.stride(axis) for x in tensors for axis in range(3)]


def _carry(
    case: Case, content: tuple[Tensor, Tensor], x: Inputs, ends: tuple[Tensor | None, ...], *, reverse: bool
) -> None:
    """The walk of the state over `content`; `ends` are the first state, room for those ahead of chunks, and for the last."""
    widths = (padded(case.key_width), padded(case.value_width))
    gates = (x.log_decay, x.beta, x.sign)
    by_channel = x.log_decay is not None and x.log_decay.ndim == 4  # its fades cost most of a step
    blocks = min(32 if by_channel else 64, widths[0]), min(64, widths[1])
    grid = (case.batch * case.heads, widths[0] // blocks[0], widths[1] // blocks[1])
    gated_linear_carry_kernel[grid](
        *content, *gates, *ends, x.scale, case.time, case.heads, *_strides(*content, *gates),
        BK=blocks[0], BV=blocks[1], REVERSE=reverse, num_warps=4, **case.constants(x.log_decay, walk=True),
    )  # fmt: skip


def forward(x: Inputs) -> Results:
    """The launches forward."""
    case, x = case_for(x), _laid_out(x)
    results = _empty_results(x)
    plan, block = case.plan, case.plan.value_block
    states, final = results.states if case.ahead else None, results.final if x.return_state else None
    content, initial = (x.q, x.k, x.v, x.log_decay, x.beta, x.sign), packed(x.initial)
    with torch.cuda.device_of(x.v):
        if not plan.walk and (case.ahead or x.return_state):
            _carry(case, (x.k, x.v), x, (initial, states, final), reverse=False)
        grid = (case.batch * case.heads, 1 if plan.walk else case.chunks, padded(case.value_width) // block)
        gated_linear_read_out_kernel[grid](
            *content, initial, results.o, states, final, x.scale, case.time, case.heads, *_strides(*content),
            BK=padded(case.key_width), BV=block, LEVELS=levels(plan.chunk), WALK=plan.walk, AHEAD=case.ahead,
            num_warps=plan.warps_forward, **case.constants(x.log_decay, walk=plan.walk),
        )  # fmt: skip
    return results


def _empty_results(x: Inputs) -> Results:
    case = case_for(x)
    nothing = (case.batch, 0)
    return Results(
        o=torch.empty_like(x.v, memory_format=torch.contiguous_format),
        final=x.v.new_empty(case.state_shape if x.return_state else nothing, dtype=torch.float32),
        states=case.chunk_states(x.v) if case.ahead else x.v.new_empty(nothing, dtype=case.dot),
    )


def backward(derivatives: tuple[Tensor, ...], x: Inputs, rest: tuple[Tensor, ...]) -> Gradients:
    """The launches of the derivative, from what `forward` leaves."""
    (d_o, d_final), (states,) = derivatives, rest
    case, d = case_for(x), _empty_gradients(derivatives, x, rest)
    d_o, x = dense(d_o), _laid_out(x)
    plan = case.plan
    if x.sign is not None:
        d.sign.zero_()
    # Derivatives of inputs that heads share are summed over heads before they are rounded.
    shared = x.q.shape[2] != case.heads
    by_head = (case.batch, case.time, case.heads, case.key_width)
    dq_BTHK, dk_BTHK = (x.q.new_empty(by_head, dtype=torch.float32) for _ in "qk") if shared else (d.q, d.k)
    behind = d_final.contiguous() if x.return_state else None
    ahead = None if x.initial is None else d.initial
    d_states = None if plan.walk or not case.behind else case.chunk_states(x.v)
    d_gate, d_beta = None if x.log_decay is None else d.log_decay, None if x.beta is None else d.beta
    content = (x.q, x.k, x.v, x.log_decay, x.beta, x.sign)
    with torch.cuda.device_of(x.v):
        if not plan.walk and (case.behind or ahead is not None):
            _carry(case, (x.q, d_o), x, (behind, d_states, ahead), reverse=True)
        gated_linear_gradient_kernel[(case.batch * case.heads, 1 if plan.walk else case.chunks)](
            d_o, behind, *content, states if case.ahead else None, d_states, dq_BTHK, dk_BTHK, d.v, d_gate, d_beta, ahead,
            x.scale, case.time, case.heads, *_strides(d_o, *content),
            BK=padded(case.key_width), BV=plan.value_block, LEVELS=levels(plan.chunk), WALK=plan.walk, AHEAD=case.ahead,
            BEHIND=case.behind, num_warps=plan.warps_backward, **case.constants(x.log_decay, walk=plan.walk),
        )  # fmt: skip
    if shared:
        d_q, d_k = dq_BTHK.sum(2, keepdim=True).to(x.q.dtype), dk_BTHK.sum(2, keepdim=True).to(x.k.dtype)
        return d._replace(q=d_q, k=d_k)
    return d


def _empty_gradients(derivatives: tuple[Tensor, ...], x: Inputs, rest: tuple[Tensor, ...]) -> Gradients:
    def like(given: Tensor | None) -> Tensor:
        if given is None:
            return x.v.new_empty((x.v.shape[0], 0))
        return torch.empty_like(given, memory_format=torch.contiguous_format)

    return Gradients(*map(like, (x.q, x.k, x.v, x.log_decay, x.beta, x.sign, x.initial)))


gated_linear_op = opaque(
    "gated_linear",
    forward,
    backward,
    outputs=_empty_results,
    gradients=_empty_gradients,
    differentiable=2,
    inputs=Inputs,
    results=Results,
)
