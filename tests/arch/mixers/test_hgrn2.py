"""HGRN2: gated linear attention with what the gate lets go of for a key."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.mixers.hgrn2 import HGRN2
from recallmap.arch.mixers.mixer import StateSize


@pytest.mark.parametrize("bound", [0.0, 0.6])
def test_it_is_gla_with_one_minus_the_decay_for_a_key(bound: float) -> None:
    torch.manual_seed(0)
    spec = HGRN2(heads=2, key_dim=4, value_dim=5, lower_bound=bound)
    module, x = spec.build(16).double(), torch.randn(2, 37, 16, dtype=torch.float64)
    q, gate, v = module.get_submodule("linear")(x).split([8, 8, 10], dim=-1)
    decay = (bound + (1 - bound) * torch.sigmoid(gate)).unflatten(-1, (2, 4))
    assert decay.min() > bound
    q, v = F.silu(q).unflatten(-1, (2, 4)), v.unflatten(-1, (2, 5))
    o, _ = kernels.gated_linear(q, 1 - decay, v, log_decay=decay.log(), scale=0.5, implementation="recurrent")
    assert_close(module(x)[0], module.get_submodule("out")(module.get_submodule("norm")(o.flatten(-2))))


def test_its_size_is_that_of_the_table() -> None:
    d, h, k, v = 128, 8, 16, 16
    count = sum(p.numel() for p in HGRN2(heads=h).build(d).parameters())
    assert count == 2 * d * h * (k + v) + h * v
    assert HGRN2(heads=h).state_size(d, 1000) == StateSize(h * k * v)
    assert HGRN2(heads=h).flops(d, 1000) == 4 * d * h * (k + v) + 5 * h * k * v


def test_a_bound_at_which_nothing_could_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="lower_bound must lie in"):
        HGRN2(lower_bound=1.0)
