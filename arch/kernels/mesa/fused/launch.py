"""Launches of Mesa's kernels, forward and backward, as one custom op.

B batch, T time, H heads, N chunks, K key width, V value width
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from recallmap.arch.kernels.mesa.fused.adjoint import mesa_adjoint_kernel
from recallmap.arch.kernels.mesa.fused.chunk_gradients import mesa_gradient_kernel
from recallmap.arch.kernels.mesa.fused.plan import Cut, Inputs, cut_for, passes
from recallmap.arch.kernels.mesa.fused.read_out import mesa_read_out_kernel
from recallmap.arch.kernels.mesa.fused.state_walk import mesa_behind_kernel, mesa_states_kernel
from recallmap.arch.kernels.op_interface.custom_op import opaque


class Results(NamedTuple):
    """o, final kk and kv; then for backward solutions, steps taken, and where they are saved kk and kv ahead of every chunk,
    whole or in halves."""

    o: Tensor
    final_kk: Tensor
    final_kv: Tensor
    solution: Tensor
    taken: Tensor
    ahead_kk: Tensor
    low_kk: Tensor
    ahead_kv: Tensor
    low_kv: Tensor


class _States(NamedTuple):
    """kk and kv ahead of every chunk of some sequences: whole in fp32, or the two halves of that; none where none is passed."""

    kk: Tensor | None = None
    low_kk: Tensor | None = None
    kv: Tensor | None = None
    low_kv: Tensor | None = None

    @staticmethod
    def of(saved: Sequence[Tensor]) -> "_States":
        return _States(*(x if len(x) else None for x in saved))


class _Gradients(NamedTuple):
    """Derivatives as kernels leave them: by queries and keys of every head, by lam of every chunk that has it in common,
    or of every token."""

    q: Tensor
    k: Tensor
    v: Tensor
    lam: Tensor
    log_decay: Tensor | None
    beta: Tensor | None
    kk: Tensor | None
    kv: Tensor | None


def _full(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.float().contiguous()


def _side_by_side(x: Tensor) -> Tensor:
    """x [B, T, H, W] as it lies over batch and time, the heads of a token without gaps."""
    _, _, heads, width = x.shape
    lies = (width == 1 or x.stride(3) == 1) and (heads == 1 or x.stride(2) == width)
    return x if lies else x.contiguous()


def _strides(**tensors: Tensor) -> dict[str, int]:
    """From sequence to sequence, and from token to token, as kernels name them."""
    return {f"{name}_{axis}": x.stride(i) for name, x in tensors.items() for i, axis in enumerate("bt")}


def _gates(x: Inputs) -> list[Tensor | None]:
    return [None if gate is None else gate.contiguous() for gate in (x.log_decay, x.beta, x.sign)]


def _solver(x: Inputs) -> dict[str, Any]:
    """The solver's part of a launch; a group of `members` sequences has a lam of its own."""
    return {"members": len(x.v) // len(x.lam), "steps": x.steps, "enough": x.enough, "ridge": x.ridge, "X0": x.x0}


def _forward(x: Inputs) -> Results:
    results = _empty_results(x)
    q, k, v, gates = _side_by_side(x.q), _side_by_side(x.k), _side_by_side(x.v), _gates(x)
    cut, states = cut_for(x), _States.of(results[5:])
    if states.kk is None:
        states = _room_for_states(x, cut)
    for start, count in cut.groups:
        if states.kk is not None:
            _walk_states(x, cut, start, count, states, results.final_kk, results.final_kv)
        mesa_read_out_kernel[(count, cut.counts["N"])](
            q, k, v, x.lam.contiguous(), *gates, *states, results.o, results.solution, results.taken, **cut.counts,
            G=x.k.shape[2], **_solver(x), scale=x.scale, start=start, **_strides(q=q, k=k, v=v), **cut.widths,
        )  # fmt: skip
    return results


def _walk_states(
    x: Inputs, cut: Cut, start: int, count: int, states: _States, final_kk: Tensor | None, final_kv: Tensor | None
) -> None:
    """Fill `states` of `count` sequences from `start` on, and what is wanted of their last ones."""
    k, v, gates = _side_by_side(x.k), _side_by_side(x.v), _gates(x)
    ends = [final_kk, final_kv] if x.return_state else [None, None]
    walk = partial(
        mesa_states_kernel[(count, cut.blocks, cut.segments)],
        **cut.counts, length=cut.length, start=start, G=x.k.shape[2], **_strides(k=k, v=v), **cut.of_states(),
    )  # fmt: skip
    left = _left(x, cut, count)
    if left[0] is not None:
        walk(k, v, *gates, None, None, *left, *_States(), None, None)
    walk(k, v, *gates, _full(x.kk), _full(x.kv), *left, *states, *ends)


def _room_for_states(x: Inputs, cut: Cut) -> _States:
    """Room for the states of a group of sequences; none where none is passed."""
    if not passes(x, cut.counts["N"]):
        return _States()
    count = cut.groups[0][1]
    key_width, value_width = x.k.shape[-1], x.v.shape[-1]
    split = cut.plan.precision == "split"

    def new(width: int) -> Tensor:
        return torch.empty((count, cut.counts["N"], key_width, width), dtype=cut.plan.kept, device=x.v.device)

    return _States(
        kk=new(key_width), low_kk=new(key_width) if split else None,
        kv=new(value_width), low_kv=new(value_width) if split else None,
    )  # fmt: skip


def _left(x: Inputs, cut: Cut, count: int) -> list[Tensor | None]:
    """Room for what segments leave of kk and kv, and for the decay over them."""
    if cut.segments == 1:
        return [None] * 3
    states = count * cut.segments
    key_width, value_width = x.k.shape[-1], x.v.shape[-1]
    return [
        x.v.new_empty(shape, dtype=torch.float32)
        for shape in ((states, key_width, key_width), (states, key_width, value_width), (states,))
    ]


def _empty_results(x: Inputs) -> Results:
    batch, time, heads, value_width = x.v.shape
    cut = cut_for(x)
    chunks, key_width = cut.counts["N"], x.k.shape[-1]
    saved = x.keep and cut.plan.saves and passes(x, chunks)
    split = cut.plan.precision == "split"

    def new(*shape: int, there: bool = True) -> Tensor:
        return torch.empty((batch, *shape) if there else (batch, 0), dtype=torch.float32, device=x.v.device)

    def ahead(width: int, there: bool = True) -> Tensor:
        shape = batch if saved and there else 0, heads, chunks, key_width, width
        return torch.empty(shape, dtype=cut.plan.kept, device=x.v.device)

    return Results(
        o=torch.empty(x.v.shape, dtype=x.v.dtype, device=x.v.device),
        final_kk=new(heads, key_width, key_width, there=x.return_state),
        final_kv=new(heads, key_width, value_width, there=x.return_state),
        solution=new(time, heads, key_width),
        taken=new(time, heads),
        ahead_kk=ahead(key_width),
        low_kk=ahead(key_width, split),
        ahead_kv=ahead(value_width),
        low_kv=ahead(value_width, split),
    )


def _backward(derivatives: tuple[Tensor, ...], x: Inputs, rest: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The derivatives by q, k, v, lam, log_decay, beta, sign, kk and kv."""
    d = _launch_backward(derivatives, x, rest)
    d_q, d_k = d.q, d.k
    if x.k.shape[2] != x.v.shape[2]:
        d_q, d_k = (by_head.sum(2, keepdim=True).to(x.k.dtype) for by_head in (d_q, d_k))
    d_lam = d.lam if x.ridge is not None else d.lam.sum(-1)
    d_sign = None if x.sign is None else torch.zeros_like(x.sign, memory_format=torch.contiguous_format)
    found = (d_q, d_k, d.v, d_lam, d.log_decay, d.beta, d_sign, d.kk, d.kv)
    return tuple(
        x.v.new_empty(0) if given is None or derivative is None else derivative.to(given.dtype)
        for given, derivative in zip(x.tensors, found, strict=True)
    )


def _launch_backward(derivatives: tuple[Tensor, ...], x: Inputs, rest: tuple[Tensor, ...]) -> _Gradients:
    """The launches. Nothing is made before it is filled: what is there at once is what a call takes of memory."""
    cut, gates = cut_for(x), _gates(x)
    (solution, _, *saved), d_o, k, v = rest, derivatives[0].contiguous(), _side_by_side(x.k), _side_by_side(x.v)
    strides, (batch, time, heads, value_width) = _strides(k=k, v=v), v.shape
    chunks, shared, split = cut.counts["N"], k.shape[2], cut.plan.precision == "split"
    counts: dict[str, Any] = cut.counts | {"scale": x.scale}
    d_last = [by_state.contiguous() if x.return_state else None for by_state in derivatives[1:]]

    def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty((batch, *shape), dtype=dtype, device=v.device)

    # Derivatives of inputs that heads share are summed over heads before they are rounded.
    content = k.dtype if shared == heads else torch.float32
    halves = torch.bfloat16 if split else torch.float32
    d_q = new(time, heads, k.shape[-1], dtype=content)
    adjoint = d_q if content == halves else new(time, heads, k.shape[-1], dtype=halves)
    low_adjoint = torch.empty_like(adjoint) if split else None
    parts = batch // len(x.lam) * chunks
    d_lam = new(time, heads) if x.ridge is not None else torch.empty((*x.lam.shape, parts), device=v.device)
    d_log_decay = None if x.log_decay is None else new(time, heads, dtype=x.log_decay.dtype)
    d_beta = None if x.beta is None else new(time, heads, dtype=x.beta.dtype)
    d_kk, d_kv = (None if state is None else new(*state.shape[1:]) for state in (x.kk, x.kv))
    d_fade = d_k = d_v = None
    if d_log_decay is not None:  # the last kernel reads the one where it leaves the other
        d_fade = d_log_decay if d_log_decay.dtype == torch.float32 else new(time, heads)

    states = _States.of(saved)
    ours = states.kk is None
    if ours:
        states = _room_for_states(x, cut)
    passing = states.kk is not None
    behind: list[Tensor | None] = [states.kk, states.kv]  # a state is read before its derivative takes its place
    if passing and not ours:
        behind = [torch.empty(y.shape, dtype=cut.plan.kept, device=v.device) for y in behind if y is not None]
    d_over = None
    if d_fade is not None and passing:
        d_over = d_fade.new_empty(cut.groups[0][1], chunks, cut.blocks)
    for start, count in cut.groups:
        if passing and ours:
            _walk_states(x._replace(return_state=False), cut, start, count, states, None, None)
        mesa_adjoint_kernel[(count, chunks)](
            d_o, k, v, x.lam.contiguous(), *gates, *states, solution, adjoint, low_adjoint,
            None if adjoint is d_q else d_q, d_lam, d_fade, **counts, **_solver(x), G=shared, start=start, **strides,
            **cut.widths | {"BC": cut.plan.adjoint_columns},
        )  # fmt: skip
        if passing:
            walk = partial(
                mesa_behind_kernel[(count, cut.blocks, cut.segments)],
                d_o, gates[0], gates[2], *states, solution, adjoint, low_adjoint, **counts, length=cut.length, start=start,
                OVER=ours, **cut.of_states(),
            )  # fmt: skip
            left = _left(x, cut, count)
            if left[0] is not None:
                walk(None, None, *left, None, None, None, None, None)
            walk(*d_last, *left, *behind, d_kk, d_kv, d_over)
            del walk, left
        if ours and start + count == batch * heads:
            states = _States()
        if d_k is None or d_v is None:
            d_k = new(time, heads, k.shape[-1], dtype=content)
            d_v = new(time, heads, value_width, dtype=v.dtype)
        mesa_gradient_kernel[(count, chunks)](
            d_o, k, v, *gates, solution, adjoint, low_adjoint, *behind, d_fade, d_over, d_k, d_v, d_log_decay, d_beta,
            **counts, G=shared, start=start, **strides,
            **cut.widths | {"BLOCKS": cut.blocks, "num_warps": cut.plan.gradient_warps},
        )  # fmt: skip
    assert d_k is not None
    assert d_v is not None
    return _Gradients(d_q, d_k, d_v, d_lam, d_log_decay, d_beta, d_kk, d_kv)


def _empty_gradients(derivatives: tuple[Tensor, ...], x: Inputs, rest: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(
        x.v.new_empty(0) if given is None else torch.empty(given.shape, dtype=given.dtype, device=x.v.device)
        for given in x.tensors
    )


mesa_op = opaque(
    "mesa",
    _forward,
    _backward,
    outputs=_empty_results,
    gradients=_empty_gradients,
    differentiable=3,
    inputs=Inputs,
    results=Results,
)
