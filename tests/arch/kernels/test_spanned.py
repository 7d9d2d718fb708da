"""Matrices in the span of a few outer products: what each token adds up."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch.kernels import select
from recallmap.arch.kernels.benchmark import timing
from recallmap.arch.kernels.spanned import spanned

NAMES = select.implementations("spanned")


def example(variant: str = "atlas", **sizes: int) -> dict[str, Any]:
    shape = timing.Shape(**{"batch": 2, "time": 9, "heads": 3, "key_width": 7, "value_width": 5, **sizes})
    return timing.example("spanned", variant, shape)


def made(name: str, inputs: dict[str, Any]) -> Tensor:
    """In fp32 where a kernel computes, with memory that shows when nothing wrote it."""
    dtype = torch.float32 if name == "fused" else torch.float64
    return spanned(**{n: x.to(dtype) for n, x in inputs.items()}, implementation=name)[0].double()


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("name", NAMES)
def test_a_token_has_the_outer_products_that_it_weighs(name: str) -> None:
    inputs = example("alone")
    inputs["x"] = torch.zeros_like(inputs["x"])
    inputs["x"][:, 4, 1, 2], inputs["x"][:, 4, 1, 6] = 2.0, -3.0
    p = made(name, inputs)
    u, d = inputs["u"][:, 1], inputs["d"][:, 1]
    expected = 2 * u[:, 2, :, None] * d[:, 2, None] - 3 * u[:, 6, :, None] * d[:, 6, None]
    assert_close(p[:, 4, 1], expected, rtol=1e-5, atol=1e-5)
    p[:, 4, 1] = 0
    assert not p.any()


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("name", NAMES)
def test_what_stood_ahead_is_slowed_and_added(name: str) -> None:
    inputs = example()
    both = made(name, inputs)
    alone = made(name, {n: inputs[n] for n in ("x", "d", "u")})
    assert_close(both - alone, inputs["slowed"][..., None, None] * inputs["p"][:, None], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("variant", ["atlas", "alone"])
@pytest.mark.parametrize(("rows", "columns", "time"), [(16, 16, 16), (1, 32, 5), (32, 3, 63), (32, 32, 1)])
def test_a_kernel_loses_no_more_than_fp32_does(rows: int, columns: int, time: int, variant: str, device: str) -> None:
    inputs = {n: x.float() for n, x in example(variant, time=time, key_width=rows, value_width=columns).items()}
    signal = torch.randn(2, time, 3, rows, columns, generator=torch.Generator().manual_seed(1))

    def results(name: str, **cast: Any) -> list[Tensor]:
        leaves = {n: x.to(**cast).requires_grad_() for n, x in inputs.items()}
        p, _ = spanned(**leaves, implementation=name)
        return [p, *torch.autograd.grad(p, list(leaves.values()), signal.to(p))]

    exact = results("recurrent", dtype=torch.float64)
    for x, y, z in zip(results("fused", device=device), results("chunked", device="cpu"), exact, strict=True):
        assert (x.cpu() - z).norm() <= max(1e-6 * z.norm(), 4 * (y - z).norm())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("empty", ["batch", "time", "heads", "vectors", "rows", "columns"])
def test_of_nothing_only_what_stood_ahead_is_made(empty: str, name: str) -> None:
    axes = {"batch": 2, "time": 3, "heads": 2, "vectors": 4, "rows": 5, "columns": 3} | {empty: 0}
    batch, time, heads, vectors, rows, columns = axes.values()
    x, slowed = torch.ones(batch, time, heads, vectors), torch.ones(batch, time, heads)
    d, u = torch.ones(batch, heads, vectors, columns), torch.ones(batch, heads, vectors, rows)
    p = torch.randn(batch, heads, rows, columns)
    made, _ = spanned(x, d, u, slowed=slowed, p=p, implementation=name)
    assert made.shape == (batch, time, heads, rows, columns)
    assert torch.equal(made, p[:, None].expand_as(made))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("x", r"x must be \[B, T, H, S\], d \[B, H, S, C\] and u \[B, H, S, R\], got"),
        ("d", "d has shape"),
        ("u", "u has shape"),
        ("slowed", "slowed has shape"),
        ("p", "p has shape"),
    ],
)
def test_shapes_that_do_not_fit_are_told(name: str, told: str) -> None:
    inputs = example()
    inputs[name] = inputs[name][..., 0] if name == "x" else torch.cat([inputs[name]] * 2, 1)
    with pytest.raises(ValueError, match=f"spanned: {told}"):
        spanned(**inputs)


@pytest.mark.parametrize("name", ["slowed", "p"])
def test_what_stood_ahead_is_not_given_by_half(name: str) -> None:
    inputs = example()
    del inputs[name]
    with pytest.raises(ValueError, match="spanned: slowed and p are given together, or neither is"):
        spanned(**inputs)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"key_width": 33, "value_width": 5}, "takes at most 32 rows and columns, got 33 x 5"),
        ({"key_width": 5, "value_width": 33}, "takes at most 32 rows and columns, got 5 x 33"),
        ({}, "computes in fp32 at most"),
    ],
)
def test_what_the_kernels_cannot_hold_is_told(sizes: dict[str, int], told: str) -> None:
    inputs = example(**sizes)
    given = {n: x.float() for n, x in inputs.items()} if sizes else inputs
    with pytest.raises(ValueError, match=f"implementation 'fused' {told}; use 'chunked'"):
        spanned(**given, implementation="fused")


def test_more_vectors_than_the_kernels_hold_are_told() -> None:
    x, d, u = torch.ones(1, 1, 1, 65), torch.ones(1, 1, 65, 2), torch.ones(1, 1, 65, 2)
    with pytest.raises(ValueError, match="implementation 'fused' takes at most 64 vectors, got 65; use 'chunked'"):
        spanned(x, d, u, implementation="fused")


@pytest.mark.parametrize("name", ["x", "d", "u", "slowed", "p"])
def test_what_has_twice_the_digits_is_not_rounded(name: str) -> None:
    inputs = {n: x if n == name else x.float() for n, x in example().items()}
    with pytest.raises(ValueError, match="implementation 'fused' computes in fp32 at most; use 'chunked'"):
        spanned(**inputs, implementation="fused")
