"""mLSTM: exponential gates, and reads relative to the sum of all keys."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from recallmap.arch.mixers.mixer import StateSize
from recallmap.arch.mixers.mlstm import MLSTM

XLSTM = MLSTM(heads=2, activation="silu", out_gate=True)


@pytest.mark.parametrize("spec", [MLSTM(heads=2), XLSTM], ids=["mesanet", "xlstm"])
def test_it_is_the_recurrence_without_a_stabiliser(spec: MLSTM) -> None:
    torch.manual_seed(0)
    module, x = spec.build(16).double(), torch.randn(1, 9, 16, dtype=torch.float64)
    q, k, v, _ = module.get_submodule("qkv")(x, None)
    entry, forget = (module.get_submodule(name)(x) for name in ("entry", "forget"))
    memory, norm = torch.zeros(1, 2, 8, 8, dtype=torch.float64), torch.zeros(1, 2, 8, dtype=torch.float64)
    outputs = []
    for t in range(9):
        fade, key = torch.sigmoid(forget[:, t, :, None]), entry[:, t, :, None].exp() * k[:, t]
        memory = fade[..., None] * memory + key[..., None] * v[:, t, :, None]
        norm = fade * norm + key
        read = q[:, t] / 8**0.5
        weight = (read * norm).sum(-1, keepdim=True).abs().clamp(min=1.0)
        outputs.append((read[..., None, :] @ memory).squeeze(-2) / weight)
    o = torch.stack(outputs, 1)
    y = (o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(-2)
    if spec.out_gate:
        y = y * torch.sigmoid(module.get_submodule("read.gate")(x))
    assert_close(module(x)[0], module.get_submodule("out")(y))


def test_its_size_is_that_of_the_table() -> None:
    d, h, k, v = 128, 8, 16, 16
    count = sum(p.numel() for p in MLSTM(heads=h).build(d).parameters())
    mesanet = 2 * d * h * (k + v) + 8 * h * k + 2 * (d * h + h) + h * v
    assert count == mesanet
    assert sum(p.numel() for p in MLSTM(heads=h, out_gate=True).build(d).parameters()) == mesanet + d * h * v
    assert MLSTM(heads=h).state_size(d, 1000) == StateSize(h * (k * v + k + 1) + 3 * 2 * h * k)
    core = 5 * k * v + 5 * k
    assert MLSTM(heads=h).flops(d, 1000) == 2 * d * h * (2 * k + 2 * v + 2) + 8 * 2 * h * k + h * core
