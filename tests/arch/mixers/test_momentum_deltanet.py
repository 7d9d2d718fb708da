"""Momentum DeltaNet: corrections gather in a momentum, from which the memory learns."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.mixers import MomentumDeltaNet
from recallmap.arch.mixers.mixer import MixerModule, StateSize


def made(corrects: str = "faded") -> tuple[MixerModule, Tensor]:
    torch.manual_seed(0)
    spec = MomentumDeltaNet(scale="one", heads=2, key_dim=6, value_dim=4, corrects=corrects)  # type: ignore[arg-type]
    return spec.build(16).double(), torch.randn(2, 21, 16, dtype=torch.float64)


def gates(module: MixerModule, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """eta, alpha, beta and mu as they are printed."""
    weights = module.get_parameter
    eta = 1 + torch.tanh(x @ weights("rate.weight").T / math.sqrt(16))
    psi = torch.arctan(eta * torch.exp(weights("angle")))

    def log_decay(name: str) -> Tensor:
        step = F.softplus(x @ weights(f"{name}.linear.weight").T + weights(f"{name}.bias"))
        return -weights(f"{name}.log_rate").exp() * step

    alpha = torch.cos(psi) ** 2 * log_decay("decay").exp()
    beta = torch.sigmoid(x @ weights("write.linear.weight").T) * torch.sin(psi) ** 2
    return eta, alpha, beta, log_decay("momentum").clamp(min=-2).exp()


@pytest.mark.parametrize("corrects", ["faded", "unfaded"])
def test_it_is_the_published_recurrence(corrects: str) -> None:
    module, x = made(corrects)
    torch.nn.init.normal_(module.get_parameter("rate.weight"), std=4)
    eta, alpha, beta, mu = (gate[..., None, None] for gate in gates(module, x))
    q, k, v, _ = module.get_submodule("qkv")(x, None)
    q = q - torch.exp(module.get_parameter("correction")) * k
    momentum, memory, outputs = torch.zeros(2, 2, 6, 4).double(), torch.zeros(2, 2, 6, 4).double(), []
    for t in range(21):
        p = (alpha[:, t] if corrects == "faded" else 1) * k[:, t, :, None]
        momentum = mu[:, t] * momentum + eta[:, t] * k[:, t, :, :, None] * (p @ memory - v[:, t, :, None])
        memory = alpha[:, t] * memory - beta[:, t] * momentum
        outputs.append((q[:, t, :, None] @ memory).squeeze(-2))
    y, state = module(x, return_state=True)
    assert_close(y, module.get_submodule("out")(module.get_submodule("read")(torch.stack(outputs, 1), x)))
    assert_close(state.memory.weights[0], memory)
    assert_close(state.memory.momentum[0], momentum)


def test_without_momentum_it_is_gated_deltanet(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = made()
    torch.nn.init.constant_(module.get_parameter("momentum.log_rate"), math.log(1e30))
    monkeypatch.setattr("recallmap.arch.mixers.momentum_deltanet.LEAST_LOG_MOMENTUM", -math.inf)
    eta, alpha, beta, _ = gates(module, x)
    q, k, v, _ = module.get_submodule("qkv")(x, None)
    q = q - torch.exp(module.get_parameter("correction")) * k
    o, _ = kernels.delta(q, k, v, log_decay=alpha.log(), beta=beta * eta)
    assert_close(module(x)[0], module.get_submodule("out")(module.get_submodule("read")(o, x)), rtol=1e-9, atol=1e-9)


def test_its_size_is_that_of_the_table() -> None:
    d, h, k, v = 64, 3, 16, 32
    spec = MomentumDeltaNet(scale="one", heads=h, key_dim=k, value_dim=v)
    assert sum(p.numel() for p in spec.build(d).parameters()) == spec.parameters(d) == 26162
    assert spec.state_size(d, 1000) == StateSize(2 * h * k * v + 3 * h * (2 * k + v))
    maps = d * h * (2 * k + 3 * v + 4)
    assert spec.flops(d, 1000) == 2 * maps + 8 * h * (2 * k + v) + 10 * h * k * v
