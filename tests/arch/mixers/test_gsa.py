"""Gated slot attention, and the op of slots beneath it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.mixers.gsa import Gsa
from recallmap.arch.mixers.mixer import StateSize

IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["recurrent", "chunked"])


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_it_is_the_published_layer() -> None:
    torch.manual_seed(0)
    module, x = Gsa(heads=2, slots=5).build(16).double(), drawn(2, 9, 16)
    q, k, v, raw = module.get_submodule("linear")(x).split([16, 16, 16, 10], -1)
    q, k, v = (F.silu(part).unflatten(-1, (2, 8)) for part in (q, k, v))
    keep = torch.sigmoid(raw).unflatten(-1, (2, 5)) ** (1 / 8)
    keys, values, outputs = torch.zeros(2, 2, 5, 8).double(), torch.zeros(2, 2, 5, 8).double(), []
    for t in range(9):
        a = keep[:, t, :, :, None]
        keys, values = (a * held + (1 - a) * new[:, t, :, None] for held, new in ((keys, k), (values, v)))
        weights = torch.einsum("bhmk,bhk->bhm", keys, q[:, t]).softmax(-1)
        outputs.append(torch.einsum("bhm,bhmv->bhv", weights, values))
    o = F.silu(torch.stack(outputs, 1).flatten(-2))
    normed = o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert_close(module(x)[0], module.get_submodule("out")(normed))


@IMPLEMENTATIONS
def test_one_slot_is_a_mean_that_fades(implementation: str) -> None:
    """11.11"""
    q, k, v = (drawn(1, 12, 2, 4, seed=seed) for seed in range(3))
    write = torch.sigmoid(drawn(1, 12, 2, 1, seed=3))
    o, _ = kernels.slots(q, k, v, write=write, log_decay=torch.log1p(-write), implementation=implementation)
    held, outputs = torch.zeros(1, 2, 4).double(), []
    for t in range(12):
        held = (1 - write[:, t]) * held + write[:, t] * v[:, t]
        outputs.append(held)
    assert_close(o, torch.stack(outputs, 1))


@IMPLEMENTATIONS
def test_a_slot_for_every_token_is_attention_beside_empty_slots(implementation: str) -> None:
    """11.11: an empty slot has a score of 0 and a value of 0."""
    q, k, v = (drawn(1, 12, 2, 4, seed=seed) for seed in range(3))
    write = torch.eye(12).double()[None, :, None].expand(1, 12, 2, 12)
    o, _ = kernels.slots(q, k, v, write=write, implementation=implementation)
    scores = torch.einsum("bthk,bshk->bhts", q, k).tril()
    expected = torch.einsum("bhts,bshv->bthv", scores.softmax(-1).tril(), v)
    assert_close(o, expected)


@IMPLEMENTATIONS
def test_its_second_pass_is_gated_linear_attention(implementation: str) -> None:
    """Read by queries of 0, all slots alike."""
    k, v = (drawn(2, 20, 2, 4, seed=seed) for seed in range(2))
    gates = F.logsigmoid(drawn(2, 20, 2, 5, seed=2))
    write = -torch.expm1(gates)
    o, _ = kernels.slots(torch.zeros_like(k), k, v, write=write, log_decay=gates, implementation=implementation)
    expected, _ = kernels.gated_linear(torch.full_like(write, 1 / 5), write, v, log_decay=gates, scale=1.0)
    assert_close(o, expected)


def test_writes_of_another_number_of_slots_than_decays_are_told() -> None:
    q = drawn(1, 3, 2, 4)
    with pytest.raises(ValueError, match=r"slots: log_decay has shape \[1, 3, 2, 6\], must be \[1, 3, 2, 5\]"):
        kernels.slots(q, q, q, write=drawn(1, 3, 2, 5), log_decay=drawn(1, 3, 2, 6))


def test_it_has_the_published_size() -> None:
    assert Gsa(heads=4, slots=16).parameters(64) == 4 * 64**2 + 64 * 4 * 16 + 64 == 20544
    assert Gsa(heads=4, slots=10).state_size(64, 999) == StateSize(4 * 10 * 32)
