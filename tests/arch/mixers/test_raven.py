"""Raven: slots of which each token changes those that a router chooses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch.mixers.mixer import StateSize
from recallmap.arch.mixers.raven import Raven

SPEC = Raven(heads=2, slots=5, chosen=2)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_it_is_the_published_layer() -> None:
    torch.manual_seed(0)
    module, x = SPEC.build(16).double(), drawn(2, 9, 16)
    q, k, v = (F.silu(y).unflatten(-1, (2, 8)) for y in module.get_submodule("linear")(x).split(16, -1))
    q, k = (y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() for y in (q, k))
    scores = torch.sigmoid(module.get_submodule("router")(x)).unflatten(-1, (2, 5))
    least = scores.sort(-1, descending=True).values[..., 1:2]
    shares = scores * (scores >= least)
    shares = shares / shares.sum(-1, keepdim=True)
    step = F.softplus(module.get_submodule("decay.linear")(x) + module.get_parameter("decay.bias"))
    keep = torch.exp(-module.get_parameter("decay.log_rate").exp() * step)[..., None] ** shares
    keys, values, outputs = torch.zeros(2, 2, 5, 8).double(), torch.zeros(2, 2, 5, 8).double(), []
    for t in range(9):
        a = keep[:, t, :, :, None]
        assert ((a == 1).sum(2) == 3).all()  # the slots that it leaves alone
        keys, values = (a * held + (1 - a) * new[:, t, :, None] for held, new in ((keys, k), (values, v)))
        weights = torch.einsum("bhmk,bhk->bhm", keys, q[:, t]).softmax(-1)
        outputs.append(torch.einsum("bhm,bhmv->bhv", weights, values))
    o = F.silu(torch.stack(outputs, 1).flatten(-2))
    normed = o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert_close(module(x)[0], module.get_submodule("out")(normed))


def test_it_has_the_published_size() -> None:
    spec = Raven(heads=4)
    assert spec.changed(64) == 16
    assert Raven(heads=4, slots=64).changed(64) == 32
    assert spec.parameters(64) == 4 * 64**2 + 64 * 4 * 16 + 64 * 4 + 2 * 4 + 2 * 16 + 64
    assert spec.state_size(64, 999) == StateSize(4 * 16 * 32)


def test_more_slots_than_there_are_cannot_be_chosen() -> None:
    with pytest.raises(ValueError, match=r"chosen must be at most 8 \(slots\), got 9; lower it, or raise slots"):
        Raven(heads=2, chosen=9).check(16)
