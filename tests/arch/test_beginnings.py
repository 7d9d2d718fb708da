"""How a model begins: what each `init` draws, and MesaNet's beginning whole and part by part."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.mixers.linear_attention import LinearAttention
from recallmap.search import codec


def spec(**rest: Any) -> BackboneSpec:
    return BackboneSpec(name="small", width=64, stack=(Block(mixer=LinearAttention(heads=2)),), **rest)


@pytest.mark.parametrize(
    ("rest", "std"),
    [
        ({"init": "fan_in"}, 0.125),
        ({"init": "normal"}, 0.02),
        ({"init": "torch"}, 0.02),
        ({"init": "mesanet"}, 1.0),
        ({"init": "mesanet", "embedding_std": 0.5}, 0.5),
        ({"init": "fan_in", "embedding_std": 1.0}, 1.0),
    ],
)
def test_embeddings_begin_with_the_spread_of_init_or_one_of_their_own(rest: dict[str, Any], std: float) -> None:
    weight = spec(**rest).build(vocab=512).state_dict()["embedding.weight"]
    assert float(weight.std()) == pytest.approx(std, rel=0.03)


def test_mesanets_beginning_is_its_parts_together() -> None:
    whole = spec(init="mesanet")
    parts = spec(init="fan_in", tied=True, soft_cap=30.0, embedding_std=1.0)
    assert (whole.tied, whole.soft_cap) == (True, 30.0)
    assert spec(init="mesanet", soft_cap=20.0).soft_cap == 20.0
    first, second = whole.build(vocab=32).state_dict(), parts.build(vocab=32).state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_specs_from_before_keep_their_keys() -> None:
    assert "embedding_std" not in codec.plain(spec())
    assert codec.plain(spec(embedding_std=1.0))["embedding_std"] == 1.0


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("inf")])
def test_embeddings_need_a_spread(wrong: float) -> None:
    with pytest.raises(ValueError, match="embedding_std must be positive or null"):
        spec(embedding_std=wrong)
