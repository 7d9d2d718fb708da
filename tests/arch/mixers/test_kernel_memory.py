"""DeepTransformer, SWDT and Dot: memories whose state is all keys that they saw."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.mixers.kernel_memory import DeepTransformer, Dot, Swdt
from recallmap.arch.mixers.kernel_memory import _KernelMemoryModule as KernelMemoryModule
from recallmap.arch.mixers.mixer import StateSize


@pytest.mark.parametrize("chunk", [1, 16])
def test_a_linear_deep_transformer_is_attention_weighed_by_its_rates(chunk: int) -> None:
    torch.manual_seed(0)
    spec = DeepTransformer(heads=2, depth=1, chunk=chunk, residual=False, normalize=True)
    module, x = spec.build(8).double(), torch.randn(1, 9, 8, dtype=torch.float64)
    torch.nn.init.zeros_(module.get_parameter("inputs.rate.linear.weight"))
    q, k, v, _ = module.get_submodule("inputs.qkv")(x, None)
    o, _ = kernels.attention(q, k, v, scale=1.0)  # all rates are the same and cancel
    expected = module.get_submodule("out")(module.get_submodule("output")(o, x))
    assert_close(module(x)[0], expected)


def test_dot_writes_what_it_does_not_know_yet() -> None:
    torch.manual_seed(0)
    spec = Dot(heads=1, depth=1, window=1, chunk=1, residual=False, forget=False, out_norm="none", eta_max=1.0)
    module = spec.build(4).double()
    torch.nn.init.constant_(module.get_parameter("inputs.rate.linear.bias"), 30.0)
    x = torch.randn(1, 1, 4, dtype=torch.float64).expand(1, 12, 4)
    given, _ = module.get_submodule("inputs")(x, None, torch.e)
    keys = torch.nn.functional.normalize(given.k, dim=-1)
    o, _ = kernels.kernel_delta(keys, keys, given.v, eta=given.eta)
    assert_close(o, given.v)


def test_the_anchors_let_a_deep_memory_tell_keys_apart() -> None:
    torch.manual_seed(0)
    module = DeepTransformer(heads=2, anchors=16).build(32)
    assert isinstance(module, KernelMemoryModule)
    anchors = module.learned_anchors(16)
    assert anchors is not None
    keys = torch.nn.functional.normalize(torch.randn(2, 500, 16), dim=-1)
    bent = module.learned_kernel()[0](keys, anchors.points) @ anchors.coefficients
    assert 0.5 < bent.std(1).mean() < 2
    assert bent.mean(1).abs().mean() < bent.std(1).mean()


def test_the_rate_is_folded_so_that_a_key_cannot_blow_up() -> None:
    for spec in (Dot(heads=2, scale=2.0), Dot(heads=2, kernel="polynomial", degree=3)):
        module = spec.build(8)
        assert isinstance(module, KernelMemoryModule)
        kernel, energy = module.learned_kernel()
        key = torch.nn.functional.normalize(torch.randn(1, 4), dim=-1)
        assert_close(kernel(key, key).squeeze(), torch.as_tensor(energy))
        assert spec.rate * spec.chunk * spec.window <= 2


def test_its_size_is_that_of_the_table() -> None:
    d, h, k, v, t = 64, 4, 16, 16, 50
    conv, hidden, anchors = 3 * h * (2 * k + v), 64, 16
    linear = DeepTransformer(depth=1, residual=False).state_size(d, t)
    assert linear == StateSize(conv, growing=t * h * (k + v))
    deep = DeepTransformer(chunk=1).state_size(d, t)
    assert deep == StateSize(h * (hidden * v + anchors * (k + hidden)) + conv, growing=t * h * (k + hidden))
    frozen = DeepTransformer().state_size(d, t)
    at_rest = t // 16 * 16
    assert frozen.growing == deep.growing + h * at_rest * hidden
    assert frozen.fixed == deep.fixed + h * (hidden * v + anchors * hidden)
    assert Swdt(chunk=1).state_size(d, t).fixed == deep.fixed + 3 * h * v

    count = sum(p.numel() for p in DeepTransformer().build(d).parameters())
    around = 2 * d * h * (k + v) + d * h * v + 4 * h * (2 * k + v) + v + d * h + h
    assert count == around + h * (anchors * (k + hidden) + hidden * v)


@pytest.mark.parametrize("dials", [{"kernel": "polynomial", "degree": 3}, {"anchors": 0}, {"anchors": 1}, {"depth": 3}])
@pytest.mark.parametrize("preset", [DeepTransformer, Swdt, Dot])
def test_its_dials_can_be_turned(preset: type[Dot], dials: dict[str, Any]) -> None:
    torch.manual_seed(0)
    y, _ = preset(heads=2, chunk=4, **dials).build(8)(torch.randn(2, 9, 8))
    assert y.isfinite().all()
    assert y.abs().max() > 0


@pytest.mark.parametrize(
    ("dials", "message"),
    [
        ({"scale": 0.0}, "scale must be positive"),
        ({"scale": 100.0}, "scale must be positive and at most 40"),
        ({"kernel": "polynomial", "normalize": True, "depth": 1, "residual": False}, "set kernel to exponential"),
        ({"anchors": -1}, "anchors must be at least 0"),
        ({"degree": 0}, "degree must be at least 1"),
        ({"normalize": True}, "set depth to 1 and residual to false"),
    ],
)
def test_dials_that_make_no_sense_are_refused(dials: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DeepTransformer(**dials)
