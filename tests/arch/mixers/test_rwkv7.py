"""RWKV-7: decay a channel, one key to forget under, another to write under."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.combine import Gate
from recallmap.arch.mixers.attention import Attention
from recallmap.arch.mixers.mixer import StateSize
from recallmap.arch.mixers.rwkv7 import LEANING, Rwkv7
from recallmap.search.documents import type_hints

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


def model(*values: Literal["own", "lent", "mixed"]) -> BackboneSpec:
    """A block for each."""
    stack = tuple(Block(mixer=replace(SPEC, values=one, value_rank=6)) for one in values)
    return BackboneSpec(name="residual", width=16, stack=stack)


def values_of(module: nn.Module, x: Tensor) -> Tensor:
    before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
    seen: Tensor = torch.lerp(x, before, module.get_parameter("lean")[list(LEANING).index("value")])
    return seen


def test_later_blocks_mix_their_values_with_the_first_ones() -> None:
    torch.manual_seed(0)
    x, lent = torch.randn(2, 9, 16, dtype=torch.float64), torch.randn(2, 9, 16, dtype=torch.float64)
    mixed, own = (replace(SPEC, values=one).build(16).double() for one in ("mixed", "own"))
    kept = {name: value for name, value in mixed.state_dict().items() if not name.startswith("mixing.")}
    own.load_state_dict(kept)
    seen = values_of(mixed, x)
    down, up, bias = (mixed.get_parameter(f"mixing.{name}") for name in ("down.weight", "up", "bias"))
    share = torch.sigmoid(bias + seen @ down.mT @ up)
    v = own.get_submodule("value")(seen)
    own.value = Given(v + share * (lent - v))
    assert_close(mixed(x, lent={"values": lent})[0], own(x)[0])


class Given(nn.Module):
    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Tensor:
        return self.answer


def test_values_are_lent_anew_at_every_token_that_is_decoded() -> None:
    net = model("lent", "mixed", "mixed").build(vocab=5)
    tokens = torch.randint(5, (2, 7), generator=torch.Generator().manual_seed(0))
    whole, state, answers = net(tokens), None, []
    for token in tokens.T:
        answer, state = net.step(token, state)
        answers.append(answer)
    assert_close(torch.stack(answers, 1), whole)


def test_who_borrows_values_needs_one_who_lends() -> None:
    said = r"block 1 \(rwkv7\): it borrows values, and no earlier block lends that"
    with pytest.raises(ValueError, match=said):
        model("own", "mixed", "lent")
    with pytest.raises(ValueError, match="got none; put one before it"):
        replace(SPEC, values="mixed").build(16)(torch.zeros(1, 2, 16))
    gate = Gate(memory=replace(SPEC, values="lent"), attention=Attention(heads=2))
    with pytest.raises(
        ValueError, match=r"memory \(rwkv7\): it shares values with other blocks, which a 'gate' does not"
    ):
        gate.check(16)


def test_a_first_lender_is_heard_by_all_and_a_role_makes_no_other_key() -> None:
    heard = {"values": torch.ones(1, 2, 16)}
    replace(SPEC, values="lent").build(16)(torch.zeros(1, 2, 16), lent=heard)
    assert heard["values"].equal(torch.ones(1, 2, 16))
    assert "values" not in type_hints.plain(Rwkv7())
    assert type_hints.plain(replace(SPEC, values="lent"))["values"] == "lent"
