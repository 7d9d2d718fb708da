"""A first call, whose kernels are compiled side by side.

Triton compiles a kernel where it is launched first, and all else waits. So an op that meets inputs of a new form goes through
its launches once before it runs. That time they only compile, each in a thread of its own, those of backward, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from inspect import signature
from typing import Any

from torch import Tensor

from recallmap.arch.kernels.select import INTERPRETED


def rehearsed(function: Callable[..., Any], rehearse: Callable[..., None]) -> Callable[..., Any]:
    """`function`, which on a GPU calls `rehearse` with its inputs before it takes inputs of a new form. What `rehearse`
    launches is compiled, and not run: its tensors hold no values."""
    met: set[tuple[Any, ...]] = set()  # inputs, which are looked up at every call
    forms: set[tuple[Any, ...]] = set()  # theirs, which take three times as long to tell

    @wraps(function)
    def first(*inputs: Any) -> Any:
        if compiles(inputs):
            seen = tuple([(x.shape, x.dtype, x.requires_grad) if isinstance(x, Tensor) else x for x in inputs])
            if seen not in met:
                met.add(seen)
                if (form := _form(seen)) not in forms:
                    from recallmap.arch.kernels.ahead import compile_side_by_side  # for Triton, which is not everywhere

                    forms.add(form)
                    compile_side_by_side(partial(rehearse, *inputs))
        return function(*inputs)

    first.__signature__ = signature(function, eval_str=True)  # type: ignore[attr-defined]
    return first


def compiles(inputs: Sequence[Any]) -> bool:
    """True where a launch on these inputs compiles a kernel that has not been compiled."""
    return not INTERPRETED and any(isinstance(x, Tensor) and x.is_cuda for x in inputs)


def _form(seen: Sequence[Any]) -> tuple[Any, ...]:
    """What kernels depend on: widths, and how long and how many sequences are, within a factor of two."""
    return tuple(
        (*(size.bit_length() for size in x[0][:2]), *x[0][2:], *x[1:]) if isinstance(x, tuple) else x for x in seen
    )
