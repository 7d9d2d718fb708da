"""Polynomial features: their dot product is a polynomial of the dot product."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from recallmap.arch.parts.poly import PolyFeatures, PolySketch


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
