"""BaseConv: Zoology's gated convolution, and nothing more."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from recallmap.arch.mixers.base_conv import BaseConv
from recallmap.arch.mixers.mixer import StateSize


def test_it_is_a_convolution_times_a_linear_map_plus_the_input() -> None:
    torch.manual_seed(0)
    module, x = BaseConv().build(8).double(), torch.randn(2, 10, 8, dtype=torch.float64)
    taps, bias = module.get_parameter("conv.weight"), module.get_parameter("conv.bias")
    convolved = F.conv1d(F.pad(x.mT, (2, 0)), taps.flip(-1)[:, None], bias, groups=8).mT
    gate = module.get_submodule("gate")(x)
    assert_close(module(x)[0], convolved * gate + x)


def test_it_sees_as_many_tokens_as_it_has_taps() -> None:
    torch.manual_seed(0)
    module, x = BaseConv(short_conv=3).build(8), torch.randn(1, 10, 8)
    changed = torch.cat([-x[:, :1], x[:, 1:]], dim=1)
    reached = (module(x)[0] != module(changed)[0]).any(-1)[0]
    assert reached.nonzero().flatten().tolist() == [0, 1, 2]


def test_it_carries_all_but_one_of_its_taps() -> None:
    assert BaseConv(short_conv=3).state_size(128, 1000) == StateSize(2 * 128)


def test_it_needs_a_tap() -> None:
    with pytest.raises(ValueError, match="short_conv must be at least 1, got 0"):
        BaseConv(short_conv=0)
