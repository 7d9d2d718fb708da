"""Which implementation of an op may serve, and why not the others.

An op is a folder here that holds `recurrent.py`. Its implementations are the modules `recurrent`, `chunked`, `fused` and
`library` in it, a file or a folder each, with a function of the same name. All implementations of an op have one signature. A
module that is there is found: nothing is entered anywhere.

`library` computes the op by another library's kernel. It says where that is faster than ours, and serves there or where it is
asked for by name: `faster(*, device, dtype, sizes) -> bool`.

`fused` may say what it cannot do: `why_not(*, device, dtype, differentiable, sizes) -> str | None`. It is imported where a
CUDA tensor asks for it and nowhere else, because it needs Triton. Under Triton's interpreter (TRITON_INTERPRET=1) it also
serves whoever asks for it by name on a CPU: slow, and right but for bf16.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PREFERENCE = ("library", "fused", "chunked", "recurrent")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton looks when it is imported, we when this is
AHEAD = False  # True while kernels are compiled for a GPU that is not here, and not run: see `ahead`
_TRITON = find_spec("triton") is not None
_PACKAGE = "recallmap.arch.kernels"


def _found() -> dict[str, tuple[str, ...]]:
    folders = sorted(path.parent for path in Path(__file__).parent.glob("*/recurrent.py"))
    return {folder.name: tuple(name for name in PREFERENCE if _holds(folder, name)) for folder in folders}


def _holds(folder: Path, name: str) -> bool:
    """True where a folder holds the module `name`, as a file or as a folder."""
    return (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists()


_FOUND = _found()
# Of who asks for a record of choices, in this thread and those that it shares its work among.
_WITNESSES: ContextVar[tuple[dict[str, str], ...]] = ContextVar("witnesses", default=())
_LOADED: dict[tuple[str, str], Any] = {}


def ops() -> tuple[str, ...]:
    """The names of all ops."""
    return tuple(_FOUND)


def implementations(op: str) -> tuple[str, ...]:
    """The names of an op's implementations, the most preferred first. Raises ValueError on an unknown op."""
    if op not in _FOUND:
        raise ValueError(f"there is no op {op!r}; there are {', '.join(_FOUND)}")
    return _FOUND[op]


def choose(
    op: str,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    wanted: str = "auto",
    differentiable: bool = True,
    sizes: Mapping[str, int] | None = None,
) -> str:
    """The implementation that serves: `wanted`, or for "auto" the most preferred one that can.

    `sizes` may tell batch, time, heads, key_width, value_width, and what else an op's `library` asks for; one token ("time" 1)
    goes to `recurrent` rather than to `chunked`. Raises ValueError where `wanted` cannot serve, with the reason and what can.
    """
    order = PREFERENCE if (sizes or {}).get("time") != 1 else ("library", "fused", "recurrent", "chunked")
    reasons = {
        name: why_not(op, name, device=device, dtype=dtype, differentiable=differentiable, sizes=sizes)
        for name in order
        if name in implementations(op) or name == wanted
    }
    if wanted not in order and wanted != "auto":
        raise ValueError(f"there is no implementation {wanted!r}; there are {', '.join(implementations(op))} and auto")
    serving = [name for name, reason in reasons.items() if reason is None]
    if wanted == "auto":
        return next(name for name in serving if _unasked(op, name, torch.device(device), dtype, sizes or {}))
    if wanted in serving:
        return wanted
    ours = [name for name in serving if name != "library"]
    instead = " or ".join(repr(name) for name in [*ours[:1], "auto"])
    raise ValueError(f"implementation {wanted!r} {reasons[wanted]}; use {instead}")


def why_not(
    op: str,
    name: str,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    differentiable: bool = True,
    sizes: Mapping[str, int] | None = None,
) -> str | None:
    """Why implementation `name` of `op` cannot serve, None where it can."""
    device = torch.device(device)
    if name not in implementations(op):
        return f"of op {op!r} does not exist"
    if name != "fused":
        return None
    if device.type != "cuda" and not (INTERPRETED or AHEAD):
        return f"needs a CUDA tensor, got one on {device}"
    if not _TRITON:
        return "needs Triton, which is not installed (pip install 'recallmap[triton]')"
    if device.type != "cuda" and dtype == torch.bfloat16 and not AHEAD:
        return "is wrong in bf16 under Triton's interpreter"
    limits: Callable[..., str | None] | None = getattr(_module(op, name), "why_not", None)
    return limits and limits(device=device, dtype=dtype, differentiable=differentiable, sizes=sizes or {})


def _unasked(op: str, name: str, device: torch.device, dtype: torch.dtype, sizes: Mapping[str, int]) -> bool:
    """True where an implementation that can serve does so without being asked for by name."""
    if name == "library":
        return bool(_module(op, name).faster(device=device, dtype=dtype, sizes=sizes))
    return name != "fused" or device.type == "cuda" or AHEAD


def fuses(x: Tensor) -> bool:
    """True where a norm, the middle of an MLP or a rotation of x is better one op: on a GPU, and not under the compiler, which
    makes one of it and its neighbours."""
    return (x.is_cuda or AHEAD) and _TRITON and not torch.compiler.is_compiling()


@contextmanager
def record_choices() -> Iterator[dict[str, str]]:
    """Within it, the mapping it gives fills with every op that is called and the implementation that served; where several
    did ("chunked, fused": one may serve the gradient that another cannot take), with all in order."""
    chosen: dict[str, str] = {}
    before = _WITNESSES.get()
    _WITNESSES.set((*before, chosen))
    try:
        yield chosen
    finally:
        _WITNESSES.set(before)


def load(op: str, name: str) -> Callable[..., Any]:
    """The function that is implementation `name` of `op`.

    It is imported when it is first asked for, which torch.compile cannot follow: call an op once before compiling it.
    """
    if not torch.compiler.is_compiling():  # what is compiled was called as it is before
        for chosen in _WITNESSES.get():
            before = chosen.get(op, name)
            chosen[op] = before if name in before.split(", ") else f"{before}, {name}"
    serving: Callable[..., Any] = getattr(_module(op, name), name)
    return serving


def _module(op: str, name: str) -> Any:
    if (op, name) not in _LOADED:
        _LOADED[op, name] = import_module(f"{_PACKAGE}.{op}.{name}")
    return _LOADED[op, name]
