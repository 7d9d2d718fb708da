"""Gated KalmaNet: ridge regression over a memory that fades."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.mixers.gka import Gka
from recallmap.arch.mixers.mixer import MixerModule, StateSize


def built(spec: Gka) -> MixerModule:
    torch.manual_seed(0)
    module: MixerModule = spec.build(16).double()
    return module


def tokens(length: int = 12) -> Tensor:
    return torch.randn(2, length, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def gates(module: MixerModule, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log decay, write strength and blend [B, T, H]."""
    raw = module.get_submodule("decay.linear")(x) + module.get_parameter("decay.bias")
    decay = -module.get_parameter("decay.log_rate").exp() * F.softplus(raw)
    return decay, *(torch.sigmoid(module.get_submodule(f"{name}.linear")(x)) for name in ("write", "blend"))


def test_it_solves_a_ridge_regression_and_reads_between_solution_and_query() -> None:
    module, x = built(Gka(heads=2, steps=120)), tokens()
    q, k, v, _ = module.get_submodule("qkv")(x, None)
    decay, write, blend = gates(module, x)
    kk, kv, outputs = torch.zeros(2, 2, 8, 8).double(), torch.zeros(2, 2, 8, 8).double(), []
    for t in range(12):
        fade, key = decay[:, t].exp()[..., None, None], (write[:, t, :, None] * k[:, t])[..., None]
        kk, kv = fade * kk + key * k[:, t, :, None], fade * kv + key * v[:, t, :, None]
        ridge = 0.02 * torch.linalg.matrix_norm(kk)[..., None, None] * torch.eye(8).double()
        reading = q[:, t] + blend[:, t, :, None] * (torch.linalg.solve(kk + ridge, q[:, t]) - q[:, t])
        outputs.append((reading[..., None, :] @ kv).squeeze(-2) / 8**0.5)
    read = module.get_submodule("read")(torch.stack(outputs, 1), x)
    assert_close(module(x)[0], module.get_submodule("out")(read), rtol=1e-7, atol=1e-9)


def test_thirty_steps_are_close_to_the_solution() -> None:
    few, many = (built(Gka(heads=2, steps=steps, out_norm="none"))(tokens())[0] for steps in (30, 120))
    assert 0 < (few - many).norm() < 1e-3 * many.norm()


def test_without_the_solution_it_is_gated_linear_attention() -> None:
    """11.6: alpha = 0."""
    module, x = built(Gka(heads=2)), tokens()
    torch.nn.init.constant_(module.get_parameter("blend.linear.bias"), -1e3)
    q, k, v, _ = module.get_submodule("qkv")(x, None)
    decay, write, _ = gates(module, x)
    o, _ = kernels.gated_linear(q, k, v, log_decay=decay, beta=write, scale=8**-0.5)
    assert_close(module(x)[0], module.get_submodule("out")(module.get_submodule("read")(o, x)))


def test_it_has_the_published_size() -> None:
    d, h, k = 64, 4, 16
    spec = Gka(heads=h)
    assert spec.parameters(d) == 5 * d * h * k + 3 * d * h + 4 * h + 12 * h * k + k
    assert spec.state_size(d, 1000) == StateSize(2 * h * k * k + 3 * h * 3 * k)


def test_a_ridge_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="ridge must be positive to keep the solve well posed, got 0"):
        Gka(ridge=0)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        Gka(steps=0)
