"""Attention: what a window does, what it costs, what it carries."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch.mixers.attention import Attention
from recallmap.arch.mixers.mixer import MixerModule, StateSize
from recallmap.arch.parts.rotary import rotate


def built(spec: Attention, width: int = 16) -> MixerModule:
    torch.manual_seed(0)
    module: MixerModule = spec.build(width).double()
    return module


def tokens(length: int = 21) -> Tensor:
    return torch.randn(2, length, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_it_is_the_softmax_of_rotated_scores() -> None:
    module, x = built(Attention(heads=2)), tokens()
    q, k, v = module.get_submodule("qkv")(x).unflatten(-1, (3, 2, 8)).unbind(2)
    position = torch.arange(21)
    scores = torch.einsum("bthk,bshk->bhts", rotate(q, position), rotate(k, position)) / 8**0.5
    weights = scores.masked_fill(torch.ones(21, 21).triu(1).bool(), -torch.inf).softmax(-1)
    expected = torch.einsum("bhts,bshv->bthv", weights, v).flatten(-2)
    assert_close(module(x)[0], module.get_submodule("out")(expected))


@pytest.mark.parametrize("window", [21, 22, 1000])
def test_a_window_as_long_as_the_sequence_is_no_window(window: int) -> None:
    assert_close(built(Attention(heads=2, window=window))(tokens())[0], built(Attention(heads=2))(tokens())[0])


def test_a_window_of_one_gives_the_value_itself() -> None:
    module, x = built(Attention(heads=2, window=1)), tokens()
    v = module.get_submodule("qkv")(x)[..., 32:]
    assert_close(module(x)[0], module.get_submodule("out")(v))


def test_a_token_behind_the_window_is_forgotten() -> None:
    module, x = built(Attention(heads=2, window=4)), tokens()
    changed = torch.cat([-x[:, :1], x[:, 1:]], dim=1)
    before, after = module(x)[0], module(changed)[0]
    assert_close(before[:, 4:], after[:, 4:], rtol=0, atol=0)
    assert not torch.isclose(before[:, 3], after[:, 3]).all()


def test_what_it_carries_grows_up_to_the_window() -> None:
    assert Attention(heads=8).state_size(128, 100) == StateSize(0, growing=2 * 100 * 128)
    assert Attention(heads=8, window=64).state_size(128, 63).growing == 2 * 63 * 128
    assert Attention(heads=8, window=64).state_size(128, 64) == StateSize(2 * 64 * 128)
    assert Attention(heads=8, window=64).state_size(128, 999) == StateSize(2 * 64 * 128)


@pytest.mark.parametrize("window", [None, 5, 21, 40])
def test_it_costs_the_mean_of_the_tokens_seen(window: int | None) -> None:
    seen = sum(min(t, window or t) for t in range(1, 22)) / 21
    projections = 2 * 4 * 16 * 16
    assert Attention(heads=2, window=window).flops(16, 21) == pytest.approx(projections + 4 * 16 * seen)


@pytest.mark.parametrize("bias", [False, True])
def test_it_has_four_square_matrices(bias: bool) -> None:
    count = sum(p.numel() for p in built(Attention(heads=2, bias=bias)).parameters())
    assert count == 4 * 16 * 16 + (4 * 16 if bias else 0)


def test_rope_needs_an_even_head() -> None:
    with pytest.raises(ValueError, match=r"head_dim must be even, got 3; or set rope to false"):
        Attention(heads=2, head_dim=3).check(16)
    Attention(heads=2, head_dim=3, rope=False).check(16)


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        Attention(window=0)


@pytest.mark.parametrize("out_gate", ["head", "channel"])
def test_an_open_gate_is_attention_and_a_closed_one_gives_nothing(out_gate: Literal["head", "channel"]) -> None:
    """11.7"""
    module, x = built(Attention(heads=2, out_gate=out_gate, bias=True)), tokens()
    plain = Attention(heads=2, bias=True).build(16).double()
    plain.load_state_dict({name: p for name, p in module.state_dict().items() if not name.startswith("gate")})
    gate = module.get_parameter("gate.bias")
    torch.nn.init.constant_(gate, 1e3)
    assert_close(module(x)[0], plain(x)[0])
    torch.nn.init.constant_(gate, -1e3)
    assert_close(module(x)[0], module.get_parameter("out.bias").expand(2, 21, -1))


def test_the_gate_is_made_of_the_layers_input_ahead_of_the_map_back() -> None:
    module, x = built(Attention(heads=2, rope=False, window=1, out_gate="channel")), tokens()
    v = module.get_submodule("qkv")(x)[..., 32:]  # what a window of one reads
    expected = module.get_submodule("out")(v * torch.sigmoid(module.get_submodule("gate")(x)))
    assert_close(module(x)[0], expected)
    assert Attention(heads=2, out_gate="channel").parameters(16) == 5 * 16**2
    assert Attention(heads=2, out_gate="head").parameters(16) == 4 * 16**2 + 2 * 16
