"""SwiGLU, rotations, and norms of a model's width with the vectors or sums ahead of them, as one op each where a GPU trains a
step that is not compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recallmap.arch import mlp
from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.kernels import embedding, select
from recallmap.arch.kernels.swiglu import swiglu
from recallmap.arch.mixers.attention import Attention
from recallmap.arch.mlp import SwiGLU
from recallmap.arch.parts import norm, rotary


def test_a_width_that_is_no_pair_is_refused() -> None:
    with pytest.raises(ValueError, match=r"x must be \[batch, time, heads, 2 \* width\], got shape \[1, 2, 3, 5\]"):
        swiglu(torch.zeros(1, 2, 3, 5))


@pytest.mark.parametrize(("low", "most"), [(False, 1e-5), (True, 1e-2)], ids=["fp32", "fp16"])
def test_norms_rotations_and_swiglu_as_one_op_each_are_what_they_are_in_parts(
    low: bool, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, by the interpreter: outputs and gradients of members under vmap."""
    stack = (Block(mixer=Attention(heads=2), mlp=SwiGLU(expand=2)),)
    models = [BackboneSpec(name="x", width=24, stack=stack).build(vocab=9, seed=seed) for seed in range(2)]
    ids = torch.randint(9, (2, 2, 17), generator=torch.Generator().manual_seed(0))

    def found() -> list[torch.Tensor]:
        own = [dict(model.named_parameters()) for model in models]
        stacked = {name: torch.stack([one[name].detach() for one in own]).requires_grad_() for name in own[0]}
        with torch.autocast("cpu", torch.float16, enabled=low):
            y = torch.func.vmap(lambda one, x: torch.func.functional_call(models[0], one, (x,)))(stacked, ids).float()
        return [y.detach(), *torch.autograd.grad(y.square().sum(), list(stacked.values()))]

    apart = found()
    served, choose = [], select.choose
    expected = {"norm_gate": 0, "add_norm": 2, "rotary": 2, "swiglu": 1}

    def fused(op: str, **rest: Any) -> str:
        served.append(op)
        return choose(op, **rest | ({"wanted": "fused"} if op in expected else {}))

    monkeypatch.setattr(select, "choose", fused)
    for module in (norm, mlp, rotary, embedding):
        monkeypatch.setattr(module, "fuses", lambda x: True)
    for one, other in zip(found(), apart, strict=True):
        assert float((one - other).abs().max()) <= most * float(other.abs().max())
    assert {op: served.count(op) for op in expected} == expected
