"""Queries, keys and values convolved where they lie: what they are when each part is cut out, convolved and put together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.testing import assert_close

from recallmap.arch.parts import heads
from recallmap.arch.parts.heads import Heads, QueryKeyValue

GPU = pytest.param("cuda", marks=pytest.mark.gpu)


class TwoWrites(Heads):
    """As DeltaProduct has them."""

    @property
    def writes(self) -> int:
        return 2


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize(
    ("dials", "unit"),
    [
        (Heads(heads=3, conv_v=True), True),
        (Heads(heads=2, key_dim=5, value_dim=9), True),
        (Heads(heads=1, key_dim=130, value_dim=3, conv_v=True, activation="identity", short_conv=2), False),
        (TwoWrites(heads=2, key_dim=3, value_dim=4, conv_v=True), True),
    ],
    ids=["all", "queries and keys", "wide", "two writes"],
)
def test_queries_keys_and_values_are_convolved_where_they_lie(
    dials: Heads, unit: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs, states and gradients of members under vmap, by the interpreter where there is no GPU."""
    modules = [QueryKeyValue(dials, 24, qk_norm=unit).to(device) for _ in range(2)]
    own = [dict(module.named_parameters()) for module in modules]
    x = torch.randn(2, 2, 21, 24, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()

    def found() -> list[Tensor]:
        stacked = {name: torch.stack([one[name].detach() for one in own]).requires_grad_() for name in own[0]}
        results = torch.func.vmap(lambda one, x: functional_call(modules[0], one, (x, None)))(stacked, x)
        loss = sum((part * torch.linspace(-1, 1, part.shape[-1], device=device)).sum() for part in results[:3])
        assert isinstance(loss, Tensor)
        return [*results, *torch.autograd.grad(loss, [x, *stacked.values()])]

    shaped: Any = heads.short_conv_qkv
    served = []
    monkeypatch.setattr(heads, "fuses", lambda x: False)
    expected = found()
    monkeypatch.setattr(heads, "fuses", lambda x: True)
    monkeypatch.setattr(heads, "short_conv_qkv", lambda *x, **rest: served.append(shaped(*x, **rest)) or served[-1])
    assert_close(found(), expected, rtol=1e-4, atol=1e-5)
    assert served[0] is not None
