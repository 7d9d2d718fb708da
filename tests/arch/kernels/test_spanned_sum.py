"""Steps in the span of a few vectors: their sum is that of the matrices that they stand for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch.kernels import select
from recallmap.arch.kernels.benchmark import timing
from recallmap.arch.kernels.spanned_newton_schulz import spanned_newton_schulz
from recallmap.arch.kernels.spanned_sum import spanned_sum

NAMES = select.implementations("spanned_sum")


def example(**sizes: int) -> dict[str, Any]:
    shape = timing.Shape(**{"batch": 2, "time": 9, "heads": 3, "key_width": 7, "value_width": 5, **sizes})
    return timing.example("spanned_sum", "atlas", shape)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [4, 20])
def test_what_is_read_is_what_the_matrices_add_up_to(name: str, rows: int) -> None:
    """Steps of Newton-Schulz, h A_t with A_t = alpha_t A_{t-1} + P_t Q_t and P_t = U diag(x_t) D, made here."""
    inputs = example()
    generator = torch.Generator().manual_seed(1)
    u = torch.randn(2, 3, rows, 7, generator=generator, dtype=torch.float64)
    h = torch.randn(2, 9, 3, rows, generator=generator, dtype=torch.float64)
    x, d, alpha = inputs["x"], inputs["d"], inputs["log_decay"].exp()
    inputs["factor"], _ = spanned_newton_schulz(x, d, u)
    inputs["q"] = torch.einsum("bthr,bhrs->bths", h, u)
    a = torch.zeros(2, 3, rows, 5, dtype=torch.float64)
    read = []
    for t in range(9):
        p = u @ (x[:, t, ..., None] * d)
        a = alpha[:, t, :, None, None] * a + p @ inputs["factor"][:, t]
        read.append((h[:, t, :, None] @ a).squeeze(-2))
    dtype = torch.float32 if name == "fused" else torch.float64
    y, w = spanned_sum(**{n: z.to(dtype) for n, z in inputs.items()}, return_state=True, implementation=name)
    assert isinstance(w, Tensor)
    bound = 1e-4 if name == "fused" else 1e-9
    assert_close(y.double(), torch.stack(read, 1), rtol=bound, atol=bound)
    assert_close(u @ w.double(), a, rtol=bound, atol=bound)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("empty", ["batch", "time", "heads", "vectors", "columns"])
def test_of_nothing_nothing_is_read_and_the_state_stays(empty: str, name: str) -> None:
    axes = {"batch": 2, "time": 3, "heads": 2, "vectors": 4, "columns": 3} | {empty: 0}
    batch, time, heads, vectors, columns = axes.values()
    state = torch.randn(batch, heads, vectors, columns)
    x, factor = torch.ones(batch, time, heads, vectors), torch.ones(batch, time, heads, columns, columns)
    given = {"log_decay": torch.zeros(batch, time, heads), "initial_state": state, "return_state": True}
    y, w = spanned_sum(x, x, factor, torch.ones_like(state), **given, implementation=name)
    assert y.shape == (batch, time, heads, columns)
    assert not y.any()
    assert torch.equal(torch.as_tensor(w), state)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("x", r"x must be \[B, T, H, S\] and d \[B, H, S, C\], got"),
        ("q", "q has shape"),
        ("factor", "factor has shape"),
        ("d", "d has shape"),
        ("log_decay", "log_decay has shape"),
    ],
)
def test_shapes_that_do_not_fit_are_told(name: str, told: str) -> None:
    inputs = example()
    inputs[name] = (
        inputs[name][..., 0] if name == "x" else inputs[name][:, :2].repeat(1, 3, *[1] * (inputs[name].ndim - 2))
    )
    with pytest.raises(ValueError, match=f"spanned_sum: {told}"):
        spanned_sum(**inputs)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"value_width": 33}, "takes matrices of at most 32 columns, got 33"),
        ({"key_width": 65}, "takes at most 64 vectors, got 65"),
        ({}, "computes in fp32 at most"),
    ],
)
def test_what_the_kernels_cannot_hold_is_told(sizes: dict[str, int], told: str) -> None:
    inputs = example(**sizes)
    given = {n: x.float() for n, x in inputs.items()} if sizes else inputs
    with pytest.raises(ValueError, match=f"implementation 'fused' {told}; use 'chunked'"):
        spanned_sum(**given, implementation="fused")


@pytest.mark.parametrize("name", ["q", "x", "factor", "d"])
def test_what_has_twice_the_digits_is_not_rounded(name: str) -> None:
    inputs = {n: x if n == name else x.float() for n, x in example().items()}
    with pytest.raises(ValueError, match="implementation 'fused' computes in fp32 at most; use 'chunked'"):
        spanned_sum(**inputs, implementation="fused")
