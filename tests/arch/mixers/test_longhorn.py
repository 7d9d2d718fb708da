"""Longhorn: online regression in closed form, and the diagonal of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.expand import expand, expand_weights
from recallmap.arch.mixers.longhorn import Longhorn
from recallmap.arch.mixers.mixer import StateSize
from recallmap.arch.parts.channels import ChannelInputs

CHANNELS, SIZE = 8, 4


class Told(nn.Module):
    """In place of a block: gives what it is told, hands back what it is given."""

    def __init__(self, inputs: ChannelInputs) -> None:
        super().__init__()
        self.inputs = inputs

    def forward(self, x: Tensor, cache: Any) -> tuple[ChannelInputs, Tensor, None]:
        return self.inputs, torch.ones_like(self.inputs.u), None

    def finish(self, o: Tensor, u: Tensor, gate: Tensor) -> Tensor:
        return o


def recurrence(form: Any, u: Tensor, k: Tensor, q: Tensor, beta: Tensor) -> Tensor:
    """What the mixer's recurrence alone makes of values, keys, queries and strengths in (0, 1)."""
    module = Longhorn(form=form, expand=0.5, state_dim=SIZE).build(16)
    module.block, module.out = Told(ChannelInputs(u, k, q, torch.logit(beta))), nn.Identity()
    y: Tensor = module(u)[0]
    return y


def drawn(length: int = 9) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """u, k, q, beta"""
    torch.manual_seed(0)
    u = torch.randn(1, length, CHANNELS, dtype=torch.float64)
    k, q = (torch.randn(1, length, SIZE, dtype=torch.float64) for _ in "kq")
    return u, k, q, torch.rand(1, length, CHANNELS, dtype=torch.float64)


@pytest.mark.parametrize("form", ["exact", "deployed"])
def test_it_follows_its_equation(form: str) -> None:
    u, k, q, beta = drawn()
    strength = beta / (1 + beta * k.square().sum(-1, keepdim=True))
    memory, outputs = torch.zeros(1, SIZE, CHANNELS, dtype=torch.float64), []
    for t in range(9):
        key, value = k[:, t, :, None], u[:, t, None]
        if form == "exact":
            memory = memory + key * strength[:, t, None] * (value - k[:, t, None] @ memory)
        else:
            memory = (1 - key**2 * strength[:, t, None]) * memory + key * strength[:, t, None] * value
        outputs.append((q[:, t, None] @ memory).squeeze(-2))
    assert_close(recurrence(form, u, k, q, beta), torch.stack(outputs, 1))


def test_keys_along_the_axes_make_the_two_forms_one() -> None:
    u, _, q, beta = drawn()
    k = F.one_hot(torch.randint(SIZE, (1, 9)), SIZE).double()
    assert_close(recurrence("exact", u, k, q, beta), recurrence("deployed", u, k, q, beta))


def test_with_one_strength_for_all_channels_it_is_deltanet() -> None:
    u, k, q, beta = drawn()
    beta = beta[..., :1].expand_as(u)
    strength = beta[..., :1] / (1 + beta[..., :1] * k.square().sum(-1, keepdim=True))
    o, _ = kernels.delta(q[:, :, None], k[:, :, None], u[:, :, None], beta=strength)
    assert_close(recurrence("exact", u, k, q, beta), o[:, :, 0])


def test_the_step_is_that_of_a_delta_rule_that_overwrites_where_beta_is_without_end() -> None:
    u, k, q, _ = drawn()
    strength = 1 / k.square().sum(-1, keepdim=True)
    unit = F.normalize(k, dim=-1)
    whole, _ = kernels.delta(q[:, :, None], unit[:, :, None], u[:, :, None])
    scaled, _ = kernels.delta(q[:, :, None], k[:, :, None], u[:, :, None], beta=strength)
    beta = torch.full_like(strength, 1e12)
    close, _ = kernels.delta(q[:, :, None], k[:, :, None], u[:, :, None], beta=beta / (1 + beta / strength))
    assert_close(close, scaled)
    lengths = k.norm(dim=-1)[..., None]  # a key of any length overwrites what lies along it, scaled by that length
    again, _ = kernels.delta(q[:, :, None], unit[:, :, None], (u / lengths)[:, :, None])
    assert_close(scaled, again)
    assert not torch.allclose(scaled, whole)


def test_its_first_token_reads_as_mesa_does() -> None:
    u, k, q, beta = drawn(1)
    lam = torch.full((1, SIZE), 2.5, dtype=torch.float64)
    beta = beta[..., :1]
    o, _ = kernels.mesa(q[:, :, None], k[:, :, None], u[:, :, None], beta=beta * 2.5, lam=lam)
    assert_close(recurrence("exact", u, k, q, beta.expand_as(u)), o[:, :, 0])


def test_its_size_is_that_of_the_table() -> None:
    d, c, n, r = 128, 256, 16, 8
    count = sum(p.numel() for p in Longhorn().build(d).parameters())
    assert count == 6 * d * d + c * (r + 2 * n) + r * c + 5 * c + 2 * c
    assert Longhorn().state_size(d, 1000) == StateSize(c * n + 3 * c)
    assert Longhorn().flops(d, 1000) == 2 * (6 * d * d + c * (2 * r + 2 * n)) + 8 * c + 9 * n * c + 2 * c


@pytest.mark.parametrize("form", ["exact", "deployed"])
def test_new_keys_of_zero_change_nothing(form: Any) -> None:
    mixer = Longhorn(form=form, expand=0.5, state_dim=SIZE)
    small = BackboneSpec(name="small", width=16, stack=(Block(mixer=mixer),))
    large = expand(small, factor=3, count=1)
    model = small.build(vocab=11, seed=1)
    wider = large.build(vocab=11, seed=2)
    wider.load_state_dict(expand_weights(small, large, dict(model.named_parameters()), mode="zero"))
    tokens = torch.randint(11, (2, 37), generator=torch.Generator().manual_seed(0))
    assert_close(wider.double()(tokens), model.double()(tokens))
    assert large.stack[0] == Block(mixer=Longhorn(form=form, expand=0.5, state_dim=3 * SIZE, step_rank=1))
