"""Linear attention: a kernel in place of the exponential."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from recallmap.arch.mixers.linear_attention import LinearAttention
from recallmap.arch.mixers.mixer import StateSize
from recallmap.arch.parts.feature_map import FeatureMap, features


@pytest.mark.parametrize("feature_map", ["elu_plus_one", "taylor"])
def test_it_is_attention_with_weights_of_the_kernel(feature_map: FeatureMap) -> None:
    torch.manual_seed(0)
    spec = LinearAttention(heads=2, feature_map=feature_map)
    module, x = spec.build(12).double(), torch.randn(2, 19, 12, dtype=torch.float64)
    q, k, v = module.get_submodule("qkv.linear")(x).unflatten(-1, (3, 2, 6)).unbind(2)
    kernel = torch.einsum("bthf,bshf->bhts", features(feature_map, q), features(feature_map, k)).tril()
    weights = kernel / kernel.sum(-1, keepdim=True)
    expected = torch.einsum("bhts,bshv->bthv", weights, v).flatten(-2)
    assert_close(module(x)[0], module.get_submodule("out")(expected), rtol=1e-5, atol=1e-6)


def test_without_normaliser_it_is_a_sum_of_outer_products() -> None:
    torch.manual_seed(0)
    spec = LinearAttention(heads=2, feature_map="identity", normalize=False)
    module, x = spec.build(12).double(), torch.randn(2, 19, 12, dtype=torch.float64)
    q, k, v = module.get_submodule("qkv.linear")(x).unflatten(-1, (3, 2, 6)).unbind(2)
    memory = torch.einsum("bthk,bthv->bthkv", k, v).cumsum(1)
    expected = torch.einsum("bthk,bthkv->bthv", q, memory).flatten(-2)
    assert_close(module(x)[0], module.get_submodule("out")(expected))


def test_it_has_the_parameters_of_attention() -> None:
    count = sum(p.numel() for p in LinearAttention(heads=4, key_dim=8, value_dim=16).build(64).parameters())
    assert count == 2 * 64 * 4 * (8 + 16)


def test_based_carries_what_zoology_counts() -> None:
    spec = LinearAttention(heads=1, feature_map="taylor", key_dim=16, value_dim=128)
    assert spec.state_size(128, 1024) == StateSize((128 + 1) * (1 + 16 + 16 * 17 // 2))


def test_a_sum_of_signed_weights_is_no_normaliser() -> None:
    with pytest.raises(ValueError, match="set normalize to false, or take 'elu_plus_one'"):
        LinearAttention(feature_map="identity")
