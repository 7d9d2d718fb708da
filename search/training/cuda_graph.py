"""CUDA graph capture of a cohort's optimizer step: compiled, captured once for every shape of batches, then replayed.

A step is captured without compiling where it has too many operations, where the compiler fails on it, and where it is
taken too few times to pay. A step of a small model is hundreds of launches of a few microseconds each. Replayed as one
graph they leave the device no idle time.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from recallmap.search.training import device_time
from recallmap.search.training.phase_clock import phase

Result = TypeVar("Result")

MOST = 1500  # operations of a forward pass that is compiled: with more, the compiler takes many minutes

WARM_UPS = 3  # steps before the capture, for the compiler and the libraries to settle; their effect is undone


def compiled(function: Callable[..., Result], backend: str = "inductor") -> Callable[..., Result]:
    """The function compiled in one piece; calling it raises where that is impossible. It must have run once uncompiled,
    because ops load their implementations when they are first called."""
    whole: Callable[..., Result] = torch.compile(function, dynamic=False, fullgraph=True, backend=backend)
    return whole


class Step(Protocol):
    """An optimizer step that can be captured: everything that outlasts it is written in place."""

    device: torch.device
    bad_step: Tensor  # [N], of N members
    clock: Tensor  # [1]: optimizer steps taken
    losses: Callable[..., Tensor]

    def member_losses(self, flat_NP: Tensor, *batch: Any) -> Tensor:
        """The losses, not compiled."""

    def compile(self, batch: list[Tensor | None]) -> str:
        """Compile the step for batches of this shape; "yes", or why not."""

    def update(self, *batch: Tensor | None) -> Tensor:
        """Take the step; losses [N]."""

    def memory(self) -> list[Tensor]:
        """All tensors that the step writes."""


class Operations(TorchDispatchMode):
    """A counter of the operations that run in its context."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def forget_compiled() -> None:
    """Forget code that was compiled for other cohorts. The compiler tells cohorts apart by guards on the model, and after
    eight of them it stops compiling."""
    torch._dynamo.reset()


class CapturedStep:
    """The step as a CUDA graph over buffers of its own. A batch of another shape is captured anew, because longer sequences
    can be too many operations. Steps of all shapes share their memory: none needs what another left there.

    seconds  spent on compiling and capture so far
    """

    def __init__(self, cohort: Step) -> None:
        self.cohort = cohort
        self.graphs: dict[tuple[tuple[int, ...] | None, ...], _Graph] = {}
        self.pool: Any = None  # their memory
        self.seconds = 0.0
        self.said: dict[str, None] = {}  # for each shape "yes", or why it was not compiled

    @property
    def compiled(self) -> str:
        """ "yes" where steps of all shapes are compiled, or why none or some are not."""
        refused = [said for said in self.said if said != "yes"]
        if not refused:
            return "yes"
        return refused[0].replace("no:", "in part:", 1) if "yes" in self.said else refused[0]

    def __call__(self, *batch: Tensor | None) -> Tensor:
        shapes = tuple(None if t is None else tuple(t.shape) for t in batch)
        if shapes not in self.graphs:
            began = device_time.now()
            if not self.graphs:
                forget_compiled()
            self.graphs[shapes] = self._capture(batch)
            self.seconds += device_time.now() - began
        return self.graphs[shapes].replay(batch)

    def forget(self) -> None:
        """Capture anew from now on: the cohort has other members."""
        self.graphs.clear()
        self.pool = None

    @phase("capturing")
    def _capture(self, batch: tuple[Tensor | None, ...]) -> _Graph:
        memory = self.cohort.memory()
        before = [t.clone() for t in memory]
        buffers = [None if t is None else t.clone() for t in batch]
        self._prepare(buffers)
        for tensor, value in zip(memory, before, strict=True):
            tensor.copy_(value)
        graph, loss_N = torch.cuda.CUDAGraph(), torch.empty_like(self.cohort.bad_step, dtype=torch.float32)
        with torch.cuda.graph(graph, pool=self.pool, stream=_aside(self.cohort.device)):
            loss_N.copy_(self.cohort.update(*buffers))
        self.pool = graph.pool()
        torch.cuda.synchronize()
        return _Graph(graph, buffers, loss_N)

    @phase("compiling")
    def _prepare(self, buffers: list[Tensor | None]) -> None:
        """Compile the step and take a few; where the compiler fails, take them uncompiled."""
        said = self.cohort.compile(buffers)
        try:
            self._warm_up(buffers)
        except (torch._dynamo.exc.Unsupported, torch._dynamo.exc.BackendCompilerFailed) as error:
            said = f"no: {_cause(error)}"
            self.cohort.losses = self.cohort.member_losses
            self._warm_up(buffers)
        self.said[said] = None

    def _warm_up(self, buffers: list[Tensor | None]) -> None:
        side = _aside(self.cohort.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self.cohort.clock.zero_()
                self.cohort.update(*buffers)
        torch.cuda.current_stream().wait_stream(side)


def _cause(error: Exception) -> str:
    """One line of the compiler's message: the last error that it names, from which the others were raised, else the first
    line."""
    causes = re.findall(r"^[\w.]+(?:Error|Exception): .+", str(error), re.MULTILINE)
    return str(causes[-1]) if causes else str(error).partition("\n")[0]


@functools.cache
def _aside(device: torch.device) -> torch.cuda.Stream:
    """The stream of warm-up and capture. It is one for all, because cuBLAS keeps memory for every stream that called it."""
    return torch.cuda.Stream(device)


class _Graph:
    def __init__(self, graph: torch.cuda.CUDAGraph, buffers: list[Tensor | None], loss_N: Tensor) -> None:
        self.graph, self.buffers, self.loss_N = graph, buffers, loss_N

    def replay(self, batch: tuple[Tensor | None, ...]) -> Tensor:
        for buffer, value in zip(self.buffers, batch, strict=True):
            if buffer is not None and value is not None:
                buffer.copy_(value)
        self.graph.replay()
        return self.loss_N
