"""Gated DeltaNet: the delta rule on a memory that fades."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from recallmap.arch.mixers.deltanet import DeltaNet
from recallmap.arch.mixers.gated_deltanet import GatedDeltaNet
from recallmap.arch.mixers.mixer import StateSize


def test_what_never_fades_is_deltanet() -> None:
    torch.manual_seed(0)
    gated, plain = GatedDeltaNet(heads=2).build(16).double(), DeltaNet(heads=2).build(16).double()
    plain.load_state_dict({n: p for n, p in gated.state_dict().items() if not n.startswith("decay")})
    torch.nn.init.constant_(gated.get_parameter("decay.log_rate"), -torch.inf)  # a = 1
    x = torch.randn(2, 37, 16, dtype=torch.float64)
    assert_close(gated(x)[0], plain(x)[0])


@pytest.mark.parametrize("decay", ["softplus", "sigmoid"])
def test_it_first_fades_then_follows_the_delta_rule(decay: str) -> None:
    torch.manual_seed(0)
    spec = GatedDeltaNet(heads=2, decay=decay)  # type: ignore[arg-type]
    module, x = spec.build(16).double(), torch.randn(1, 9, 16, dtype=torch.float64)
    q, k, v, _ = module.get_submodule("qkv")(x, None)
    raw = module.get_submodule("decay.linear")(x)
    if decay == "sigmoid":
        fade = torch.sigmoid(raw)
    else:
        rate = module.get_parameter("decay.log_rate").exp()
        fade = torch.exp(-rate * F.softplus(raw + module.get_parameter("decay.bias")))
    beta = torch.sigmoid(module.get_submodule("write.linear")(x))
    memory, outputs = torch.zeros(1, 2, 8, 8, dtype=torch.float64), []
    for t in range(9):
        memory = fade[:, t, :, None, None] * memory
        stored = k[:, t, :, None] @ memory
        memory = memory + k[:, t, :, :, None] * beta[:, t, :, None, None] * (v[:, t, :, None] - stored)
        outputs.append((q[:, t, :, None] @ memory).squeeze(-2))
    read = module.get_submodule("read")(torch.stack(outputs, 1), x)
    assert_close(module(x)[0], module.get_submodule("out")(read))


def test_its_size_is_that_of_the_table() -> None:
    d, h, k, v = 128, 8, 16, 32
    spec = GatedDeltaNet(heads=h, key_dim=k, value_dim=v)
    count = sum(p.numel() for p in spec.build(d).parameters())
    assert count == 2 * d * h * (k + v) + d * h * v + 4 * h * (2 * k + v) + 2 * d * h + 2 * h + v
    assert spec.state_size(d, 1000) == StateSize(h * k * v + 3 * h * (2 * k + v))
    assert spec.flops(d, 1000) == 2 * d * h * (2 * k + 3 * v + 2) + 8 * h * (2 * k + v) + 7 * h * k * v

    mesanet = GatedDeltaNet(
        heads=h,
        key_dim=k,
        value_dim=v,
        decay="sigmoid",
        conv_v=False,
        out_norm="head",
        out_gate=False,
        beta_bias=True,
    )
    count = sum(p.numel() for p in mesanet.build(d).parameters())
    assert count == 2 * d * h * (k + v) + 8 * h * k + 2 * (d * h + h) + h * v


def test_a_write_strength_above_two_is_refused() -> None:
    with pytest.raises(ValueError, match="beta_max must be 1 or 2"):
        GatedDeltaNet(beta_max=3)  # type: ignore[arg-type]
