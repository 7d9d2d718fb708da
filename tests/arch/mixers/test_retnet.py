"""RetNet: a constant decay a head, positions by rotation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch.mixers.mixer import StateSize
from recallmap.arch.mixers.retnet import RetNet


def turned(x: Tensor, position: int) -> Tensor:
    """[..., K] with channel i and i + K/2 as a complex number, turned by position * 10000^(-2i/K)."""
    half = x.shape[-1] // 2
    angle = position * 10_000.0 ** -(torch.arange(half, dtype=torch.float64) / half)
    spun = torch.complex(*x.chunk(2, dim=-1)) * torch.exp(1j * angle)
    return torch.cat([spun.real, spun.imag], dim=-1)


def test_every_pair_of_tokens_weighs_what_the_heads_decay_leaves_of_it() -> None:
    torch.manual_seed(0)
    module, x = RetNet(heads=2).build(16).double(), torch.randn(1, 9, 16, dtype=torch.float64)
    q, k, v, _ = module.get_submodule("qkv")(x, None)
    outputs = []
    for t in range(9):
        o = torch.zeros(1, 2, 16, dtype=torch.float64)
        for s in range(t + 1):
            fade = torch.tensor([1 - 1 / 32, 1 - 1 / 64], dtype=torch.float64) ** (t - s)
            score = (turned(q[:, t], t - s) * k[:, s]).sum(-1)  # the distance alone counts
            o = o + (fade * score / 8**0.5)[..., None] * v[:, s]
        outputs.append(o)
    read = module.get_submodule("read")(torch.stack(outputs, 1), x)
    assert_close(module(x)[0], module.get_submodule("out")(read))


def test_its_size_is_that_of_the_table() -> None:
    d, h, k, v = 128, 8, 16, 32
    count = sum(p.numel() for p in RetNet(heads=h).build(d).parameters())
    assert count == 2 * d * h * k + 3 * d * h * v + v
    assert RetNet(heads=h).state_size(d, 1000) == StateSize(h * k * v)
    assert RetNet(heads=h).flops(d, 1000) == 2 * d * h * (2 * k + 3 * v) + 5 * h * k * v


def test_odd_keys_cannot_be_turned() -> None:
    with pytest.raises(ValueError, match="key_dim must be even, got 3"):
        RetNet(heads=2, key_dim=3).check(16)
