"""Launches of mLSTM's kernels, forward and backward, as one custom op.

B batch, T time, H heads, K key width, V value width, N chunks
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from recallmap.arch.kernels.mlstm.fused.chunk_gradients import (
    mlstm_by_gates_kernel,
    mlstm_by_keys_kernel,
    mlstm_by_queries_kernel,
)
from recallmap.arch.kernels.mlstm.fused.gate_walk import mlstm_gates_kernel
from recallmap.arch.kernels.mlstm.fused.plan import Chunks, Mixed, Tile, Walk, form_for
from recallmap.arch.kernels.mlstm.fused.read_out import mlstm_outputs_kernel
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
    """o; C, n, m behind all tokens, [B, 0] where not asked for; C, n ahead of every chunk, with `last` also behind all.

    Then what a walk takes backward, m as C and n, or what chunks side by side take: b and M, e^(m - M), e^(b - M_end) and the
    least normaliser by token, e^(m - M_end) by chunk, by head the token that made the last m. What the other takes is [B, 0].
    """

    o: Tensor
    C_last: Tensor
    n_last: Tensor
    m_last: Tensor
    C_ahead: Tensor
    n_ahead: Tensor
    m_ahead: Tensor
    b: Tensor
    top: Tensor
    before: Tensor
    write: Tensor
    floor: Tensor
    kept: Tensor
    made_by: Tensor


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


def _forms(x: Inputs) -> tuple[Walk | Chunks, Walk | Chunks]:
    """Forward and backward."""
    B, T, H, V = x.v.shape
    form = form_for(x.q.shape[-1], V, T, B * H, x.v.dtype)
    return (form.forward, form.backward) if isinstance(form, Mixed) else (form, form)


def _strides(*tensors: Tensor) -> list[tuple[int, int, int]]:
    """Over batch, time and heads; none over heads where all share one."""
    return [(x.stride(0), x.stride(1), x.stride(2) if x.shape[2] > 1 else 0) for x in tensors]


def _sizes(x: Inputs, form: Walk | Chunks) -> tuple[int, int, int]:
    """Numbers that kernels are given: tokens, heads and chunks."""
    time, heads = x.v.shape[1:3]
    return time, heads, triton.cdiv(time, form.tokens)


def _ends(x: Inputs) -> dict[str, Any]:
    return {"FIRST": x.C is not None, "LAST": x.last}


def _widths(x: Inputs) -> dict[str, Any]:
    return {"K": x.q.shape[-1], "V": x.v.shape[-1], "BK": padded(x.q.shape[-1])}


def _walk_constants(x: Inputs, form: Walk) -> dict[str, Any]:
    """Constants that the kernels of one walk are compiled for."""
    cut = {"BV": padded(x.v.shape[-1]), "BS": form.tokens, "num_warps": form.warps, "num_stages": 1}
    return _widths(x) | _ends(x) | cut | {"EXACT": x.v.dtype == torch.float32}


def _tile_constants(x: Inputs, form: Chunks, tile: Tile) -> dict[str, Any]:
    """Constants that kernels of tiles are compiled for."""
    cut = {"BV": tile.columns, "BS": form.tokens, "BR": form.rows, "num_warps": tile.warps, "num_stages": tile.stages}
    return _widths(x) | _ends(x) | cut | {"EXACT": x.v.dtype == torch.float32}


def _forward(x: Inputs) -> Results:
    (form, backward), results = _forms(x), _empty_results(x)
    x = x._replace(q=dense(x.q), k=dense(x.k), v=dense(x.v), C=packed(x.C), n=packed(x.n), m=packed(x.m))
    if isinstance(form, Walk):
        content = (x.q, x.k, x.v, x.i, x.f)
        mlstm_forward_kernel[(x.v.shape[0] * x.v.shape[2],)](
            *content, x.C, x.n, x.m, *results, *_strides(*content), x.scale, *_sizes(x, form),
            **_walk_constants(x, form), GATES=isinstance(backward, Chunks),
        )  # fmt: skip
    else:
        _forward_by_chunks(x, form, results)
    return results


def _forward_by_chunks(x: Inputs, form: Chunks, results: Results) -> None:
    programs, sizes, r = x.v.shape[0] * x.v.shape[2], _sizes(x, form), results
    mlstm_gates_kernel[(programs,)](
        x.i, x.f, x.m, r.b, r.top, r.before, r.write, r.floor, r.kept, r.made_by, r.m_last, *_strides(x.i, x.f), *sizes,
        BN=form.gates.chunks, BS=form.tokens, **_ends(x), EXACT=x.v.dtype == torch.float32, num_warps=form.gates.warps,
    )  # fmt: skip
    gates, states = (r.write, None, None, r.kept), (x.C, x.n, r.C_ahead, r.n_ahead, r.C_last, r.n_last)
    _carry(x, form, (x.k, x.v), gates, states, reverse=False)
    mlstm_outputs_kernel[programs, triton.cdiv(sizes[0], form.rows)](
        x.q, x.k, x.v, r.b, r.top, r.before, r.floor, r.C_ahead, r.n_ahead, r.o, *_strides(x.q, x.k, x.v), x.scale, *sizes,
        **_tile_constants(x, form, form.outputs),
    )  # fmt: skip


def _carry(
    x: Inputs,
    form: Chunks,
    content: tuple[Tensor, Tensor],
    gates: tuple[Tensor | None, ...],
    states: tuple[Tensor | None, ...],
    *,
    reverse: bool,
) -> None:
    """The walk of the state, over the arguments of its kernel, where there is a state other than zero or one is wanted."""
    (B, _, H, V), sizes, cut = x.v.shape, _sizes(x, form), form.carry
    if sizes[2] == 1 and x.C is None and not x.last:
        return
    given, wanted = (x.last, x.C is not None) if reverse else (x.C is not None, x.last)
    widths = _widths(x) | {"BK": cut.keys, "BV": cut.columns}
    mlstm_carry_kernel[B * H, triton.cdiv(V, cut.columns) + 1, triton.cdiv(widths["K"], cut.keys)](
        *content, *gates, *states, *_strides(*content), *sizes, **widths, BS=form.tokens,
        GIVEN=given, WANTED=wanted, REVERSE=reverse, STAGES=cut.stages, num_warps=cut.warps,
    )  # fmt: skip


def _empty_results(x: Inputs) -> Results:
    (B, T, H, V), K, (_, backward) = x.v.shape, x.q.shape[-1], _forms(x)
    chunks, walk = triton.cdiv(T, backward.tokens), isinstance(backward, Walk)
    states = chunks + x.last
    exact = torch.float64 if x.v.dtype == torch.float32 else torch.float32

    def empty(there: bool, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return x.v.new_empty((B, H, *shape) if there else (B, 0), dtype=dtype)

    return Results(
        o=x.v.new_empty(x.v.shape),
        C_last=empty(x.last, K, V),
        n_last=empty(x.last, K),
        m_last=empty(x.last),
        # A derivative takes from C and n what nearly cancels.
        C_ahead=empty(True, states, K, V),
        n_ahead=empty(True, states, K),
        m_ahead=empty(walk, states),
        b=empty(not walk, T, dtype=exact),
        top=empty(not walk, T, dtype=exact),
        before=empty(not walk, T),
        write=empty(not walk, T),
        floor=empty(not walk, T),
        kept=empty(not walk, chunks),
        made_by=empty(not walk, dtype=torch.int32),
    )


def _backward(derivatives: tuple[Tensor, ...], x: Inputs, rest: tuple[Tensor, ...]) -> Gradients:
    (_, form), do, d_last = _forms(x), dense(derivatives[0]), [given.contiguous() for given in derivatives[1:]]
    x = x._replace(q=dense(x.q), k=dense(x.k), v=dense(x.v))
    left = Results(do, *d_last, *(kept.contiguous() for kept in rest))
    d = _empty_gradients(derivatives, x, rest)
    (B, T, H, _), K = x.v.shape, x.q.shape[-1]
    # Derivatives of inputs that heads share are summed over heads before they are rounded.
    shared = x.q.shape[2] != H
    dq, dk = (x.v.new_empty(B, T, H, K, dtype=torch.float32) for _ in "qk") if shared else (d.q, d.k)
    found = d._replace(q=dq, k=dk)
    if isinstance(form, Walk):
        _backward_in_one_walk(x, form, left, found)
    else:
        _backward_by_chunks(x, form, left, found)
    if shared:
        d = d._replace(q=dq.sum(2, keepdim=True).to(x.q.dtype), k=dk.sum(2, keepdim=True).to(x.q.dtype))
    if x.C is not None and x.n is not None:
        d.m.add_((d.C * x.C).sum((-2, -1)) + (d.n * x.n).sum(-1))
    return d


def _backward_in_one_walk(x: Inputs, form: Walk, left: Results, d: Gradients) -> None:
    """`left` are the results of forward, with derivatives in place of those that have one."""
    content = (x.q, x.k, x.v, x.i, x.f)
    mlstm_backward_kernel[(x.v.shape[0] * x.v.shape[2],)](
        left.o, *content, left.C_ahead, left.n_ahead, left.m_ahead, left.C_last, left.n_last, left.m_last, *d,
        *_strides(left.o, *content), x.scale, *_sizes(x, form), **_walk_constants(x, form),
    )  # fmt: skip


def _backward_by_chunks(x: Inputs, form: Chunks, left: Results, d: Gradients) -> None:
    """As `_backward_in_one_walk`."""
    (B, T, H, V), K, sizes = x.v.shape, x.q.shape[-1], _sizes(x, form)
    programs, chunks, tiles = B * H, sizes[2], form.tokens // form.rows
    content, strides = (left.o, x.q, x.k, x.v), _strides(left.o, x.q, x.k, x.v)

    def scratch(*shape: int) -> Tensor:
        return x.v.new_empty((B, H, *shape), dtype=torch.float32)

    r, by_d, row, column, final = (scratch(T) for _ in range(5))
    dC_behind, dn_behind, through = x.v.new_empty(B, H, chunks, K, V), scratch(chunks, K), scratch(chunks, tiles)
    mlstm_by_queries_kernel[programs, triton.cdiv(T, form.rows)](
        *content, left.b, left.top, left.before, left.floor, left.C_ahead, left.n_ahead, d.q, r, by_d, row,
        *strides, x.scale, *sizes, **_tile_constants(x, form, form.by_queries),
    )  # fmt: skip
    gates, states = (left.before, r, by_d, left.kept), (left.C_last, left.n_last, dC_behind, dn_behind, d.C, d.n)
    _carry(x, form, (x.q, left.o), gates, states, reverse=True)
    mlstm_by_keys_kernel[programs, chunks * tiles](
        *content, left.b, left.top, left.write, left.C_ahead, left.n_ahead, r, by_d, dC_behind, dn_behind,
        d.k, d.v, column, final, through, *strides, *sizes, **_tile_constants(x, form, form.by_keys),
    )  # fmt: skip
    mu = _of_last_m(left)
    mlstm_by_gates_kernel[programs, chunks](
        x.f, row, column, final, through, left.kept, left.made_by, mu, d.i, d.f, *_strides(x.f), *sizes,
        BS=form.tokens, TILES=tiles, LAST=x.last, num_warps=1,
    )  # fmt: skip
    if x.C is not None:
        d.m.copy_(mu.where(left.made_by < 0, 0.0) if x.last else torch.zeros_like(d.m))


def _of_last_m(left: Results) -> Tensor:
    """The derivative by the last m, less what C and n lose to it; empty where it was not handed out."""
    if left.C_last.numel() == 0:
        return left.m_last
    lost = (left.C_last * left.C_ahead[:, :, -1]).sum((-2, -1)) + (left.n_last * left.n_ahead[:, :, -1]).sum(-1)
    return left.m_last - lost


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
