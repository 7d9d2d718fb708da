"""Log-linear attention, and the op beneath it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.mixers.log_linear import LogLinear
from recallmap.arch.mixers.mamba2 import Mamba2
from recallmap.arch.mixers.mixer import StateSize

IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["recurrent", "chunked"])


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def inputs(time: int, levels: int) -> dict[str, Tensor]:
    q, k, v = (drawn(1, time, 2, 4, seed=seed) for seed in range(3))
    return {"q": q, "k": k, "v": v, "levels": drawn(1, time, 2, levels, seed=3).exp()}


@IMPLEMENTATIONS
def test_a_token_sees_the_buckets_of_a_binary_counter(implementation: str) -> None:
    """Of token 6 = 110: tokens 0 to 3 in a bucket of four, 4 and 5 in one of two, and itself."""
    given = inputs(7, 5)
    o, _ = kernels.log_linear(**given, implementation=implementation, chunk=2)
    level = torch.tensor([3, 3, 3, 3, 2, 2, 0])
    scores = torch.einsum("hk,shk->sh", given["q"][0, 6], given["k"][0]) * given["levels"][0, 6].mT[level]
    assert_close(o[0, 6], torch.einsum("sh,shv->hv", scores, given["v"][0]))


@IMPLEMENTATIONS
@pytest.mark.parametrize("levels", [2, 4, 9])
def test_levels_that_count_alike_are_gated_linear_attention(implementation: str, levels: int) -> None:
    """11.10, also where there are fewer levels than the sequence fills"""
    given = inputs(45, levels) | {"levels": torch.ones(1, 45, 2, levels).double()}
    gates = {"log_decay": -drawn(1, 45, 2, seed=4).exp(), "beta": drawn(1, 45, 2, seed=5).sigmoid()}
    o, state = kernels.log_linear(**given, **gates, return_state=True, implementation=implementation)
    given.pop("levels")
    expected, memory = kernels.gated_linear(**given, **gates, return_state=True)
    assert_close(o, expected)
    assert state is not None
    assert_close(state.buckets.sum(2), memory)


def test_with_weights_of_one_it_is_mamba2() -> None:
    torch.manual_seed(0)
    plain = Mamba2(form="shared_qk", heads=2, key_dim=6, value_dim=4).build(8).double()
    module = LogLinear(heads=2, key_dim=6, value_dim=4, levels=6).build(8).double()
    held, rows = dict(plain.named_parameters()), plain.get_parameter("linear.weight").shape[0]
    raw = torch.full((12, 1), math.log(math.e - 1), dtype=torch.float64)  # whose softplus is 1
    with torch.no_grad():
        for name in held.keys() - {"linear.weight"}:
            module.get_parameter(name).copy_(held[name])
        module.get_parameter("linear.weight")[:rows] = held["linear.weight"]
        module.get_parameter("linear.weight")[rows:] = torch.cat((raw, torch.zeros(12, 7).double()), 1)
    x = torch.cat((torch.ones(2, 37, 1).double(), drawn(2, 37, 7)), -1)
    assert_close(module(x)[0], plain(x)[0])


def test_it_has_the_size_of_mamba2_and_of_its_weights() -> None:
    spec = LogLinear(heads=4, key_dim=8, value_dim=16, levels=10)
    plain = Mamba2(form="shared_qk", heads=4, key_dim=8, value_dim=16)
    assert spec.parameters(64) == plain.parameters(64) + 64 * 4 * 10 + 4 * 10
    assert spec.state_size(64, 999) == StateSize(9 * 4 * 8 * 16 + 3 * (2 * 8 + 64))


def test_a_single_level_is_refused() -> None:
    with pytest.raises(ValueError, match="levels must be at least 2 and at most 63, got 1"):
        LogLinear(levels=1)
    with pytest.raises(
        ValueError, match="log_linear: levels must be at least 2, the token itself and what is behind, got 1"
    ):
        kernels.log_linear(**inputs(3, 1))
