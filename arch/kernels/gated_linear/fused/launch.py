"""Launches of gated linear attention's kernels, forward and backward, as one custom op."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from recallmap.arch.kernels.gated_linear.fused.gradients import gated_linear_gradient_kernel
from recallmap.arch.kernels.gated_linear.fused.plan import Case, Inputs, Prepared, case_for, gate_of, levels
from recallmap.arch.kernels.gated_linear.fused.prepared import gated_linear_prepare_kernel
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


class _Content(NamedTuple):
    """What the kernels along time read: the inputs, or where `pairs` is there faded q and k, and what chunks leave."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None
    beta: Tensor | None
    sign: Tensor | None
    pairs: Tensor | None
    gate: str
    scale: float

    @property
    def gates(self) -> tuple[Tensor | None, ...]:
        return self.log_decay, self.beta, self.sign


def _content(case: Case, x: Inputs, prepared: Prepared | None, *, reverse: bool) -> _Content:
    """The inputs, after one launch that fades them if it is planned; where `reverse` only what its walk reads."""
    if prepared is None or x.log_decay is None or x.log_decay.ndim == 3:
        return _Content(x.q, x.k, x.v, x.log_decay, x.beta, x.sign, None, gate_of(x.log_decay), x.scale)
    by_head = (case.batch, case.time, case.heads, case.key_width)
    q = x.q.new_empty(by_head)
    k = None if reverse else x.q.new_empty(by_head)
    pairs = None if reverse else x.q.new_empty((case.batch, case.heads, case.time, case.plan.chunk))
    left = x.q.new_empty((case.batch, case.heads, case.chunks, case.key_width), dtype=torch.float32)
    given = (x.q, x.k, x.log_decay, x.beta, x.sign)
    gated_linear_prepare_kernel[(case.batch * case.heads, case.chunks)](
        *given, q, k, pairs, left, x.scale, case.time, case.heads, *_strides(*given),
        BK=prepared.key_block, C=case.plan.chunk, LEVELS=levels(case.plan.chunk), num_warps=prepared.warps,
        num_stages=prepared.stages,
        **case.constants("channel"),
    )  # fmt: skip
    return _Content(q, q if k is None else k, x.v, left, None, None, pairs, "ready", 1.0)


class _Segments(NamedTuple):
    """Segments walked side by side: chunks in each, their number, what they add to the state and leave of it."""

    length: int
    number: int
    totals: Tensor | None
    left: Tensor | None


def _segments(case: Case, content: _Content, y: Tensor, number: int, *, reverse: bool) -> _Segments:
    """The cut into `number` segments or fewer; where there are several, one launch makes their totals."""
    length, count = case.cut(number)
    segments = _Segments(length, count, None, None)
    if count == 1:
        return segments
    batch, heads, *widths = case.state_shape
    totals = y.new_empty((batch, heads, count - 1, *widths), dtype=torch.float32)
    left = y.new_empty((batch, heads, count - 1, widths[0]), dtype=torch.float32)
    _walk(case, content, y, segments._replace(totals=totals, left=left), (None, None, None), reverse=reverse, sums=True)
    return segments._replace(totals=totals, left=left)


def _walk(
    case: Case,
    content: _Content,
    y: Tensor,
    segments: _Segments,
    ends: tuple[Tensor | None, ...],
    *,
    reverse: bool,
    sums: bool = False,
) -> None:
    """The walk of the state; `ends` are the first state, room for those ahead of chunks, and for the last. With `sums` only
    what segments add and leave is made."""
    plan, widths = case.plan, (padded(case.key_width), padded(case.value_width))
    tiles = plan.totals if sums else plan.carry_back if reverse else plan.carry
    programs = segments.number - 1 if sums else segments.number
    grid = (
        case.batch * case.heads,
        programs,
        (widths[0] // tiles.key_block) * triton.cdiv(case.value_width, tiles.value_block),
    )
    x = content.q if reverse else content.k
    first, states, last = ends
    gated_linear_carry_kernel[grid](
        x, y, *content.gates, first, segments.totals, segments.left, states, last, content.scale, case.time, case.heads,
        segments.length, segments.number, *_strides(x, y, *content.gates),
        BK=tiles.key_block, BV=tiles.value_block, C=plan.chunk, REVERSE=reverse, TOTALS=sums, num_warps=tiles.warps,
        num_stages=tiles.stages, **case.constants(content.gate),
    )  # fmt: skip


def forward(x: Inputs) -> Results:
    """The launches forward."""
    case, x = case_for(x), _laid_out(x)
    results = _empty_results(x)
    plan, outputs = case.plan, case.plan.outputs
    walked = plan.walk or outputs.walked
    states, final = results.states if case.ahead and case.keep else None, results.final if x.return_state else None
    initial = packed(x.initial)
    with torch.cuda.device_of(x.v):
        content = _content(case, x, plan.prepared, reverse=False)
        segments = _segments(case, content, x.v, 1 if plan.walk else plan.segments, reverse=False)
        if not walked and (case.ahead or x.return_state):
            _walk(case, content, x.v, segments, (initial, states, final), reverse=False)
        programs = segments.number if walked else case.chunks
        grid = (case.batch * case.heads, programs, padded(case.value_width) // outputs.value_block)
        gated_linear_read_out_kernel[grid](
            content.q, content.k, content.v, *content.gates, content.pairs, initial, segments.totals, segments.left,
            results.o, states, final, content.scale, case.time, case.heads, segments.length, segments.number,
            *_strides(content.q, content.k, content.v, *content.gates),
            BK=padded(case.key_width), BV=outputs.value_block, C=plan.chunk, LEVELS=levels(plan.chunk), WALK=walked,
            AHEAD=case.ahead, num_warps=outputs.warps, num_stages=outputs.stages, **case.constants(content.gate),
        )  # fmt: skip
    return results


def _empty_results(x: Inputs) -> Results:
    case = case_for(x)
    nothing = (case.batch, 0)
    return Results(
        o=torch.empty_like(x.v, memory_format=torch.contiguous_format),
        final=x.v.new_empty(case.state_shape if x.return_state else nothing, dtype=torch.float32),
        states=case.chunk_states(x.v) if case.ahead and case.keep else x.v.new_empty(nothing, dtype=case.dot),
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
            read = _content(case, x, plan.prepared_back, reverse=True)
            segments = _segments(case, read, d_o, plan.segments_back, reverse=True)
            _walk(case, read, d_o, segments, (behind, d_states, ahead), reverse=True)
        gated_linear_gradient_kernel[(case.batch * case.heads, 1 if plan.walk else case.chunks)](
            d_o, behind, *content, states if case.ahead else None, d_states, dq_BTHK, dk_BTHK, d.v, d_gate, d_beta, ahead,
            x.scale, case.time, case.heads, *_strides(d_o, *content),
            BK=padded(case.key_width), BV=plan.value_block, C=plan.chunk, LEVELS=levels(plan.chunk), WALK=plan.walk,
            AHEAD=case.ahead, BEHIND=case.behind, num_warps=plan.warps_backward,
            num_stages=plan.outputs.stages if plan.walk else 1, **case.constants(gate_of(x.log_decay)),
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
