"""Time the implementations of an op side by side, after they agree.

An op that can be timed has a file `example.py` in its folder, with `VARIANTS` and `example(variant, generator, **sizes)`: its
arguments on random data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from torch import Tensor

from arch.kernels import select
from arch.kernels.tolerance import Of, error, tolerance

CONTENT = ("v", "x", "q", "k", "a", "b")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of one timing."""

    batch: int = 32
    time: int = 64
    heads: int = 2
    key_width: int = 32
    value_width: int = 32

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")


class Disagreement(ValueError):
    """An implementation that does not compute its op."""


def variants(op: str) -> tuple[str, ...]:
    """The kinds of inputs that the op can be timed on, the default first. Raises ValueError where there are none."""
    select.implementations(op)
    if find_spec(f"arch.kernels.{op}.example") is None:
        raise ValueError(f"op {op!r} has no example inputs; give it arch/kernels/{op}/example.py")
    names: tuple[str, ...] = import_module(f"arch.kernels.{op}.example").VARIANTS
    return names


def example(op: str, variant: str, shape: Shape, *, seed: int = 0) -> dict[str, Any]:
    """Random arguments of an op in fp64, on the CPU. Raises ValueError on a variant that it does not have."""
    if variant not in variants(op):
        raise ValueError(f"op {op!r} has no variant {variant!r}; there are {', '.join(variants(op))}")
    generator = torch.Generator().manual_seed(seed)
    inputs: dict[str, Any] = import_module(f"arch.kernels.{op}.example").example(variant, generator, **asdict(shape))
    return inputs


def bench(
    op: str,
    shapes: Sequence[Shape],
    *,
    variant: str | None = None,
    implementations: Sequence[str] | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    repeats: int = 10,
    warm_up: int = 3,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """One row a shape and implementation: the sizes, the error as a part of what is allowed, and medians in milliseconds.

    `implementations` None takes all that can serve. Raises Disagreement, and times nothing more, where one differs from
    `recurrent` in fp64 by more than `arch.kernels.tolerance` allows; ValueError where one cannot serve.
    """
    chosen = variant or variants(op)[0]
    device = torch.device(device)
    names = _serving(op, device, dtype) if implementations is None else implementations
    rows = []
    for shape in shapes:
        inputs = _on(example(op, chosen, shape, seed=seed), dtype, device)
        for name in names:
            select.choose(op, device=device, dtype=dtype, wanted=name, sizes=asdict(shape))
        shares = {name: disagreement(op, name, inputs) for name in names}
        for name in names:
            forward, both = _calls(op, name, inputs)
            rows.append(
                {"op": op, "variant": chosen, "implementation": name, **asdict(shape)}
                | {"dtype": str(dtype).removeprefix("torch."), "device": str(device)}
                | {"error_share": shares[name]}
                | {"forward_ms": _milliseconds(forward, device, repeats, warm_up)}
                | {"forward_backward_ms": _milliseconds(both, device, repeats, warm_up)}
            )
    return rows


def disagreement(op: str, implementation: str, inputs: dict[str, Any]) -> float:
    """The largest error of outputs and gradients, as a part of what is allowed. Raises Disagreement above 1."""
    dtype, device = _values(inputs).dtype, _values(inputs).device
    names = [name for name, x in inputs.items() if _differentiable(name, x)]
    exact = {name: x.double() if isinstance(x, Tensor) else x for name, x in inputs.items()}
    weights = torch.randn(_values(inputs).shape, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    results = _results(op, implementation, inputs, names, weights)
    references = _results(op, "recurrent", exact, names, weights.double())
    share = 0.0
    for name, x, reference in zip(["o", *names], results, references, strict=True):
        of: Of = "output" if name == "o" else "gradient" if name in CONTENT else "gate_gradient"
        allowed, found = tolerance(op, dtype, of=of), error(x, reference, (0, 2) if x.ndim > 2 else (0,))
        if not found <= allowed:
            what = "outputs" if name == "o" else f"gradients of {name}"
            raise Disagreement(
                f"implementation {implementation!r} of {op!r} in {dtype}: {what} differ from 'recurrent' in fp64 by "
                f"{found:.1e}, allowed are {allowed:.0e}; a wrong result is not timed"
            )
        share = max(share, found / allowed)
    return share


def _serving(op: str, device: torch.device, dtype: torch.dtype) -> list[str]:
    return [name for name in select.implementations(op) if not select.why_not(op, name, device=device, dtype=dtype)]


def _differentiable(name: str, x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and name != "sign"


def _on(inputs: dict[str, Any], dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Content in `dtype`; gates and constants never below fp32."""
    gates = torch.float64 if dtype == torch.float64 else torch.float32
    return {
        name: x.to(device, dtype if name in CONTENT else gates) if isinstance(x, Tensor) else x
        for name, x in inputs.items()
    }


def _values(inputs: dict[str, Any]) -> Tensor:
    """The input that outputs are shaped like."""
    values: Tensor = inputs["v"] if "v" in inputs else inputs["x"]
    return values


def _run(op: str, implementation: str, inputs: dict[str, Any]) -> Tensor:
    door = getattr(import_module(f"arch.kernels.{op}"), op)
    o: Tensor = door(**inputs, implementation=implementation)[0]
    return o


def _results(op: str, implementation: str, inputs: dict[str, Any], names: list[str], weights: Tensor) -> list[Tensor]:
    leaves = {name: inputs[name].detach().requires_grad_() for name in names}
    o = _run(op, implementation, inputs | leaves)
    return [o, *torch.autograd.grad(o, list(leaves.values()), weights)]


def _calls(op: str, implementation: str, inputs: dict[str, Any]) -> tuple[Callable[[], object], Callable[[], object]]:
    names = [name for name, x in inputs.items() if _differentiable(name, x)]
    weights = torch.ones_like(_values(inputs))

    def forward() -> object:
        with torch.no_grad():
            return _run(op, implementation, inputs)

    def both() -> object:
        return _results(op, implementation, inputs, names, weights)

    return forward, both


def _milliseconds(call: Callable[[], object], device: torch.device, repeats: int, warm_up: int) -> float:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(warm_up):
        call()
    times = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        call()
        wait()
        times.append(1e3 * (time.perf_counter() - start))
    return median(times)
