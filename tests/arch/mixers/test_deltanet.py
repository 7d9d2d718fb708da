"""DeltaNet: a token replaces what is stored under its key."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from recallmap.arch.mixers.deltanet import DeltaNet
from recallmap.arch.mixers.mixer import StateSize


@pytest.mark.parametrize("beta_max", [1, 2])
def test_it_follows_the_delta_rule(beta_max: int) -> None:
    torch.manual_seed(0)
    spec = DeltaNet(heads=2, beta_max=beta_max)  # type: ignore[arg-type]
    module, x = spec.build(16).double(), torch.randn(1, 9, 16, dtype=torch.float64)
    q, k, v, _ = module.get_submodule("qkv")(x, None)
    beta = beta_max * torch.sigmoid(module.get_submodule("write.linear")(x))
    memory, outputs = torch.zeros(1, 2, 8, 8, dtype=torch.float64), []
    for t in range(9):
        stored = k[:, t, :, None] @ memory
        memory = memory + k[:, t, :, :, None] * beta[:, t, :, None, None] * (v[:, t, :, None] - stored)
        outputs.append((q[:, t, :, None] @ memory).squeeze(-2))
    read = module.get_submodule("read")(torch.stack(outputs, 1), x)
    assert_close(module(x)[0], module.get_submodule("out")(read))


def test_its_size_is_that_of_the_table() -> None:
    d, h, k, v = 128, 8, 16, 16
    count = sum(p.numel() for p in DeltaNet(heads=h).build(d).parameters())
    assert count == 2 * d * h * (k + v) + d * h * v + 4 * h * (2 * k + v) + d * h + v

    mesanet = DeltaNet(heads=h, conv_v=False, out_norm="head", out_gate=False, beta_bias=True)
    count = sum(p.numel() for p in mesanet.build(d).parameters())
    assert count == 2 * d * h * (k + v) + 8 * h * k + (d * h + h) + h * v
    assert mesanet.state_size(d, 1000) == StateSize(h * k * v + 3 * 2 * h * k)
    assert mesanet.flops(d, 1000) == 2 * d * h * (2 * k + 2 * v + 1) + 8 * 2 * h * k + 6 * h * k * v


def test_a_write_strength_above_two_is_refused() -> None:
    with pytest.raises(ValueError, match="beta_max must be 1 or 2"):
        DeltaNet(beta_max=3)  # type: ignore[arg-type]
