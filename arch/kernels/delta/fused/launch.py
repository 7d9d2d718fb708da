"""Launches of the delta rule's kernels, forward and backward, as one custom op.

B batch, T time, H heads, K key width, V value width
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from recallmap.arch.kernels.delta.fused.chunk_gradients import delta_gradient_kernel
from recallmap.arch.kernels.delta.fused.chunk_pairs import delta_pairs_kernel
from recallmap.arch.kernels.delta.fused.plan import Inputs, Plan, levels, pair_gradients_shape, plan_for, scores_shape
from recallmap.arch.kernels.delta.fused.read_out import delta_read_back_kernel, delta_read_out_kernel
from recallmap.arch.kernels.delta.fused.state_walk import delta_backward_walk_kernel, delta_forward_walk_kernel
from recallmap.arch.kernels.delta.fused.turned_walk import delta_turned_back_walk_kernel, delta_turned_walk_kernel
from recallmap.arch.kernels.delta.fused.whole_sequence import delta_whole_backward_kernel, delta_whole_forward_kernel
from recallmap.arch.kernels.op_interface.custom_op import opaque, packed, padded
from recallmap.arch.kernels.triton_tiles.shared_memory import stages_in_flight


class Results(NamedTuple):
    """Outputs and the final state; for backward what is left of pairs and rows, what was written, states ahead of chunks."""

    o: Tensor
    final: Tensor
    scores: Tensor
    erased: Tensor
    written: Tensor
    states: Tensor


class Gradients(NamedTuple):
    """Derivatives by every tensor of `Inputs`, in their order; empty by what is not there."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor
    beta: Tensor
    a: Tensor
    b: Tensor
    initial: Tensor


class _Faded(NamedTuple):
    """The queries, columns and rows that walks read: with their decays where these go by channel."""

    q: Tensor
    k: Tensor
    b: Tensor | None
    r: Tensor

    @staticmethod
    def of(x: Inputs, erased: Tensor) -> "_Faded":
        r, *faded = erased.unbind(1)
        if not faded:
            return _Faded(x.q, x.k, x.b, r)
        return _Faded(faded[0], faded[1], None, r) if x.b is None else _Faded(faded[0], faded[2], faded[1], r)


def _strided(x: Tensor) -> Tensor:
    """With neighbours next to each other along the last axis, as it is if it can be."""
    return x if x.stride(-1) == 1 or x.ndim == 3 else x.contiguous()


def _strided_if(x: Tensor | None) -> Tensor | None:
    return None if x is None else _strided(x)


def _strides(*tensors: Tensor | None) -> list[tuple[int, int, int]]:
    """Strides of each tensor over batch, time and heads."""
    return [(0, 0, 0) if x is None else (x.stride(0), x.stride(1), x.stride(2)) for x in tensors]


def _laid_out(x: Inputs) -> Inputs:
    """The inputs as kernels can read them, but for the initial state."""
    log_decay, beta, a, b = map(_strided_if, (x.log_decay, x.beta, x.a, x.b))
    return x._replace(q=_strided(x.q), k=_strided(x.k), v=_strided(x.v), log_decay=log_decay, beta=beta, a=a, b=b)


def _content(x: Inputs) -> tuple[Tensor | None, ...]:
    """Tensors that kernels of a chunk or of a sequence read, in their order."""
    return x.q, x.k, x.v, x.a, x.b, x.log_decay, x.beta


def _forward(x: Inputs) -> Results:
    plan, x = plan_for(x), _laid_out(x)._replace(initial=packed(x.initial))
    results = _empty_results(x)
    if plan.walk is None:
        _forward_by_chunks(x, plan, results)
        return results
    content = _content(x)
    o, final, inverses, _, written, states = results
    delta_whole_forward_kernel[(plan.programs,)](
        *content, x.initial, o, final, inverses, written, states, *_strides(*content), plan.time, plan.heads, x.scale,
        **plan.flags, V=plan.value_width, VP=padded(plan.value_width), START=x.initial is not None, KEEP=x.keep,
        END=x.return_state, SOLVE=plan.solve, STAGES=plan.walk.forward_stages, num_warps=plan.walk.forward_warps,
    )  # fmt: skip
    return results


def _forward_by_chunks(x: Inputs, plan: Plan, results: Results) -> None:
    content, blocks, values = _content(x), plan.blocks, padded(plan.value_width)
    reading = None if x.keep else plan.reading
    apart, (value_block, stages) = plan.apart and reading is None, reading or (blocks.value_block, blocks.stages)
    o, final, scores, erased, written, states = results
    if not x.keep:
        scores, erased = scores.new_empty(scores_shape(plan)), x.k.new_empty(plan.erased_shape)
        if apart:
            written, states = torch.empty_like(o), states.new_empty(plan.states_shape)
    wanted = torch.empty(x.v.shape, dtype=x.v.dtype, device=x.v.device)
    delta_pairs_kernel[(plan.programs, plan.chunks)](
        *content, scores, erased, wanted, *_strides(*content), plan.time, plan.heads, x.scale,
        **plan.flags, **levels(plan), V=plan.value_width, VP=values,
        VB=values if blocks.early else min(blocks.pair_block, values), KB=min(blocks.pair_block, plan.flags["KP"]),
        SOLVE=plan.solve, APPLY=plan.applied, IN_MEMORY=plan.in_memory, EARLY=blocks.early, UNROLL=blocks.unroll,
        SUMS=plan.sums, num_warps=blocks.pair_warps, num_stages=1, maxnreg=blocks.pair_registers,
    )  # fmt: skip
    faded = _Faded.of(x, erased)
    form = {
        "V": plan.value_width, "VB": value_block, "START": x.initial is not None, "APART": apart,
        "END": x.return_state, "STAGES": stages_in_flight(stages), "num_warps": blocks.walk_warps,
    }  # fmt: skip
    grid = plan.programs, triton.cdiv(plan.value_width, value_block)
    if plan.turned:
        delta_turned_walk_kernel[grid](
            faded.q, faded.k, x.v, faded.b, scores, faded.r, wanted, x.initial, o, written, states, final,
            *_strides(faded.q, faded.k, x.v, faded.b, faded.r), plan.time, plan.heads, x.scale,
            **plan.flags, **form,
        )  # fmt: skip
    else:
        delta_forward_walk_kernel[grid](
            faded.q, faded.k, x.v, faded.b, scores, faded.r, wanted, x.initial, o, written, states, final,
            *_strides(faded.q, faded.k, x.v, faded.b, faded.r), plan.time, plan.heads, x.scale,
            **plan.flags, **form, KEEP=x.keep or apart, STATE=plan.state,
        )  # fmt: skip
    if apart:
        block = min(blocks.output_block, values)
        delta_read_out_kernel[(plan.programs, plan.chunks, triton.cdiv(plan.value_width, block))](
            faded.q, x.v, scores, written, states, o, *_strides(faded.q, x.v), plan.time, plan.heads, x.scale,
            **plan.flags, V=plan.value_width, KB=min(blocks.output_step, plan.flags["KP"]), VB=block,
            WIDE=blocks.wide, num_warps=blocks.output_warps,
        )  # fmt: skip


def _empty_results(x: Inputs) -> Results:
    plan = plan_for(x)
    batch = plan.batch
    state = (batch, plan.heads, plan.key_width, plan.value_width) if x.return_state else (batch, 0)
    kept = torch.bfloat16 if x.v.dtype == torch.bfloat16 else torch.float32
    return Results(
        o=x.v.new_empty(x.v.shape),
        final=x.v.new_empty(state, dtype=torch.float32),
        scores=x.v.new_empty(scores_shape(plan) if x.keep else (batch, 0), dtype=torch.float32),
        erased=x.k.new_empty(plan.erased_shape if x.keep and plan.walk is None else (batch, 0)),
        written=x.v.new_empty(x.v.shape if x.keep else (batch, 0)),
        states=x.v.new_empty(plan.states_shape if x.keep else (batch, 0), dtype=kept),
    )


def _backward(derivatives: tuple[Tensor, ...], x: Inputs, rest: tuple[Tensor, ...]) -> Gradients:
    plan, d = plan_for(x), _empty_gradients(derivatives, x, rest)
    x, d_o, d_final = _laid_out(x), _strided(derivatives[0]), derivatives[1].contiguous()
    scores, erased, written, states = (kept.contiguous() for kept in rest)
    if plan.walk is None:
        _backward_by_chunks(x, plan, Results(d_o, d_final, scores, erased, written, states), d)
        return d
    content = _content(x)
    delta_whole_backward_kernel[(plan.programs,)](
        *content, scores, written, states, d_o, d_final, *d, *_strides(*content, d_o), plan.time, plan.heads, x.scale,
        **plan.flags, V=plan.value_width, VP=padded(plan.value_width), START=x.initial is not None, END=x.return_state,
        SOLVE=plan.solve, STAGES=plan.walk.backward_stages, num_warps=plan.walk.backward_warps,
    )  # fmt: skip
    return d


def _backward_by_chunks(x: Inputs, plan: Plan, results: Results, d: Gradients) -> None:
    """Launch the kernels. `results` has the derivatives in place of o and final."""
    content, blocks, values, apart = _content(x), plan.blocks, padded(plan.value_width), plan.apart
    d_o, d_final, scores, erased, written, states = results
    z = d.v if x.a is None else torch.empty_like(written)
    # The last kernel reads a chunk's derivatives by E before it leaves those by q, which may then take their place.
    over = d.q.shape == written.shape and d.q.dtype == written.dtype and d.q.is_contiguous()
    d_e = None if not apart else d.q if over else torch.empty_like(written)
    d_states = torch.empty_like(states)
    d_pairs = None if plan.holds else scores.new_empty(pair_gradients_shape(plan))
    faded = _Faded.of(x, erased)
    if apart:
        block = min(blocks.output_block, values)
        delta_read_back_kernel[(plan.programs, plan.chunks, triton.cdiv(plan.value_width, block))](
            scores, d_o, d.v, *_strides(d_o), plan.time, plan.heads,
            **plan.flags, V=plan.value_width, VB=block, WIDE=blocks.wide, num_warps=blocks.output_warps,
        )  # fmt: skip
    block = blocks.back_block or blocks.value_block
    form = {
        "V": plan.value_width, "VB": block, "START": x.initial is not None, "END": x.return_state,
        "STAGES": stages_in_flight(blocks.back_stages or blocks.stages),
        "num_warps": blocks.back_warps or blocks.walk_warps,
    }  # fmt: skip
    grid = plan.programs, triton.cdiv(plan.value_width, block)
    strides = _strides(faded.q, faded.k, faded.b, faded.r, d_o)
    if plan.turned:
        delta_turned_back_walk_kernel[grid](
            faded.q, faded.k, faded.b, scores, faded.r, d_o, d_final, d.v, d_e, d_states, d.initial,
            *strides, plan.time, plan.heads, x.scale, **plan.flags, **form,
        )  # fmt: skip
    else:
        delta_backward_walk_kernel[grid](
            faded.q, faded.k, faded.b, scores, faded.r, d_o, d_final, d.v, z, d_e, d_states, d.initial,
            *strides, plan.time, plan.heads, x.scale, **plan.flags, **form, APART=apart, STATE=plan.state,
            SOLVE=plan.applied,
        )  # fmt: skip
    delta_gradient_kernel[(plan.programs, plan.chunks)](
        *content, states, d_states, written, d_o, z, d_pairs, d.q, d.k, d.a, d.b, d.log_decay, d.beta,
        scores, faded.k, d_e, d.v, *_strides(*content, d_o, faded.k), plan.time, plan.heads, x.scale,
        **plan.flags, **levels(plan), V=plan.value_width, VP=values,
        VB=min(blocks.gradient_values, values), KB=min(blocks.gradient_block, plan.flags["KP"]), APART=apart,
        HOLD=plan.holds, APPLY=plan.applied, UNROLL=blocks.gradient_unroll, num_warps=blocks.gradient_warps,
        num_stages=blocks.gradient_stages,
    )  # fmt: skip


def _empty_gradients(derivatives: tuple[Tensor, ...], x: Inputs, rest: tuple[Tensor, ...]) -> Gradients:
    tensors = (x.q, x.k, x.v, x.log_decay, x.beta, x.a, x.b, x.initial)
    return Gradients(
        *(x.v.new_empty(len(x.v), 0) if given is None else given.new_empty(given.shape) for given in tensors)
    )


delta_rule = opaque(
    "delta",
    _forward,
    _backward,
    outputs=_empty_results,
    gradients=_empty_gradients,
    differentiable=2,
    inputs=Inputs,
    results=Results,
)
