"""A first call, whose kernels are compiled side by side.

Triton compiles a kernel where it is launched first, and all else waits. So an op that meets inputs of a new form goes through
its launches once before it runs. That time they only compile, each in a thread of its own, those of backward, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from recallmap.arch.kernels.select import INTERPRETED

MOST = 16  # threads; no op has more kernels

_ONLY_COMPILES: ContextVar[bool] = ContextVar("only compiles", default=False)
_ONE_AT_A_TIME = threading.Lock()


def rehearsed(function: Callable[..., Any], rehearse: Callable[..., None]) -> Callable[..., Any]:
    """`function`, which on a GPU calls `rehearse` with its inputs before it takes inputs of a new form. What `rehearse`
    launches is compiled, and not run: its tensors hold no values."""
    met: set[tuple[Any, ...]] = set()

    @wraps(function)
    def first(*inputs: Any) -> Any:
        if compiles(inputs) and (form := _form(inputs)) not in met:
            met.add(form)
            compile_side_by_side(partial(rehearse, *inputs))
        return function(*inputs)

    first.__signature__ = signature(function, eval_str=True)  # type: ignore[attr-defined]
    return first


def compiles(inputs: Sequence[Any]) -> bool:
    """True where a launch on these inputs compiles a kernel that has not been compiled."""
    return not INTERPRETED and any(isinstance(x, Tensor) and x.is_cuda for x in inputs)


def _form(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """What kernels depend on: widths, and how long and how many sequences are, within a factor of two."""
    return tuple(
        (x.dtype, x.requires_grad, *(size.bit_length() for size in x.shape[:2]), *x.shape[2:])
        if isinstance(x, Tensor)
        else x
        for x in inputs
    )


def compile_side_by_side(launch: Callable[[], None]) -> None:
    """Call `launch`, whose launches only compile, and wait for all kernels. One that fails to compile fails again, and says so,
    where it is launched; so does a call for which there is no memory. Before Triton 3.4 nothing is compiled here."""
    import triton

    if not hasattr(triton, "AsyncCompileMode") or torch.cuda.is_current_stream_capturing():
        return
    with (
        _ONE_AT_A_TIME,
        ThreadPoolExecutor(MOST) as threads,
        _launches_only_compile(),
        torch.no_grad(),
        triton.AsyncCompileMode(_Builders(threads), ignore_errors=True),
    ):
        try:
            launch()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()


class _Builders:
    """Threads that compile kernels, and build the code that launches them."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self.threads = threads

    def submit(self, compile_kernel: Callable[[], Any]) -> Future[Any]:
        from recallmap.arch.kernels.ahead import build_launcher

        def build() -> Any:
            kernel = compile_kernel()
            build_launcher(kernel)
            return kernel

        return self.threads.submit(build)


@contextmanager
def _launches_only_compile() -> Iterator[None]:
    """Within it this thread's launches compile their kernels, and run none."""
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return run(self, *args, grid=grid, warmup=warmup or _ONLY_COMPILES.get(), **kwargs)

    JITFunction.run = compile_only
    before = _ONLY_COMPILES.set(True)
    try:
        yield
    finally:
        _ONLY_COMPILES.reset(before)
        JITFunction.run = run
