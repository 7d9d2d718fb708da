"""Tensor cores for Triton's interpreter, memory that shows when nothing wrote it, and what kernels of one state owe."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from recallmap.arch import kernels
from recallmap.arch.kernels import select
from recallmap.arch.kernels.benchmark import timing
from recallmap.arch.kernels.benchmark.tolerance import Case, Of, attainable, error, tolerance


def _to_bf16(x: Any) -> Any:
    """fp32 to the upper 16 bits of it, to the nearest, ties to even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _from_bf16(x: Any) -> Any:
    return (np.ascontiguousarray(x).astype(np.uint32) << 16).view(np.float32)


def _as_tf32(x: Any) -> Any:
    """The 10 bits behind the point that a tensor core reads of fp32."""
    return (np.ascontiguousarray(x, dtype=np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _everything(op: str, inputs: dict[str, Any], initial: Tensor | None, **how: Any) -> dict[str, Tensor]:
    """Outputs, the final state, and the gradients of a random function of both by all that has one."""
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items() if name != "sign"}
    if initial is not None:
        leaves["initial_state"] = initial.detach().requires_grad_()
    o, final = getattr(kernels, op)(**(inputs | leaves), return_state=True, **how)
    generator = torch.Generator().manual_seed(3)
    weights = [torch.randn(x.shape, generator=generator).bfloat16().to(x) for x in (o, final)]
    gradients = torch.autograd.grad([o, final], [*leaves.values()], weights)
    return {"o": o, "final": final} | dict(zip(leaves, gradients, strict=True))


def assert_one_state_agrees(
    op: str, inputs: dict[str, Any], initial: Tensor | None, dtype: torch.dtype, case: Case = "random", **how: Any
) -> None:
    """The kernels of an op whose state is one tensor are its recurrence, with gradients or without. `how`: more arguments."""
    found = _everything(op, inputs, initial, implementation="fused", **how)
    exact = {name: x.double() for name, x in inputs.items()}
    expected = _everything(op, exact, None if initial is None else initial.double(), implementation="recurrent", **how)
    for name, x in found.items():
        of: Of = "output" if name in ("o", "final") else "gradient" if name in timing.CONTENT else "gate_gradient"
        per = (0, 1) if name in ("final", "initial_state") else (0, 2)
        allowed = max(tolerance(op, dtype, of=of, case=case), attainable(expected[name], x.dtype, per))
        assert error(x, expected[name], per) <= allowed, (name, x.shape)
    with torch.no_grad():
        alone, _ = getattr(kernels, op)(**inputs, initial_state=initial, implementation="fused", **how)
    assert torch.equal(alone, found["o"])


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory that nothing has written yet holds NaN."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter, on a CPU, with the digits that tensor cores keep. By itself it takes the bits of bf16 for whole
    numbers and computes in fp32 what is asked for in tf32. It stands in for a GPU where digits are in question, and only there:
    sums come in another order, and nothing is compiled."""
    tl = pytest.importorskip("triton.language")
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    cast, between = builder.cast_impl, builder.create_fp_to_fp

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        old, new = source.dtype.scalar, target.scalar
        if old == new or tl.bfloat16 not in (old, new):
            return cast(self, source, target)
        if old == tl.bfloat16:  # to anything by way of fp32, and from anything
            exact = handle(_from_bf16(source.data), tl.float32)
            return exact if new == tl.float32 else cast(self, exact, target)
        exact = source if old == tl.float32 else cast(self, source, _like(target, tl.float32))
        return handle(_to_bf16(exact.data), new)

    def _like(target: Any, scalar: Any) -> Any:
        return tl.block_type(scalar, target.shape) if target.is_block() else scalar

    def create_fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        if tl.bfloat16 in (source.dtype.scalar, target.scalar):
            return cast_impl(self, source, target)
        return between(self, source, target, rounding)

    def create_dot(self: Any, a: Any, b: Any, c: Any, precision: Any, _: Any) -> Any:
        x, y = a.data, b.data
        if a.dtype.scalar == tl.bfloat16:
            x, y = _from_bf16(x), _from_bf16(y)
        elif a.dtype.scalar == tl.float32 and str(precision).endswith("TF32"):
            x, y = _as_tf32(x), _as_tf32(y)
        return handle(np.matmul(x, y, dtype=np.float32) + c.data, c.dtype.scalar)

    monkeypatch.setattr(builder, "cast_impl", cast_impl)
    monkeypatch.setattr(builder, "create_fp_to_fp", create_fp_to_fp)
    monkeypatch.setattr(builder, "create_fp_ext", cast_impl)
    monkeypatch.setattr(builder, "create_fp_trunc", cast_impl)
    monkeypatch.setattr(builder, "create_dot", create_dot)
    why_not = select.why_not

    def lenient(op: str, name: str, *, dtype: torch.dtype, **case: Any) -> str | None:
        return why_not(op, name, dtype=torch.float16 if dtype == torch.bfloat16 else dtype, **case)

    monkeypatch.setattr(select, "why_not", lenient)


@pytest.fixture(scope="session")
def uninterpreted() -> Callable[..., str]:
    """A function that runs a script of Python with these words in a process of its own, where kernels are compiled and not
    interpreted, and gives what it printed. Skips without Triton."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}

    def run(script: str, *words: str, **more: str) -> str:
        told = subprocess.run(
            [sys.executable, "-c", script, *words],
            env=environment | more,
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode == 0, told.stderr
        return told.stdout

    return run
