"""Polynomial features: their dot product is a polynomial of the dot product."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from arch.parts.poly import PolyFeatures, PolySketch, count_monomials, poly_features


@pytest.mark.parametrize(("key_dim", "degree"), [(1, 3), (3, 1), (4, 2), (3, 4), (16, 2)])
def test_monomials_give_the_kernel_of_their_coefficients(key_dim: int, degree: int) -> None:
    x, y = torch.randn(2, 5, key_dim, dtype=torch.float64)
    roots = torch.randn(degree + 1, dtype=torch.float64)
    left, right = poly_features(x, roots), poly_features(y, roots)
    assert left.shape[-1] == count_monomials(key_dim, degree) == math.comb(key_dim + degree, degree)
    dot = (x * y).sum(-1)
    assert_close((left * right).sum(-1), sum(roots[i] ** 2 * dot**i for i in range(degree + 1)))


@pytest.mark.parametrize(("key_dim", "degree"), [(1, 3), (3, 1), (4, 2), (3, 4)])
def test_their_derivative_is_that_of_their_values_for_members_too(key_dim: int, degree: int) -> None:
    x = torch.randn(2, 3, key_dim, dtype=torch.float64, requires_grad=True)
    roots = torch.randn(2, degree + 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(poly_features, (x, roots[0]))
    assert torch.autograd.gradcheck(torch.func.vmap(poly_features), (x, roots))


def test_of_degree_one_they_are_the_vector_itself() -> None:
    x = torch.randn(3, 4)
    assert torch.equal(poly_features(x, torch.tensor([0.0, 1.0]))[:, 1:], x)


@pytest.mark.parametrize(("key_dim", "degree", "count"), [(16, 2, 153), (16, 3, 969), (64, 2, 2145), (64, 3, 47905)])
def test_their_number_is_that_of_the_paper(key_dim: int, degree: int, count: int) -> None:
    assert count_monomials(key_dim, degree) == count


def test_coefficients_start_as_those_of_the_exponential_and_are_learned() -> None:
    part = PolyFeatures(3)
    assert_close(part.coefficients(), torch.tensor([1, 1, 1 / 2, 1 / 6]))
    x = torch.nn.functional.normalize(torch.randn(7, 4), dim=-1)
    assert_close(part(x).square().sum(-1), part.energy().expand(7))
    part(x).sum().backward()
    assert part.roots.grad is not None
    assert (part.roots.grad != 0).all()


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_a_sketch_is_its_power_on_average_and_never_negative(degree: int) -> None:
    torch.manual_seed(0)
    x, y = torch.nn.functional.normalize(torch.randn(2, 8, 4), dim=-1)
    sketches = [PolySketch(4, degree, 128) for _ in range(64)]
    half = torch.stack([(sketch.root(x) * sketch.root(y)).sum(-1) for sketch in sketches])
    expected = (x * y).sum(-1) ** (degree // 2)
    noise = half.std(0) / 8  # of the mean over 64 sketches
    assert ((half.mean(0) - expected).abs() <= 4 * noise + 1e-6).all()
    assert noise.max() < 0.05
    small = PolySketch(4, degree, 3)
    features = small(torch.cat([x, y]))
    assert features.shape[-1] == PolySketch.count(4, degree, 3)
    assert (features @ features.T).min() >= -1e-6
