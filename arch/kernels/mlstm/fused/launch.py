"""Launches of mLSTM's kernels, forward and backward, as one custom op.

B batch, T time, H heads, K key width, V value width, N chunks
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from recallmap.arch.kernels.mlstm.fused.chunk_gradients import mlstm_columns_kernel, mlstm_rows_kernel
from recallmap.arch.kernels.mlstm.fused.plan import Form, form_for, resident
from recallmap.arch.kernels.mlstm.fused.state_carry import mlstm_carry_kernel
from recallmap.arch.kernels.mlstm.fused.state_walk import mlstm_backward_kernel, mlstm_forward_kernel
from recallmap.arch.kernels.op_interface.custom_op import dense, opaque, packed, padded


class Inputs(NamedTuple):
    """Inputs of the custom op: content in one dtype, gates and the first state in fp32; whether a last state is wanted."""

    q: Tensor
    k: Tensor
    v: Tensor
    i: Tensor
    f: Tensor
    C: Tensor | None
    n: Tensor | None
    m: Tensor | None
    scale: float
    last: bool


class Results(NamedTuple):
    """o; C, n, m behind all tokens, [B, 0] where not asked for; C, n, m ahead of every chunk, with `last` also behind all."""

    o: Tensor
    C_last: Tensor
    n_last: Tensor
    m_last: Tensor
    C_ahead: Tensor
    n_ahead: Tensor
    m_ahead: Tensor


class Gradients(NamedTuple):
    """Derivatives by every tensor of `Inputs`, in their order; empty by what is not there."""

    q: Tensor
    k: Tensor
    v: Tensor
    i: Tensor
    f: Tensor
    C: Tensor
    n: Tensor
    m: Tensor


def _form(x: Inputs) -> Form:
    B, T, H, V = x.v.shape
    return form_for(x.q.shape[-1], V, T, B * H, x.v.dtype)


def _strides(*tensors: Tensor) -> list[tuple[int, int, int]]:
    """Over batch, time and heads; none over heads where all share one."""
    return [(x.stride(0), x.stride(1), x.stride(2) if x.shape[2] > 1 else 0) for x in tensors]


def _constants(x: Inputs, form: Form) -> dict[str, Any]:
    """Constants that kernels are compiled for."""
    K, V = x.q.shape[-1], x.v.shape[-1]
    return {
        "K": K,
        "V": V,
        "BK": padded(K),
        "BV": form.columns,
        "BS": form.tokens,
        "FIRST": x.C is not None,
        "LAST": x.last,
        "EXACT": x.v.dtype == torch.float32,
        "num_warps": form.warps,
        "num_stages": 1,
    }


def _forward(x: Inputs) -> Results:
    (B, T, H, V), form = x.v.shape, _form(x)
    content = (dense(x.q), dense(x.k), dense(x.v), x.i, x.f)
    results = _empty_results(x)
    mlstm_forward_kernel[B * H, triton.cdiv(V, form.columns)](
        *content, packed(x.C), packed(x.n), packed(x.m), *results, *_strides(*content), x.scale, T, H,
        triton.cdiv(T, form.tokens), **_constants(x, form),
    )  # fmt: skip
    return results


def _empty_results(x: Inputs) -> Results:
    (B, T, H, V), K = x.v.shape, x.q.shape[-1]
    states = triton.cdiv(T, _form(x).tokens) + x.last

    def state(*shape: int) -> Tensor:
        return x.v.new_empty((B, H, *shape) if x.last else (B, 0), dtype=torch.float32)

    return Results(
        o=x.v.new_empty(x.v.shape),
        C_last=state(K, V),
        n_last=state(K),
        m_last=state(),
        # A derivative takes from C and n what nearly cancels.
        C_ahead=x.v.new_empty(B, H, states, K, V, dtype=torch.float32),
        n_ahead=x.v.new_empty(B, H, states, K, dtype=torch.float32),
        m_ahead=x.v.new_empty(B, H, states, dtype=torch.float32),
    )


def _backward(derivatives: tuple[Tensor, ...], x: Inputs, rest: tuple[Tensor, ...]) -> Gradients:
    do, (dC, dn, dm) = dense(derivatives[0]), (given.contiguous() for given in derivatives[1:])
    x = x._replace(q=dense(x.q), k=dense(x.k), v=dense(x.v))
    d = _empty_gradients(derivatives, x, rest)
    (B, T, H, V), K = x.v.shape, x.q.shape[-1]
    # Derivatives of inputs that heads share are summed over heads before they are rounded.
    shared = x.q.shape[2] != H
    dq, dk = (x.v.new_empty(B, T, H, K, dtype=torch.float32) for _ in "qk") if shared else (d.q, d.k)
    found = d._replace(q=dq, k=dk)
    if resident(K, V, T, B * H, x.v.dtype):
        _backward_in_one_walk(do, (dC, dn, dm), x, rest, found)
    else:
        _backward_by_chunks(do, (dC, dn, dm), x, rest, found)
    if shared:
        d = d._replace(q=dq.sum(2, keepdim=True).to(x.q.dtype), k=dk.sum(2, keepdim=True).to(x.q.dtype))
    if x.C is not None and x.n is not None:
        d.m.add_((d.C * x.C).sum((-2, -1)) + (d.n * x.n).sum(-1))
    return d


def _numbers(x: Inputs, form: Form) -> tuple[float, int, int, int]:
    """Numbers that kernels are given: the scale, tokens, heads and chunks."""
    time, heads = x.v.shape[1:3]
    return x.scale, time, heads, triton.cdiv(time, form.tokens)


def _backward_in_one_walk(
    do: Tensor, d_last: tuple[Tensor, ...], x: Inputs, ahead: tuple[Tensor, ...], d: Gradients
) -> None:
    form, content = _form(x), (x.q, x.k, x.v, x.i, x.f)
    mlstm_backward_kernel[(x.v.shape[0] * x.v.shape[2],)](
        do, *content, *ahead, *d_last, *d, *_strides(do, *content), *_numbers(x, form), **_constants(x, form)
    )


def _backward_by_chunks(
    do: Tensor, d_last: tuple[Tensor, ...], x: Inputs, ahead: tuple[Tensor, ...], d: Gradients
) -> None:
    (B, T, H, V), K, form = x.v.shape, x.q.shape[-1], _form(x)
    numbers, constants = _numbers(x, form), _constants(x, form)
    content, programs, chunks = (x.q, x.k, x.v, x.i, x.f), B * H, numbers[3]
    strides = _strides(do, *content)
    (dC, dn, dm), (C_ahead, n_ahead, m_ahead) = d_last, ahead
    rows = tuple(x.v.new_empty(B, H, T, dtype=torch.float32) for _ in range(3))
    behind = (
        x.v.new_empty(B, H, chunks, K, V),
        x.v.new_empty(B, H, chunks, K, dtype=torch.float32),
        x.v.new_empty(B, H, chunks, dtype=torch.float32),
    )
    mu = dm - (dC * C_ahead[:, :, -1]).sum((-2, -1)) - (dn * n_ahead[:, :, -1]).sum(-1) if x.last else dm
    mlstm_rows_kernel[programs, chunks](do, *content, *ahead, d.q, *rows, *strides, *numbers, **constants)
    mlstm_carry_kernel[programs, triton.cdiv(V, form.columns)](
        do, x.q, x.i, x.f, m_ahead, *rows[:2], dC, dn, mu, *behind, d.C, d.n, d.m,
        *_strides(do, x.q, x.i, x.f), *numbers, **constants,
    )  # fmt: skip
    mlstm_columns_kernel[programs, chunks](
        do, *content, *ahead, *rows, *behind, d.k, d.v, d.i, d.f, *strides, *numbers, **constants
    )


def _empty_gradients(derivatives: tuple[Tensor, ...], x: Inputs, rest: tuple[Tensor, ...]) -> Gradients:
    by_content = (given.new_empty(given.shape) for given in (x.q, x.k, x.v, x.i, x.f))
    by_state = (x.v.new_empty(0) if given is None else given.new_empty(given.shape) for given in (x.C, x.n, x.m))
    return Gradients(*by_content, *by_state)


mlstm_op = opaque(
    "mlstm",
    _forward,
    _backward,
    outputs=_empty_results,
    gradients=_empty_gradients,
    differentiable=4,
    inputs=Inputs,
    results=Results,
)
