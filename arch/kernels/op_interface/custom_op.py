"""A fused computation as one opaque operation: autograd, vmap and the compiler see its interface, never its inside.

A fused implementation is a forward and a backward function over contiguous tensors whose first axis is the batch. Learned
tensors without a batch have a first axis of groups: batch entry b belongs to group b // (batch / groups). So members of a
cohort fold into the first axis of every tensor alike, and one launch serves all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Any, get_type_hints

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.first_call import rehearsed

Results = tuple[Tensor, ...]


def opaque(
    name: str,
    forward: Callable[..., Results],
    backward: Callable[..., Results],
    *,
    outputs: Callable[..., Results],
    gradients: Callable[..., Results],
    differentiable: int,
    inputs: type[tuple[Any, ...]] | None = None,
    results: type[tuple[Tensor, ...]] | None = None,
    unread: Sequence[int] = (),
    reread: Sequence[int] = (),
) -> Callable[..., Results]:
    """`forward` as an op of its own, with `backward` for its derivative.

    forward         (*inputs) -> tensors: `differentiable` results first, then what backward needs besides the inputs. Its
                    annotations are its schema: Tensor, Tensor | None, int, float, bool or str
    backward        (*derivatives, *inputs, *rest) -> the derivatives by every Tensor input, in their order; an empty tensor
                    where the input is None. derivatives are those of the differentiable results: zeros where nothing asks
                    for one, None where the annotation is Tensor | None
    outputs         forward's results as they would be, torch.empty and contiguous; `gradients` likewise backward's
    inputs          a NamedTuple of the inputs, with `results` a NamedTuple of the results: forward and outputs then take the
                    one and give the other, backward and gradients take (derivatives, inputs, rest), each a tuple
    unread          places of tensors among the inputs that backward does not read and nothing needs to keep: it gets empty
                    ones of their dtype
    reread          places of differentiable results that backward reads: it gets them ahead of the rest
    """
    if inputs is not None and results is not None:
        forward, outputs = (_flat_forward(function, inputs, results) for function in (forward, outputs))
        backward, gradients = (
            _flat_backward(function, inputs, results, differentiable) for function in (backward, gradients)
        )

    def rehearse(*inputs: Any) -> Results:
        """Go through the launches of a call's derivative where there will be one, whose kernels take longest to compile, and
        through those of the call."""
        if any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
            output = outputs(*inputs)
            told = [x.new_empty(0) if isinstance(x, Tensor) and i in unread else x for i, x in enumerate(inputs)]
            asked = [None if i and may_lack[i] else torch.empty_like(output[i]) for i in range(differentiable)]
            backward(*asked, *told, *(output[i] for i in reread), *output[differentiable:])
        return forward(*inputs)

    op = _operator(name, rehearsed(forward, rehearse), outputs)
    back = _operator(f"{name}_backward", backward, gradients)

    def keep(ctx: Any, inputs: Sequence[Any], output: Results) -> None:
        ctx.places = [i for i, x in enumerate(inputs) if isinstance(x, Tensor)]
        ctx.fixed = [None if isinstance(x, Tensor) else x for x in inputs]
        ctx.forms = [(x.shape, x.dtype) for x in output[:differentiable]]
        ctx.set_materialize_grads(False)  # else zeros the size of all that backward needs are written, and dropped
        read = (inputs[i].new_empty(0) if i in unread else inputs[i] for i in ctx.places)
        ctx.save_for_backward(*read, *(output[i] for i in reread), *output[differentiable:])

    def derive(ctx: Any, *derivatives: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs = list(ctx.fixed)
        for place, x in zip(ctx.places, ctx.saved_tensors, strict=False):
            inputs[place] = x
        rest = ctx.saved_tensors[len(ctx.places) :]
        told = [
            ctx.saved_tensors[0].new_zeros(shape, dtype=dtype) if x is None and not optional else x
            for x, (shape, dtype), optional in zip(derivatives, ctx.forms, may_lack, strict=False)
        ]
        found = iter(back(*told, *inputs, *rest))
        by_input: list[Tensor | None] = [None] * len(inputs)
        for place in tensor_places:
            gradient = next(found)
            by_input[place] = gradient if place in ctx.places else None
        return tuple(by_input)

    tensor_places = [i for i, argument in enumerate(op._schema.arguments) if "Tensor" in str(argument.type)]
    may_lack = [str(argument.type) != "Tensor" for argument in back._schema.arguments[:differentiable]]
    torch.library.register_autograd(f"{_LIBRARY.ns}::{name}", derive, setup_context=keep, lib=_LIBRARY)
    return op


_LIBRARY = torch.library.Library("recallmap", "FRAGMENT")


def _operator(name: str, function: Callable[..., Results], form: Callable[..., Results]) -> torch._ops.OpOverload:
    """`function` as an operator of PyTorch, whose results have the form of those of `form`. This is what
    torch.library.custom_op does, which imports PyTorch's compiler besides, at its first call, for seconds."""
    schema = torch.library.infer_schema(function, mutates_args=())
    _LIBRARY.define(name + schema, tags=torch.Tag.pt2_compliant_tag)
    _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    operator: torch._ops.OpOverload = getattr(getattr(torch.ops, _LIBRARY.ns), name).default
    torch.library.register_fake(f"{_LIBRARY.ns}::{name}", form, lib=_LIBRARY)
    torch.library.register_vmap(f"{_LIBRARY.ns}::{name}", _folded(operator), lib=_LIBRARY)
    return operator


def _flat_forward(
    function: Callable[[Any], Results], inputs: type[tuple[Any, ...]], results: type[tuple[Tensor, ...]]
) -> Callable[..., Results]:
    """`function` of one bundle as a function of what is in it, whose signature PyTorch can read."""

    def flat(*given: Any) -> Results:
        return tuple(function(inputs(*given)))

    flat.__signature__ = _signature(get_type_hints(inputs), len(get_type_hints(results)))  # type: ignore[attr-defined]
    return flat


def _flat_backward(
    function: Callable[..., Results],
    inputs: type[tuple[Any, ...]],
    results: type[tuple[Tensor, ...]],
    differentiable: int,
) -> Callable[..., Results]:
    """The same of a function of derivatives, inputs and the rest."""
    types, names = get_type_hints(inputs), list(get_type_hints(results))
    last = differentiable + len(types)

    def flat(*given: Any) -> Results:
        return tuple(function(given[:differentiable], inputs(*given[differentiable:last]), given[last:]))

    derivatives = {f"derivative_of_{name}": Tensor for name in names[:differentiable]}
    rest = dict.fromkeys(names[differentiable:], Tensor)
    tensors = sum(kind in (Tensor, Tensor | None) for kind in types.values())
    flat.__signature__ = _signature(derivatives | types | rest, tensors)  # type: ignore[attr-defined]
    return flat


def _signature(parameters: dict[str, Any], tensors: int) -> Signature:
    """That of a function of `parameters` that gives so many tensors."""
    listed = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=kind) for name, kind in parameters.items()]
    return Signature(listed, return_annotation=tuple[(Tensor,) * tensors])  # type: ignore[misc]


def _folded(operator: Callable[..., Results]) -> Callable[..., tuple[Results, tuple[int, ...]]]:
    """The rule that gives members of vmap to the first axis of every tensor."""

    def rule(info: Any, in_dims: Sequence[int | None], *inputs: Any) -> tuple[Results, tuple[int, ...]]:
        members = info.batch_size

        def fold(x: Any, dim: int | None) -> Any:
            if not isinstance(x, Tensor):
                return x
            stacked = x.expand(members, *x.shape) if dim is None else x.movedim(dim, 0)
            return stacked.flatten(0, 1)

        results = operator(*(fold(x, dim) for x, dim in zip(inputs, in_dims, strict=True)))
        apart = tuple(x.unflatten(0, (members, x.shape[0] // members)) for x in results)
        return apart, (0,) * len(apart)

    return rule


def matrices(x: Tensor) -> int:
    """The number of matrices in x [..., rows, columns]."""
    return x.shape[:-2].numel()


def scratch(x: Tensor, floats: int, room: int) -> tuple[Tensor, int]:
    """Memory of so many floats a program, `room` at most in all, and how many programs: no more than there are matrices."""
    programs = max(1, min(matrices(x), room // floats))
    return x.new_empty(programs * floats, dtype=torch.float32), programs


def padded(width: int) -> int:
    """The power of two that holds `width`, and the least that a product of Triton's takes."""
    return max(16, 1 << (width - 1).bit_length())


def dense(x: Tensor) -> Tensor:
    """x as it lies over batch, time and heads, its channels side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def packed(x: Tensor | None) -> Tensor | None:
    """x without gaps, where it is given at all."""
    return None if x is None else x.contiguous()
