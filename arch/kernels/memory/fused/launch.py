"""Launches of a memory's kernels, forward and backward, as one custom op.

B batch, G groups of members (or B), T time, H heads, N pieces of C tokens, S sights of a piece, D features, V value width, P
floats of a memory and its momentum
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from recallmap.arch.kernels.memory.fused.deep_memory import memory_deep_backward_kernel, memory_deep_forward_kernel
from recallmap.arch.kernels.memory.fused.linear_memory import (
    memory_inverse_kernel,
    memory_linear_backward_kernel,
    memory_linear_forward_kernel,
)
from recallmap.arch.kernels.memory.fused.plan import FEATURES, WIDEST_WHOLE, Plan, plan_for
from recallmap.arch.kernels.op_interface.custom_op import opaque, packed, padded
from recallmap.arch.kernels.test_time.network import NORM_EPS


class Inputs(NamedTuple):
    """Inputs of the custom op: whole pieces but for the last.

    q, k, v                   [B, T, H, D or V], keys and values with those of the window ahead of them
    q_skip, k_skip            what a residual adds to outputs, and to answers
    memory                    [G, H, P]: matrices flat, one after another, and then their momentum
    norm_weight, norm_bias    [G, H, V]
    kept ... slowed           `TokenWeights`
    hidden                    units of a deep memory; 0: a linear one
    """

    q: Tensor
    k: Tensor
    v: Tensor
    q_skip: Tensor | None
    k_skip: Tensor | None
    memory: Tensor
    norm_weight: Tensor | None
    norm_bias: Tensor | None
    kept: Tensor
    write: Tensor
    moved: Tensor | None
    push: Tensor | None
    slowed: Tensor | None
    hidden: int
    bias: bool
    dot: bool
    chunk: int

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        return self[:13]


class Results(NamedTuple):
    """Outputs and the memory behind them; for backward the memories behind pieces but the last, outputs ahead of the norm, and
    inverses of pieces of several chunks."""

    o: Tensor
    final: Tensor
    states: Tensor
    answer: Tensor
    inverse: Tensor


class _Launch(NamedTuple):
    """A call's plan, the constants its kernels are compiled for, programs of all heads, blocks of values, and the numbers that
    kernels are given."""

    plan: Plan
    constants: dict[str, Any]
    programs: int
    blocks: int
    numbers: tuple[float, ...]


def _launch_of(x: Inputs) -> _Launch:
    (batch, time, heads, features), value_width = x.q.shape, x.v.shape[-1]
    chunks, size, seen = x.write.shape[2:]
    rows = x.hidden or features
    plan = plan_for(
        features if x.hidden else 0,
        rows,
        value_width,
        seen,
        _lowest(x.q, x.k, x.v),
        batch * heads,
        x.norm_weight is not None,
    )
    constants: dict[str, Any] = {
        "D": features,
        "V": value_width,
        "C": size,
        "S": seen,
        "PAST": seen // (size // x.chunk) - x.chunk,
        "BV": plan.columns,
        "BC": padded(size),
        "BS": padded(seen),
        "BIAS": int(x.bias),
        "DOT": x.dot,
        "PRECISION": plan.precision,
    }
    if x.hidden:
        constants |= {"R": rows, "BD": padded(features) if features <= WIDEST_WHOLE else FEATURES}
    else:
        constants["CHUNK"] = x.chunk
    per_norm = 1 if x.norm_weight is None else batch // len(x.norm_weight)
    numbers = (time, heads, chunks, batch // len(x.memory), per_norm, rows, NORM_EPS)
    return _Launch(plan, constants, batch * heads, -(-value_width // plan.columns), numbers)


def _lowest(*tensors: Tensor) -> torch.dtype:
    """fp32 where any content is."""
    return torch.float32 if any(x.dtype == torch.float32 for x in tensors) else torch.bfloat16


def _forward(x: Inputs) -> Results:
    launch, results = _launch_of(x), _empty_results(x)
    plan = launch.plan
    constants = launch.constants | {"BR": plan.forward_rows}
    given = [packed(tensor) for tensor in x.tensors]
    options = {"num_warps": plan.forward_warps, "num_stages": 1, "maxnreg": plan.registers}
    if x.hidden:
        o, final, states, answer, _ = results
        memory_deep_forward_kernel[(launch.programs,)](
            *given, o, final, states, answer, *launch.numbers, **constants, **options
        )
        return results
    time, heads, chunks = launch.numbers[:3]
    if constants["C"] != x.chunk:
        names = ("D", "C", "S", "CHUNK", "PAST", "BR", "BS", "BIAS")
        memory_inverse_kernel[(launch.programs * x.write.shape[2],)](
            packed(x.k), packed(x.write), results.inverse, time, heads, chunks,
            **{name: constants[name] for name in names}, num_warps=1, num_stages=1,
        )  # fmt: skip
    memory_linear_forward_kernel[launch.programs, launch.blocks](
        *given, *results, *launch.numbers, **constants, **options
    )
    return results


def _empty_results(x: Inputs) -> Results:
    batch, heads, chunks, size, seen = x.write.shape
    shape = (batch, x.q.shape[1], heads, x.v.shape[-1])
    return Results(
        o=x.v.new_empty(shape),
        final=x.memory.new_empty(batch, heads, x.memory.shape[-1]),
        states=x.memory.new_empty(batch, heads, chunks - 1, x.memory.shape[-1]),
        answer=x.memory.new_empty((batch, 0) if x.norm_weight is None else shape),
        inverse=x.memory.new_empty(batch, heads, chunks if size != x.chunk else 0, seen, seen),
    )


def _backward(derivatives: tuple[Tensor, ...], x: Inputs, rest: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (d_o, d_final), (states, answer, inverse) = derivatives, rest
    launch = _launch_of(x)
    plan = launch.plan
    constants = launch.constants | {"BR": plan.backward_rows}
    batch, heads = x.write.shape[:2]
    # Tokens of a window take up what several chunks give; keys of a linear memory what several blocks of rows do, keys and
    # queries of a deep one, where its features are not held whole, what several blocks of hidden units do.
    window, rows = constants["PAST"] > 0, x.hidden or constants["D"]
    blocks = rows > plan.backward_rows and not (x.hidden and constants["D"] <= constants["BD"])
    apart = launch.blocks
    d_q = _taking_up(x.q, blocks and x.hidden > 0, apart)
    d_k, d_v = _taking_up(x.k, window or blocks, apart), _taking_up(x.v, window)
    d_memory = d_final.clone(memory_format=torch.contiguous_format)
    d_norm = [x.memory.new_empty(batch, heads, x.v.shape[-1]) for _ in range(2)]
    d_weights = [
        None if given is None else given.new_empty(apart, *given.shape)
        for given in (x.kept, x.write, x.moved, x.push, x.slowed)
    ]
    q, k, v, _, *others = (packed(tensor) for tensor in x.tensors)
    given = [d_o.contiguous(), q, k, v, *others, states, answer]
    found = [d_q, d_k, d_v, d_memory, *d_norm, *d_weights]
    options = {"num_warps": plan.backward_warps, "num_stages": 1, "maxnreg": plan.registers}
    if x.hidden:
        memory_deep_backward_kernel[(launch.programs,)](*given, *found, *launch.numbers, **constants, **options)
    else:
        memory_linear_backward_kernel[launch.programs, apart](
            *given, inverse, *found, *launch.numbers, **constants, **options
        )
    d_q_skip = x.q.new_empty(batch) if x.q_skip is None else d_o.to(x.q_skip.dtype, copy=True).contiguous()
    d_k_skip = x.k.new_empty(batch) if x.k_skip is None else d_v[0].neg().to(x.k_skip.dtype)
    by_norm = (
        x.q.new_empty(batch) if learned is None else _by_group(d, learned)
        for d, learned in zip(d_norm, (x.norm_weight, x.norm_bias), strict=True)
    )
    by_weights = (x.q.new_empty(batch) if d is None else _together(d) for d in d_weights)
    content = (_together(d_q).to(x.q.dtype), _together(d_k).to(x.k.dtype), d_v[0].to(x.v.dtype), d_q_skip, d_k_skip)
    return *content, _by_group(d_memory, x.memory), *by_norm, *by_weights


def _taking_up(x: Tensor, several: bool, apart: int = 1) -> Tensor:
    """Room for the derivative by x [apart, ...]: of blocks of values one each, which may have to take up several parts."""
    made, dtype = (torch.zeros, torch.float32) if several else (torch.empty, torch.float32 if apart > 1 else x.dtype)
    return made((apart, *x.shape), dtype=dtype, device=x.device)


def _together(d: Tensor) -> Tensor:
    """What blocks of values have left apart."""
    return d.sum(0) if len(d) > 1 else d[0]


def _by_group(d: Tensor, learned: Tensor) -> Tensor:
    """The sum over the sequences of each group."""
    return (d.unflatten(0, (len(learned), -1)).sum(1) if len(d) > len(learned) else d).to(learned.dtype)


def _empty_gradients(derivatives: tuple[Tensor, ...], x: Inputs, rest: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.q.new_empty(len(x.q)) if given is None else given.new_empty(given.shape) for given in x.tensors)


memory_op = opaque(
    "memory",
    _forward,
    _backward,
    outputs=_empty_results,
    gradients=_empty_gradients,
    differentiable=2,
    inputs=Inputs,
    results=Results,
)
