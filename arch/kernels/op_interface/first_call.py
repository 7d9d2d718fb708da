"""A first call, whose kernels are compiled side by side.

Triton compiles a kernel where it is launched first, and all else waits. So an op that meets inputs of a new form goes through
its launches once before it runs. That time they only compile, each in a thread of its own, those of backward, too. What calls
several ops goes through all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial, wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from recallmap.arch.kernels.select import INTERPRETED


def rehearsed(function: Callable[..., Any], rehearse: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which on a GPU calls `rehearse` with its inputs before it takes inputs of a new form. What `rehearse`
    launches is compiled, and not run: its tensors hold no values. It gives what `function` would."""
    new = _Forms()

    @wraps(function)
    def first(*inputs: Any) -> Any:
        is_new = compiles(inputs) and new.is_one(inputs)
        if _ALL.get():
            return rehearse(*inputs)
        if is_new:
            _compile(partial(rehearse, *inputs))
        return function(*inputs)

    first.__signature__ = signature(function, eval_str=True)  # type: ignore[attr-defined]
    return first


def together(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which calls several ops: on a GPU they are all rehearsed before it takes tensors of a new form, so that their
    kernels do not wait for one another. Where something else is new, ops are rehearsed one by one. torch.compile and
    transforms see `function` alone."""
    new = _Forms()

    @wraps(function)
    def first(*inputs: Any, **named: Any) -> Any:
        if not (torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() or _ALL.get()):
            tensors = list(_tensors((*inputs, *named.values())))
            if compiles(tensors) and new.is_one(tensors):
                _compile(partial(_all, torch.is_grad_enabled(), function, *inputs, **named))
        return function(*inputs, **named)

    return first


_ALL: ContextVar[bool] = ContextVar("all ops are rehearsed", default=False)


def _all(differentiable: bool, function: Callable[..., Any], *inputs: Any, **named: Any) -> None:
    before = _ALL.set(True)
    try:
        with torch.set_grad_enabled(differentiable):
            function(*inputs, **named)
    finally:
        _ALL.reset(before)


def _compile(launch: Callable[[], Any]) -> None:
    from recallmap.arch.kernels.ahead import compile_side_by_side  # for Triton, which is not everywhere

    compile_side_by_side(launch)


def _tensors(inputs: tuple[Any, ...]) -> Iterator[Tensor | None]:
    """The tensors among inputs and in their tuples, and None for each that is lacking."""
    for x in inputs:
        if isinstance(x, tuple):
            yield from _tensors(x)
        elif x is None or isinstance(x, Tensor):
            yield x


class _Forms:
    """The forms of inputs that were met."""

    def __init__(self) -> None:
        self.inputs: set[tuple[Any, ...]] = set()  # which are looked up at every call
        self.forms: set[tuple[Any, ...]] = set()  # theirs, which take three times as long to tell

    def is_one(self, inputs: Sequence[Any]) -> bool:
        """True where the inputs have a new form, which from now on is known."""
        seen = tuple([(x.shape, x.dtype, x.requires_grad) if isinstance(x, Tensor) else x for x in inputs])
        if seen in self.inputs:
            return False
        self.inputs.add(seen)
        form = _form(seen)
        if form in self.forms:
            return False
        self.forms.add(form)
        return True


def compiles(inputs: Sequence[Any]) -> bool:
    """True where a launch on these inputs compiles a kernel that has not been compiled."""
    return not INTERPRETED and any(isinstance(x, Tensor) and x.is_cuda for x in inputs)


def _form(seen: Sequence[Any]) -> tuple[Any, ...]:
    """What kernels depend on: widths, and how long and how many sequences are, within a factor of two."""
    return tuple(
        (*(size.bit_length() for size in x[0][:2]), *x[0][2:], *x[1:]) if isinstance(x, tuple) else x for x in seen
    )
