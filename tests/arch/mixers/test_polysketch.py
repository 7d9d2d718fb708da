"""PolySketchFormer: linear attention that sketches a power of attention."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from recallmap.arch.mixers.mixer import StateSize
from recallmap.arch.mixers.polysketch import PolySketchFormer


@pytest.mark.parametrize("normalize", [True, False])
def test_of_degree_two_it_is_attention_by_squares(normalize: bool) -> None:
    torch.manual_seed(0)
    module = PolySketchFormer(heads=2, degree=2, normalize=normalize).build(8).double()
    x = torch.randn(1, 9, 8, dtype=torch.float64)
    q, k, v, _ = module.get_submodule("qkv")(x, None)
    q, k = (F.layer_norm(z, (4,)) / 2 for z in (q, k))
    scores = torch.einsum("bthk,bshk->bhts", q, k).square().tril()
    if normalize:
        scores = scores / (1 + scores.sum(-1, keepdim=True))
    o = torch.einsum("bhts,bshv->bthv", scores, v)
    assert_close(module(x)[0], module.get_submodule("out")(o.flatten(-2)))


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_its_size_is_that_of_the_table(degree: Literal[2, 4, 8]) -> None:
    d, h, k, v, r = 64, 4, 16, 16, 8
    spec = PolySketchFormer(heads=h, degree=degree, sketch=r)
    features = k * k if degree == 2 else r * r
    assert spec.state_size(d, 1000) == StateSize(h * features * (v + 1))
    sketches = {2: 0, 4: 2 * k * r, 8: 4 * k * r + 2 * r * r}[degree]
    assert sum(p.numel() for p in spec.build(d).parameters()) == 2 * d * h * (k + v) + sketches
    around = 2 * d * h * (2 * k + 2 * v)
    assert spec.flops(d, 1000) == around + h * (4 * sketches + 2 * features + 4 * features * (v + 1))


def test_an_odd_power_is_refused() -> None:
    with pytest.raises(ValueError, match="degree must be 2, 4, 8 or 16"):
        PolySketchFormer(degree=3)  # type: ignore[arg-type]
