"""Triton's kernels compiled ahead of their use, for a GPU that need not be here, or for the call that comes next.

Launch code runs as it is. A launch compiles its kernel, with the specialisation that it has, into Triton's cache on disk.
Nothing is launched, so that outputs hold no values. For another GPU, tensors are of a CPU.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

import recallmap.arch
from recallmap.arch.kernels import select

MOST = 16  # threads; no op has more kernels


class Target(NamedTuple):
    """A kind of GPU, as Triton tells them apart: NVIDIA's compute capability 9.0 is ("cuda", 90, 32)."""

    backend: str
    arch: int | str
    warp_size: int

    @property
    def said(self) -> str:
        """The name for people."""
        return f"compute capability {self.arch / 10}" if isinstance(self.arch, int) else self.arch


def target_here() -> Target:
    """The GPU of this process, by Triton."""
    from triton.runtime import driver

    found = driver.active.get_current_target()
    return Target(found.backend, found.arch, found.warp_size)


def cache_folder() -> Path:
    """The folder of Triton's cache."""
    from triton import knobs

    return Path(knobs.cache.dir)


@cache
def fingerprint() -> str:
    """A hash of all that kernels are made of but their inputs: the sources of this pillar, and Triton's version."""
    found = hashlib.sha256(version("triton").encode())
    for path in sorted(Path(recallmap.arch.__path__[0]).rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


class _Absent:
    """A driver that only says which GPU there would be."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self.target

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


@contextmanager
def compiling_for(target: Target) -> Iterator[set[str]]:
    """Within it fused implementations serve tensors of a CPU, and their launches only compile. The set that it gives fills with
    the hashes of the kernels, those too that were in the cache. For a process of its own, which launches nothing afterwards.

    Raises RuntimeError where kernels are interpreted in this process (TRITON_INTERPRET=1).
    """
    if select.INTERPRETED or os.environ.get("TRITON_INTERPRET") == "1":
        raise RuntimeError("kernels are interpreted in this process, which compiles none: unset TRITON_INTERPRET")
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    compiled: set[str] = set()
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        compiled.add(kernel.hash)
        _build_launcher(kernel)
        return kernel

    JITFunction.run = compile_only
    driver.set_active(_Absent(GPUTarget(*target)))
    select.AHEAD = True
    try:
        yield compiled
    finally:
        select.AHEAD = False
        JITFunction.run = run


def _build_launcher(kernel: Any) -> None:
    """Build the C code that launches a kernel. Before Triton 3.7 there is one for each signature, which takes a third of a
    second where it is first used. It is linked to the driver's library, which only machines with a GPU have."""
    from triton.backends.nvidia import driver

    if hasattr(driver, "make_launcher") and kernel.metadata.target.backend == "cuda" and _has_driver_library():
        driver.CudaLauncher(kernel.src, kernel.metadata)


@cache
def _has_driver_library() -> bool:
    from triton.backends.nvidia import driver

    try:
        return bool(driver.libcuda_dirs())
    except (AssertionError, OSError):  # by Triton, and by what it asks
        return False


_ONLY_COMPILES: ContextVar[bool] = ContextVar("only compiles", default=False)
_ONE_AT_A_TIME = threading.Lock()


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
        def build() -> Any:
            kernel = compile_kernel()
            _build_launcher(kernel)
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
