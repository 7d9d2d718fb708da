"""Polynomial features: their dot product is a polynomial of the dot product."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch.kernels import select
from recallmap.arch.kernels.monomials import count_monomials, monomials

NAMES = select.implementations("monomials")
GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def features(x: Tensor, roots: Tensor, name: str = "chunked") -> Tensor:
    return monomials(x, roots, implementation=name)[0]


SIZES = [(1, 3), (3, 1), (4, 2), (3, 4), (16, 2), (1, 2), (4, 0)]  # width, degree


@pytest.mark.parametrize(
    ("name", "width", "degree"), [(n, *size) for n in NAMES for size in SIZES if n != "fused" or size[1] == 2]
)
def test_they_give_the_kernel_of_their_coefficients(name: str, width: int, degree: int) -> None:
    dtype = torch.float32 if name == "fused" else torch.float64
    x, y = drawn(2, 5, width, dtype=dtype)
    roots = drawn(degree + 1, dtype=dtype, seed=1)
    left, right = features(x, roots, name), features(y, roots, name)
    assert left.shape[-1] == count_monomials(width, degree) == math.comb(width + degree, degree)
    dot = (x * y).sum(-1)
    bound = 1e-4 if name == "fused" else 1e-10
    expected = torch.stack([roots[i] ** 2 * dot**i for i in range(degree + 1)]).sum(0)
    assert_close((left * right).sum(-1), expected, rtol=bound, atol=bound)


@pytest.mark.parametrize(("width", "degree"), [(1, 3), (3, 1), (4, 2), (3, 4), (2, 0)])
def test_their_derivative_is_that_of_their_values_for_members_too(width: int, degree: int) -> None:
    x = drawn(2, 3, width, dtype=torch.float64).requires_grad_()
    roots = drawn(2, degree + 1, dtype=torch.float64, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(features, (x, roots[0]))
    assert torch.autograd.gradcheck(torch.func.vmap(features), (x, roots))


@pytest.mark.parametrize(("width", "degree"), [(5, 3), (1, 4), (6, 2)])
def test_degrees_are_made_of_the_ones_below_in_the_order_of_their_variables(width: int, degree: int) -> None:
    x, roots = drawn(3, width, dtype=torch.float64), drawn(degree + 1, dtype=torch.float64, seed=1)
    assert_close(features(x, roots), features(x, roots, "recurrent"), rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("width", [1, 2, 3, 8, 15, 16, 17, 33, 64])
def test_a_kernel_finds_every_pair_of_variables(width: int, device: str) -> None:
    x, roots = drawn(7, width), drawn(3, seed=1)
    leaves = [t.to(device).requires_grad_() for t in (x, roots)]
    exact = [t.double().requires_grad_() for t in (x, roots)]
    y, z = features(*leaves, "fused"), features(*exact)
    slope = drawn(*z.shape, seed=2)
    found = [y, *torch.autograd.grad(y, leaves, slope.to(device))]
    expected = [z, *torch.autograd.grad(z, exact, slope.double())]
    for a, b in zip(found, expected, strict=True):
        assert (a.cpu() - b).norm() <= 1e-5 * b.norm()


def test_of_degree_one_they_are_the_vector_itself() -> None:
    x = drawn(3, 4)
    assert torch.equal(features(x, torch.tensor([0.0, 1.0]))[:, 1:], x)


@pytest.mark.parametrize("name", NAMES)
def test_of_nothing_there_are_none_and_no_slope(name: str) -> None:
    x, roots = torch.zeros(0, 2, 3, requires_grad=True), torch.ones(3, requires_grad=True)
    y = features(x, roots, name)
    assert y.shape == (0, 2, 10)
    assert not any(g.any() for g in torch.autograd.grad(y.sum(), (x, roots)))


@pytest.mark.parametrize(("width", "degree", "count"), [(16, 2, 153), (16, 3, 969), (64, 2, 2145), (64, 3, 47905)])
def test_their_number_is_that_of_the_paper(width: int, degree: int, count: int) -> None:
    assert count_monomials(width, degree) == count


@pytest.mark.parametrize(
    ("width", "degree", "told"),
    [(4, 3, "takes degree 2, got 3"), (65, 2, "takes vectors at most 64 wide, got 65")],
)
def test_what_the_kernel_does_not_take_is_told(width: int, degree: int, told: str) -> None:
    with pytest.raises(ValueError, match=f"implementation 'fused' {told}; use 'chunked'"):
        features(torch.zeros(1, width), torch.ones(degree + 1), "fused")


def test_vectors_of_no_variable_are_refused() -> None:
    with pytest.raises(ValueError, match="monomials: K must be at least 1, got 0"):
        features(torch.zeros(2, 0), torch.ones(3))


def test_roots_of_twice_the_digits_are_not_rounded() -> None:
    x, roots = torch.ones(1, 1), torch.tensor([1.0, 0.1, 0.0], dtype=torch.float64)
    with pytest.raises(ValueError, match="implementation 'fused' computes in fp32 at most; use 'chunked'"):
        features(x, roots, "fused")


def test_roots_of_no_degree_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"monomials: x must be \[..., K\] and roots \[p \+ 1\], got \[1, 2\] and \[0\]"
    ):
        features(torch.zeros(1, 2), torch.zeros(0))
