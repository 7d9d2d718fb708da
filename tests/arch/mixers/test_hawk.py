"""Hawk: a gated linear recurrent unit behind a convolution, beside a gate."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch.mixers.hawk import FIRST_DECAYS, Hawk
from recallmap.arch.mixers.mixer import StateSize

SPEC = Hawk(expand=0.5, gate_blocks=2)


def gates(module: torch.nn.Module, u: Tensor) -> tuple[Tensor, Tensor]:
    """(decay a, entry i), each [B, T, R], from block-diagonal matrices written out."""
    weight, bias = module.get_parameter("unit.weight"), module.get_parameter("unit.bias")
    size = weight.shape[1]
    recurrence, entry = (
        torch.sigmoid(u @ torch.block_diag(*weight[..., n * size : (n + 1) * size]) + bias[n]) for n in range(2)
    )
    return torch.exp(-8 * recurrence * F.softplus(module.get_parameter("unit.rate"))), entry


def test_it_is_the_closed_form_of_its_recurrence() -> None:
    torch.manual_seed(0)
    module, x = SPEC.build(16).double(), torch.randn(1, 9, 16, dtype=torch.float64)
    torch.nn.init.normal_(module.get_parameter("unit.bias"))
    u, _ = module.get_submodule("conv")(module.get_submodule("linear")(x))
    decay, entry = gates(module, u)
    room = torch.sqrt(1 - decay**2)
    room[:, 0] = 1  # the first token of a sequence is taken in whole
    taken = room * entry * u
    h = torch.stack([sum(decay[:, s + 1 : t + 1].prod(1) * taken[:, s] for s in range(t + 1)) for t in range(9)], 1)
    y = h * F.gelu(module.get_submodule("gate")(x))
    assert_close(module(x)[0], module.get_submodule("out")(y))


def test_only_the_very_first_token_is_taken_in_whole() -> None:
    torch.manual_seed(0)
    module, x = SPEC.build(16).double(), torch.randn(1, 2, 16, dtype=torch.float64)
    _, state = module(x[:, :1], return_state=True)
    assert not torch.allclose(module(x[:, 1:], state)[0], module(x[:, 1:])[0])


def test_channels_start_with_long_memories() -> None:
    torch.manual_seed(0)
    rate = F.softplus(Hawk().build(512).get_parameter("unit.rate"))
    decay = torch.exp(-rate)
    assert FIRST_DECAYS[0] < decay.min() < 0.91
    assert 0.995 < decay.max() < FIRST_DECAYS[1]


def test_its_size_is_that_of_the_table() -> None:
    d, r, n = 128, 160, 8
    spec = Hawk(gate_blocks=n)
    count = sum(p.numel() for p in spec.build(d).parameters())
    assert count == 3 * d * r + 2 * r * r // n + 10 * r + d
    assert spec.state_size(d, 1000) == StateSize(r + 3 * r)
    assert spec.flops(d, 1000) == 6 * d * r + 4 * r * r / n + 20 * r


def test_blocks_that_do_not_share_out_the_channels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"3 gate_blocks do not share out 20 channels \(expand 1.25 times width 16\)"):
        Hawk(gate_blocks=3).check(16)
    with pytest.raises(ValueError, match="expand must be positive"):
        Hawk(expand=0)
