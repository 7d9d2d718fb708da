"""Mamba, the first: a state-space model a channel."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.mixers.mamba1 import FIRST_STEPS, Mamba1
from recallmap.arch.mixers.mixer import StateSize

SPEC = Mamba1(expand=0.5, state_dim=3, step_rank=2)


def parts(module: torch.nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """(u, step, k, q, gate) from the published formulas."""
    u, gate = module.get_submodule("block.linear")(x).chunk(2, dim=-1)
    u = F.silu(module.get_submodule("block.conv")(u)[0])
    size = module.get_parameter("log_rate").shape[1]
    selected = module.get_submodule("block.select")(u)
    r, k, q = selected[..., : -2 * size], selected[..., -2 * size : -size], selected[..., -size:]
    return u, F.softplus(module.get_submodule("block.step")(r) + module.get_parameter("block.step_bias")), k, q, gate


def finish(module: torch.nn.Module, o: Tensor, u: Tensor, gate: Tensor) -> Tensor:
    y: Tensor = module.get_submodule("out")((o + module.get_parameter("block.skip") * u) * F.silu(gate))
    return y


def test_every_channel_is_a_state_space_model_of_its_own() -> None:
    torch.manual_seed(0)
    module, x = SPEC.build(16).double(), torch.randn(1, 9, 16, dtype=torch.float64)
    torch.nn.init.normal_(module.get_parameter("block.skip"))
    u, step, k, q, gate = parts(module, x)
    rate = module.get_parameter("log_rate").exp()
    h, outputs = torch.zeros(1, 8, 3, dtype=torch.float64), []
    for t in range(9):
        h = torch.exp(-step[:, t, :, None] * rate) * h + (step * u)[:, t, :, None] * k[:, t, None]
        outputs.append((h * q[:, t, None]).sum(-1))
    assert_close(module(x)[0], finish(module, torch.stack(outputs, 1), u, gate))


def test_with_one_step_and_one_rate_a_head_it_is_mamba2() -> None:
    torch.manual_seed(0)
    heads, channels = 2, 4
    module, x = SPEC.build(16).double(), torch.randn(2, 37, 16, dtype=torch.float64)
    with torch.no_grad():
        for name in ("block.step.weight", "block.step_bias"):
            value = module.get_parameter(name)
            value.copy_(value[::channels].repeat_interleave(channels, 0))
        rate = torch.tensor([0.3, 2.0], dtype=torch.float64)
        module.get_parameter("log_rate").copy_(rate.log().repeat_interleave(channels)[:, None].expand(-1, 3))
    u, step, k, q, gate = parts(module, x)
    step = step[..., ::channels]
    o, _ = kernels.gated_linear(
        q[:, :, None], k[:, :, None], u.unflatten(-1, (heads, channels)), log_decay=-rate * step, beta=step, scale=1.0
    )
    assert_close(module(x)[0], finish(module, o.flatten(-2), u, gate))


def test_new_state_without_keys_changes_nothing() -> None:
    torch.manual_seed(0)
    small, large = SPEC.build(16).double(), Mamba1(expand=0.5, state_dim=5, step_rank=2).build(16).double()
    values = {n: p for n, p in small.state_dict().items() if n not in ("log_rate", "block.select.weight")}
    large.load_state_dict(values, strict=False)
    with torch.no_grad():
        old, new = small.get_parameter("block.select.weight"), large.get_parameter("block.select.weight")
        new[:5], new[5:7], new[7:10] = old[:5], 0, old[5:]
        large.get_parameter("log_rate")[:, :3] = small.get_parameter("log_rate")
    x = torch.randn(2, 37, 16, dtype=torch.float64)
    assert_close(large(x)[0], small(x)[0])


def test_steps_and_rates_start_as_published() -> None:
    torch.manual_seed(0)
    module = Mamba1().build(128)
    step = F.softplus(module.get_parameter("block.step_bias"))
    assert FIRST_STEPS[0] * 0.99 < step.min() < 2e-3
    assert 5e-2 < step.max() < FIRST_STEPS[1] * 1.01
    assert_close(module.get_parameter("log_rate").exp(), torch.arange(1.0, 17).expand(256, -1))


def test_its_size_is_that_of_the_table() -> None:
    d, c, n, r = 128, 256, 16, 8
    count = sum(p.numel() for p in Mamba1().build(d).parameters())
    assert count == 6 * d * d + c * (r + 2 * n) + r * c + 5 * c + c * n + 2 * c
    assert Mamba1().state_size(d, 1000) == StateSize(c * n + 3 * c)
    assert Mamba1().flops(d, 1000) == 2 * (6 * d * d + c * (2 * r + 2 * n)) + 8 * c + 9 * n * c + 2 * c


def test_a_block_without_channels_is_refused() -> None:
    with pytest.raises(ValueError, match="expand must be positive"):
        Mamba1(expand=0)
    with pytest.raises(ValueError, match="leaves no channel of width 16"):
        Mamba1(expand=0.01).check(16)
