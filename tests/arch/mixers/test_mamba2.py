"""Mamba-2: two forms, both of them gated linear attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from recallmap.arch.mixers.gla import GatedLinearAttention
from recallmap.arch.mixers.mamba2 import Mamba2
from recallmap.arch.mixers.mixer import StateSize


def test_mesanets_form_is_gla_that_writes_every_token_alike() -> None:
    torch.manual_seed(0)
    mamba, gla = Mamba2(heads=2).build(16).double(), GatedLinearAttention(heads=2).build(16).double()
    gla.load_state_dict(mamba.state_dict(), strict=False)
    torch.nn.init.zeros_(gla.get_parameter("write.linear.weight"))
    torch.nn.init.constant_(gla.get_parameter("write.linear.bias"), 50.0)  # beta = 1
    x = torch.randn(2, 37, 16, dtype=torch.float64)
    assert_close(mamba(x)[0], gla(x)[0])


def test_the_state_space_form_is_scalar_gla_plus_a_skip() -> None:
    torch.manual_seed(0)
    heads, key_dim, value_dim, inner = 2, 3, 5, 10
    spec = Mamba2(form="shared_qk", heads=heads, key_dim=key_dim, value_dim=value_dim)
    module, x = spec.build(16).double(), torch.randn(1, 9, 16, dtype=torch.float64)
    torch.nn.init.normal_(module.get_parameter("skip"))
    gate, shaped = module.get_submodule("linear")(x).split([inner, inner + 2 * key_dim], dim=-1)
    v, k, q = F.silu(module.get_submodule("conv")(shaped)[0]).split([inner, key_dim, key_dim], dim=-1)
    v = v.unflatten(-1, (heads, value_dim))
    step = F.softplus(module.get_submodule("decay.linear")(x) + module.get_parameter("decay.bias"))
    fade = torch.exp(-module.get_parameter("decay.log_rate").exp() * step)
    memory, outputs = torch.zeros(1, heads, key_dim, value_dim, dtype=torch.float64), []
    for t in range(9):
        written = k[:, t, None, :, None] * v[:, t, :, None, :]
        memory = fade[:, t, :, None, None] * memory + step[:, t, :, None, None] * written
        read = (q[:, t, None, None] @ memory).squeeze(-2)
        outputs.append(read + module.get_parameter("skip")[:, None] * v[:, t])
    o = torch.stack(outputs, 1).flatten(-2) * F.silu(gate)
    normed = o * (o.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    assert_close(module(x)[0], module.get_submodule("out")(normed))


def test_new_state_without_keys_changes_nothing() -> None:
    torch.manual_seed(0)
    small, large = (Mamba2(form="shared_qk", heads=2, key_dim=k).build(16).double() for k in (3, 5))
    with torch.no_grad():
        for name, value in large.named_parameters():
            old = small.get_parameter(name)
            if value.shape == old.shape:
                value.copy_(old)
                continue
            # [gate, v | v, k, q, decay]: k and q stand where 3 channels of each become 5, the new ones 0 in k.
            start = {"linear.weight": 32, "conv.weight": 16, "conv.bias": 16}[name]
            value.copy_(torch.randn_like(value))
            value[:start], value[start : start + 3] = old[:start], old[start : start + 3]
            value[start + 3 : start + 5] = 0
            value[start + 5 : start + 8] = old[start + 3 : start + 6]
    x = torch.randn(2, 37, 16, dtype=torch.float64)
    assert_close(large(x)[0], small(x)[0])


def test_a_signed_decay_may_turn_the_memory_over() -> None:
    torch.manual_seed(0)
    module = Mamba2(heads=2, signed_decay=True).build(16).double()
    torch.nn.init.zeros_(module.get_parameter("decay.linear.bias"))
    x = torch.randn(1, 9, 16, dtype=torch.float64)
    q, k, v, _ = module.get_submodule("qkv")(x, None)
    fade = torch.tanh(module.get_submodule("decay.linear")(x) / 2)
    assert fade.min() < 0 < fade.max()
    memory, outputs = torch.zeros(1, 2, 8, 8, dtype=torch.float64), []
    for t in range(9):
        memory = fade[:, t, :, None, None] * memory + k[:, t, ..., None] * v[:, t, :, None]
        outputs.append((q[:, t, :, None] @ memory).squeeze(-2))
    read = module.get_submodule("read")(torch.stack(outputs, 1), x)
    assert_close(module(x)[0], module.get_submodule("out")(read))
    with pytest.raises(ValueError, match="signed_decay needs form 'mesanet', got 'shared_qk'"):
        Mamba2(form="shared_qk", signed_decay=True)


def test_its_size_is_that_of_the_table() -> None:
    d, h, k, v = 128, 8, 16, 16
    count = sum(p.numel() for p in Mamba2(heads=h).build(d).parameters())
    assert count == 2 * d * h * (k + v) + 8 * h * k + (d * h + h) + h * v
    assert Mamba2(heads=h).state_size(d, 1000) == StateSize(h * k * v + 3 * 2 * h * k)

    v = 2 * d // h
    shared = Mamba2(form="shared_qk", heads=h, key_dim=k, value_dim=v)
    count = sum(p.numel() for p in shared.build(d).parameters())
    assert count == d * (4 * d + 2 * k + h) + 5 * (2 * d + 2 * k) + 3 * h + 2 * d + 2 * d * d
    assert shared.state_size(d, 1000) == StateSize(h * k * v + 3 * (2 * d + 2 * k))
    matrices = d * (6 * d + 2 * k + h)
    assert shared.flops(d, 1000) == 2 * matrices + 8 * (2 * d + 2 * k) + h * (5 * k * v + 2 * v)
