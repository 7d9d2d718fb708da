"""Time the implementations of an op side by side, after they agree.

An op that can be timed has a file `example.py` in its folder, with `VARIANTS` and `example(variant, generator, **sizes)`: its
arguments on random data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from recallmap.arch.kernels import select
from recallmap.arch.kernels.benchmark.peers import Peer, peer
from recallmap.arch.kernels.benchmark.tolerance import Of, attainable, error, tolerance

CONTENT = ("v", "x", "q", "k", "a", "b", "gate", "added")


REPLAYS = 20  # of a recorded call, in one timing
PEERS_MAY = 4.0  # times the error that is allowed to ours; a peer's row says how much it is
CHECKED = (32, 256)  # sequences and tokens of a shape that agreement is checked on, as tolerances were measured


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


# The regime of small models, and two of language models: S1 and S2 are MAD's, with 32 and 128 sequences (or 4 times 32).
SHAPES = {
    "S1": Shape(batch=32, time=128, heads=8, key_width=16, value_width=16),
    "S2": Shape(batch=128, time=128, heads=8, key_width=16, value_width=16),
    "S4": Shape(batch=64, time=256, heads=2, key_width=64, value_width=64),
    "L1": Shape(batch=4, time=2048, heads=8, key_width=128, value_width=128),
    "L2": Shape(batch=1, time=8192, heads=16, key_width=128, value_width=128),
}


class Disagreement(ValueError):
    """An implementation that does not compute its op. `backward`: its outputs agree, and its gradients do not."""

    def __init__(self, said: str, *, backward: bool) -> None:
        super().__init__(said)
        self.backward = backward


def variants(op: str) -> tuple[str, ...]:
    """The kinds of inputs that the op can be timed on, the default first. Raises ValueError where there are none."""
    select.implementations(op)
    if find_spec(f"recallmap.arch.kernels.{op}.example") is None:
        raise ValueError(f"op {op!r} has no example inputs; give it arch/kernels/{op}/example.py")
    names: tuple[str, ...] = import_module(f"recallmap.arch.kernels.{op}.example").VARIANTS
    return names


def example(op: str, variant: str, shape: Shape, *, seed: int = 0) -> dict[str, Any]:
    """Random arguments of an op in fp64, on the CPU. Raises ValueError on a variant that it does not have."""
    if variant not in variants(op):
        raise ValueError(f"op {op!r} has no variant {variant!r}; there are {', '.join(variants(op))}")
    generator = torch.Generator().manual_seed(seed)
    inputs: dict[str, Any] = import_module(f"recallmap.arch.kernels.{op}.example").example(
        variant, generator, **asdict(shape)
    )
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
    beside: bool = False,
    **more: Any,
) -> list[dict[str, Any]]:
    """One row a shape and implementation: the sizes, the error as a part of what is allowed, and medians in milliseconds;
    on a GPU those of replays of a CUDA graph, and the most memory a call takes besides its inputs.

    `implementations` None takes all that can serve; `beside` times other people's kernels, too (benchmark.peers); `more`
    are arguments of the op. Raises Disagreement, and times nothing more, where one differs from `recurrent` in fp64 by more
    than `benchmark.tolerance` allows; ValueError where one cannot serve. A peer that disagrees, or refuses, is not timed, but
    forward where its outputs agree: its row says why.
    """
    chosen = variant or variants(op)[0]
    device = torch.device(device)
    names = _serving(op, device, dtype) if implementations is None else implementations
    rows = []
    for shape in shapes:
        inputs = _on(example(op, chosen, shape, seed=seed) | more, dtype, device)
        for name in names:
            select.choose(op, device=device, dtype=dtype, wanted=name, sizes=asdict(shape))
        shares = {name: disagreement(op, name, inputs) for name in names}

        def row(name: str, share: float, forward: Callable[[], object], both: Callable[[], object]) -> dict[str, Any]:
            return (
                {"op": op, "variant": chosen, "implementation": name, **asdict(shape)}  # noqa: B023 - called at once
                | {"dtype": str(dtype).removeprefix("torch."), "device": _named(device)}
                | {"error_share": share}
                | {"forward_ms": _milliseconds(forward, device, repeats, warm_up)}
                | {"forward_backward_ms": _milliseconds(both, device, repeats, warm_up)}
                | {"memory_mib": _mebibytes(both, device), "note": ""}
            )

        for name in names:
            rows.append(row(name, shares[name], *_calls(partial(_run, op, name), inputs)))
        other = peer(op, chosen) if beside else None
        if other is not None:
            rows.append(_beside(op, other, inputs, row))
    return rows


def _beside(
    op: str,
    other: tuple[str, Peer],
    inputs: dict[str, Any],
    row: Callable[..., dict[str, Any]],
) -> dict[str, Any]:
    """The row of a peer, forward alone where its gradients disagree. Whatever keeps it from running is its own affair, and is
    said."""
    name, call = other

    def nothing() -> None:
        return None

    try:
        share = _largest_error(op, f"peer {name!r}", call, inputs, PEERS_MAY)
        return row(name, share, *_calls(call, inputs))
    except Exception as error:
        unknown, why = float("nan"), str(error).strip().partition("\n")[0][:200]
        if isinstance(error, Disagreement) and error.backward:
            forward, _ = _calls(call, inputs)
            untimed = {"forward_backward_ms": unknown, "memory_mib": unknown, "note": why}
            return row(name, unknown, forward, nothing) | untimed
        return row(name, unknown, nothing, nothing) | {
            "forward_ms": unknown,
            "forward_backward_ms": unknown,
            "note": why,
        }


def disagreement(op: str, implementation: str, inputs: dict[str, Any]) -> float:
    """The largest error of outputs and gradients, as a part of what is allowed. Raises Disagreement above 1.

    Only the first sequences and tokens are compared, but the implementation gets all, because their number may decide which
    of its kernels serve. Later tokens have no part in earlier outputs, nor, without a weight, in their gradients.
    """
    return _largest_error(op, f"implementation {implementation!r}", partial(_run, op, implementation), inputs, 1.0)


def _largest_error(op: str, who: str, call: Peer, inputs: dict[str, Any], most: float) -> float:
    """As `disagreement`, of any call; raises above `most` times what is allowed."""
    dtype, device = _values(inputs).dtype, _values(inputs).device
    names = [name for name, x in inputs.items() if _differentiable(name, x)]
    few, form = _first(inputs), _values(inputs).shape[:2]

    def weighed(o: Tensor) -> Tensor:
        weights = torch.zeros_like(o)
        part = _cut(weights, o.shape[:2])
        drawn = torch.randn(part.shape, generator=torch.Generator().manual_seed(1))
        part.copy_(drawn.to(device, dtype))
        return weights

    results = _results(call, inputs, names, weighed)
    references = _results(partial(_run, op, "recurrent"), _mapped(Tensor.double, few), names, weighed)
    share = 0.0
    told = ["o", *(name for name in names for _ in pytree.tree_leaves(inputs[name]))]
    for name, whole, reference in zip(told, results, references, strict=True):
        of: Of = "output" if name == "o" else "gradient" if name in CONTENT else "gate_gradient"
        per = (0, 2) if whole.ndim > 2 and whole.shape[:2] == form else (0,)
        x = _cut(whole, form)
        allowed = most * max(tolerance(op, dtype, of=of), attainable(reference, x.dtype, per))
        found = error(x, reference, per)
        if not found <= allowed:
            what = "outputs" if name == "o" else f"gradients of {name}"
            raise Disagreement(
                f"{who} of {op!r} in {dtype}: {what} differ from 'recurrent' in fp64 by {found:.1e}, allowed are "
                f"{allowed:.0e}; a wrong result is not timed",
                backward=of != "output",
            )
        share = max(share, most * found / allowed)
    return share


def _serving(op: str, device: torch.device, dtype: torch.dtype) -> list[str]:
    """The implementations that run at full speed, without interpreted kernels."""
    names = [name for name in select.implementations(op) if not select.why_not(op, name, device=device, dtype=dtype)]
    return [name for name in names if name != "fused" or device.type == "cuda"]


def _differentiable(name: str, x: Any) -> bool:
    leaves = pytree.tree_leaves(x)  # a memory's weights are several
    return name != "sign" and all(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in leaves)


def _mapped(change: Callable[[Tensor], Tensor], inputs: Any) -> Any:
    return pytree.tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, inputs)


def _on(inputs: dict[str, Any], dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Content in `dtype`; gates and constants never below fp32."""
    gates = torch.float64 if dtype == torch.float64 else torch.float32
    return {
        name: _mapped(partial(Tensor.to, device=device, dtype=dtype if name in CONTENT else gates), x)
        for name, x in inputs.items()
    }


def _values(inputs: dict[str, Any]) -> Tensor:
    """The input that has the tokens that outputs have."""
    values: Tensor = inputs["v"] if "v" in inputs else inputs["x"]
    return values


def _run(op: str, implementation: str, inputs: dict[str, Any]) -> Tensor:
    door = getattr(import_module(f"recallmap.arch.kernels.{op}"), op)
    return joined(door(**inputs, implementation=implementation)[0])


def joined(outputs: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Outputs [B, T, H, V]; where an op gives several, all of them side by side."""
    return outputs if isinstance(outputs, Tensor) else torch.cat(outputs, -1)


def _first(inputs: dict[str, Any]) -> dict[str, Any]:
    """The first sequences and tokens alone."""
    form = _values(inputs).shape[:2]
    return {name: _cut(x, form) if isinstance(x, Tensor) else x for name, x in inputs.items()}


def _cut(x: Tensor, form: Sequence[int]) -> Tensor:
    """x of the first sequences, and of their first tokens where it has tokens, if it is of `form` (batch, time) at all."""
    sequences, tokens = CHECKED
    if x.ndim <= 2 or x.shape[0] != form[0]:
        return x
    return x[:sequences, :tokens] if x.shape[1] == form[1] else x[:sequences]


def _results(call: Peer, inputs: dict[str, Any], names: list[str], weighed: Callable[[Tensor], Tensor]) -> list[Tensor]:
    leaves = {name: _mapped(lambda x: x.detach().requires_grad_(), inputs[name]) for name in names}
    o = call(inputs | leaves)
    return [o, *torch.autograd.grad(o, pytree.tree_leaves(leaves), weighed(o))]


def prepared(
    op: str, implementation: str, variant: str, shape: Shape, *, dtype: torch.dtype, device: torch.device, **more: Any
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Calls of an op on random inputs, none of them made yet: forward alone, and with gradients. `more` are its arguments."""
    inputs = _on(example(op, variant, shape) | more, dtype, device)
    return _both(partial(_run, op, implementation), inputs, torch.ones_like)


def _calls(call: Peer, inputs: dict[str, Any]) -> tuple[Callable[[], object], Callable[[], object]]:
    """The same of any call, with the derivative by random weights, for which it is called once."""
    with torch.no_grad():
        weights = torch.randn_like(call(inputs))
    return _both(call, inputs, lambda _: weights)


def _both(
    call: Peer, inputs: dict[str, Any], weighed: Callable[[Tensor], Tensor]
) -> tuple[Callable[[], object], Callable[[], object]]:
    names = [name for name, x in inputs.items() if _differentiable(name, x)]

    def forward() -> object:
        with torch.no_grad():
            return call(inputs)

    return forward, lambda: _results(call, inputs, names, weighed)


def _milliseconds(call: Callable[[], object], device: torch.device, repeats: int, warm_up: int) -> float:
    for _ in range(warm_up):
        call()
    if device.type == "cuda":
        return _replayed(call, repeats)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return median(times)


def _replayed(call: Callable[[], object], repeats: int) -> float:
    """Median milliseconds of a call recorded as a CUDA graph: launches by the host do not count."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        kept = call()
    graph.replay()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / REPLAYS)
    del kept
    return median(times)


def _named(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _mebibytes(call: Callable[[], object], device: torch.device) -> float:
    """Peak device memory of a call, beyond what is held already; nan where the device does not report it."""
    if device.type != "cuda":
        return float("nan")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20
