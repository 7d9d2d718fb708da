"""Launches of Mesa's kernels, forward and backward, as one custom op.

B batch, T time, H heads, N chunks, K key width, V value width
"""

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
    """o, final kk and kv; then for backward solutions, steps taken, and kk and kv ahead of every chunk."""

    o: Tensor
    final_kk: Tensor
    final_kv: Tensor
    solution: Tensor
    taken: Tensor
    ahead_kk: Tensor
    ahead_kv: Tensor


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
    cut, results = cut_for(x), _empty_results(x)
    o, final_kk, final_kv, solution, taken, *ahead = results
    batch, heads, chunks, shared = x.v.shape[0], x.v.shape[2], cut.counts["N"], x.k.shape[2]
    q, k, v, gates = _side_by_side(x.q), _side_by_side(x.k), _side_by_side(x.v), _gates(x)
    past: list[Tensor | None] = [None, None]
    if passes(x, chunks):
        past = [*ahead]
        ends = [final_kk, final_kv] if x.return_state else [None, None]
        widths = cut.of_states()
        walk = partial(
            mesa_states_kernel[(batch * heads, cut.blocks, cut.segments)],
            **cut.counts, length=cut.length, G=shared, **_strides(k=k, v=v),
        )  # fmt: skip
        left = _left(x, cut)
        if left[0] is not None:
            walk(k, v, *gates, None, None, *left, None, None, None, None, **widths)
        walk(k, v, *gates, _full(x.kk), _full(x.kv), *left, *past, *ends, **widths)
    mesa_read_out_kernel[(batch * heads, chunks)](
        q, k, v, x.lam.contiguous(), *gates, *past, o, solution, taken, **cut.counts, G=shared, **_solver(x), scale=x.scale,
        **_strides(q=q, k=k, v=v), **cut.widths,
    )  # fmt: skip
    return results


def _ahead(x: Inputs, cut: Cut, width: int) -> Tensor:
    """Room for kk or kv ahead of every chunk: fp32, or two halves of it."""
    (batch, _, heads, _), key_width = x.v.shape, x.k.shape[-1]
    halves, dtype = ((2,), torch.bfloat16) if cut.plan.precision == "split" else ((), torch.float32)
    there = batch if passes(x, cut.counts["N"]) else 0
    return torch.empty((there, heads, cut.counts["N"], *halves, key_width, width), dtype=dtype, device=x.v.device)


def _left(x: Inputs, cut: Cut) -> list[Tensor | None]:
    """Room for what segments leave of kk and kv, and for the decay over them."""
    if cut.segments == 1:
        return [None] * 3
    states = len(x.v) * x.v.shape[2] * cut.segments
    key_width, value_width = x.k.shape[-1], x.v.shape[-1]
    return [
        x.v.new_empty(shape, dtype=torch.float32)
        for shape in ((states, key_width, key_width), (states, key_width, value_width), (states,))
    ]


def _empty_results(x: Inputs) -> Results:
    batch, time, heads, value_width = x.v.shape
    cut = cut_for(x)
    key_width = x.k.shape[-1]

    def new(*shape: int, there: bool = True) -> Tensor:
        return torch.empty((batch, *shape) if there else (batch, 0), dtype=torch.float32, device=x.v.device)

    return Results(
        o=torch.empty(x.v.shape, dtype=x.v.dtype, device=x.v.device),
        final_kk=new(heads, key_width, key_width, there=x.return_state),
        final_kv=new(heads, key_width, value_width, there=x.return_state),
        solution=new(time, heads, key_width),
        taken=new(time, heads),
        ahead_kk=_ahead(x, cut, key_width),
        ahead_kv=_ahead(x, cut, value_width),
    )


def _backward(derivatives: tuple[Tensor, ...], x: Inputs, rest: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The derivatives by q, k, v, lam, log_decay, beta, sign, kk and kv."""
    d = _room(x)
    _launch_backward(derivatives, x, rest, d)
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


def _room(x: Inputs) -> _Gradients:
    (batch, time, heads, _), key_width = x.v.shape, x.k.shape[-1]

    def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty((batch, *shape), dtype=dtype, device=x.v.device)

    parts = batch // len(x.lam) * cut_for(x).counts["N"]
    # Derivatives of inputs that heads share are summed over heads before they are rounded.
    content = x.k.dtype if x.k.shape[2] == heads else torch.float32
    return _Gradients(
        q=new(time, heads, key_width, dtype=content),
        k=new(time, heads, key_width, dtype=content),
        v=new(*x.v.shape[1:], dtype=x.v.dtype),
        lam=new(time, heads) if x.ridge is not None else torch.empty((*x.lam.shape, parts), device=x.v.device),
        log_decay=None if x.log_decay is None else new(time, heads, dtype=x.log_decay.dtype),
        beta=None if x.beta is None else new(time, heads, dtype=x.beta.dtype),
        kk=None if x.kk is None else new(*x.kk.shape[1:]),
        kv=None if x.kv is None else new(*x.kv.shape[1:]),
    )


def _launch_backward(derivatives: tuple[Tensor, ...], x: Inputs, rest: tuple[Tensor, ...], d: _Gradients) -> None:
    """The launches, which leave their derivatives in `d`."""
    cut, gates = cut_for(x), _gates(x)
    (solution, _, *ahead), d_o, k, v = rest, derivatives[0].contiguous(), _side_by_side(x.k), _side_by_side(x.v)
    strides = _strides(k=k, v=v)
    batch, heads, chunks, shared = v.shape[0], v.shape[2], cut.counts["N"], k.shape[2]
    counts: dict[str, Any] = cut.counts | {"scale": x.scale}
    passing = passes(x, chunks)
    past = ahead if passing else [None, None]
    states = (batch, heads, chunks, k.shape[-1])
    behind = [v.new_empty((*states, y.shape[-1]), dtype=cut.plan.kept) if passing else None for y in (k, v)]
    d_last = [by_state.contiguous() if x.return_state else None for by_state in derivatives[1:]]
    adjoint = torch.empty_like(solution)
    d_fade = None if d.log_decay is None else torch.empty_like(d.log_decay, dtype=torch.float32)
    d_over = d_fade.new_empty(batch, heads, chunks, cut.blocks) if d_fade is not None and passing else None
    grid = (batch * heads, chunks)
    widths = cut.widths | {"BC": cut.plan.adjoint_columns}
    mesa_adjoint_kernel[grid](
        d_o, k, v, x.lam.contiguous(), *gates, *past, solution, adjoint, d.q, d.lam, d_fade,
        **counts, **_solver(x), G=shared, **strides, **widths,
    )  # fmt: skip
    if passing:
        widths = cut.of_states()
        walk = partial(
            mesa_behind_kernel[(batch * heads, cut.blocks, cut.segments)],
            d_o, gates[0], gates[2], *past, solution, adjoint, **counts, length=cut.length, **widths,
        )  # fmt: skip
        left = _left(x, cut)
        if left[0] is not None:
            walk(None, None, *left, None, None, None, None, None)
        walk(*d_last, *left, *behind, d.kk, d.kv, d_over)
    widths = cut.widths | {"BLOCKS": cut.blocks, "num_warps": cut.plan.gradient_warps}
    mesa_gradient_kernel[grid](
        d_o, k, v, *gates, solution, adjoint, *behind, d_fade, d_over, d.k, d.v, d.log_decay, d.beta,
        **counts, G=shared, **strides, **widths,
    )  # fmt: skip


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
