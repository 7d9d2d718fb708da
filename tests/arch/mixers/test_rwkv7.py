"""RWKV-7: decay a channel, one key to forget under, another to write under."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import StateSize
from recallmap.arch.mixers.rwkv7 import LEANING, Rwkv7

SPEC = Rwkv7(heads=2, decay_rank=3, rate_rank=4, gate_rank=5)


def low_rank(module: nn.Module, name: str, x: Tensor) -> Tensor:
    inner = module.get_submodule(f"{name}.down")(x)
    inner = {"decay": torch.tanh, "rate": lambda y: y, "gate": torch.sigmoid}[name](inner)
    y: Tensor = module.get_submodule(f"{name}.up")(inner)
    return y if name == "gate" else y + module.get_parameter(f"{name}.bias")


def test_it_is_the_published_recurrence() -> None:
    torch.manual_seed(0)
    module, x = SPEC.build(16).double(), torch.randn(1, 9, 16, dtype=torch.float64)
    for name in ("forgotten", "written", "bonus", "norm_weight", "norm_bias", "rate.bias"):
        nn.init.normal_(module.get_parameter(name))
    before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
    seen = {n: torch.lerp(x, before, m) for n, m in zip(LEANING, module.get_parameter("lean"), strict=True)}
    r, k, v = (module.get_submodule(name)(seen[name]) for name in ("read", "key", "value"))
    w = torch.exp(-(torch.e**-0.5) * torch.sigmoid(low_rank(module, "decay", seen["decay"])))
    a = torch.sigmoid(low_rank(module, "rate", seen["rate"]))
    c = k * module.get_parameter("forgotten")
    k = k * (1 + (a - 1) * module.get_parameter("written"))
    r, k, v, w, a, c = (y.unflatten(-1, (2, 8)) for y in (r, k, v, w, a, c))
    c = c / (c.square().sum(-1, keepdim=True) + 1e-6).sqrt()

    memory, outputs = torch.zeros(1, 2, 8, 8, dtype=torch.float64), []
    for t in range(9):
        transition = torch.diag_embed(w[:, t]) - (a[:, t] * c[:, t])[..., None] * c[:, t, :, None]
        memory = transition @ memory + k[:, t, ..., None] * v[:, t, :, None]
        outputs.append((r[:, t, :, None] @ memory).squeeze(-2))
    o = torch.stack(outputs, 1)
    o = (o - o.mean(-1, keepdim=True)) / (o.var(-1, keepdim=True, correction=0) + 8e-5).sqrt()
    o = o * module.get_parameter("norm_weight") + module.get_parameter("norm_bias")
    o = o + (r * k * module.get_parameter("bonus")).sum(-1, keepdim=True) * v
    y = o.flatten(-2) * low_rank(module, "gate", seen["gate"])
    assert_close(module(x)[0], module.get_submodule("out")(y))


def test_its_recurrence_holds_deltanet_and_gla() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 37, 2, 8, dtype=torch.float64) for _ in "qkv")
    k = F.normalize(k, dim=-1)
    beta, fade = (torch.rand(2, 37, 2, dtype=torch.float64) for _ in range(2))
    written = beta[..., None] * k
    delta, _ = kernels.delta(q, k, v, beta=beta)
    assert_close(kernels.delta(q, written, v, a=k, b=written)[0], delta)

    gated, _ = kernels.delta(q, k, v, beta=beta, log_decay=fade.log())
    w = fade[..., None].expand_as(k).log()
    assert_close(kernels.delta(q, written, v, a=k, b=fade[..., None] * written, log_decay=w)[0], gated)

    linear, _ = kernels.gated_linear(q, written, v, log_decay=w, scale=1.0)
    assert_close(kernels.delta(q, written, v, a=k, b=torch.zeros_like(k), log_decay=w)[0], linear)


def test_channels_start_with_memories_from_ten_tokens_to_a_thousand() -> None:
    torch.manual_seed(0)
    fade = torch.exp(-(torch.e**-0.5) * torch.sigmoid(SPEC.build(64).get_parameter("decay.bias")))
    assert 0.9 < fade.min() < 0.92
    assert 0.999 < fade.max() < 0.9995


def test_its_size_is_that_of_the_table() -> None:
    d, h, k = 128, 8, 16
    spec = Rwkv7(heads=h, decay_rank=16, rate_rank=8, gate_rank=24)
    count = sum(p.numel() for p in spec.build(d).parameters())
    assert count == 4 * d * d + 2 * d * (16 + 8 + 24) + 13 * d
    assert spec.state_size(d, 1000) == StateSize(h * k * k + d)
    assert spec.flops(d, 1000) == 2 * (4 * d * d + 2 * d * (16 + 8 + 24)) + 7 * h * k * k
