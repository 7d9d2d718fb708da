"""DeltaNet and Gated DeltaNet with `scale` "key_dim" are the published layers, whose norm of a head has eps 1e-5."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch.mixers import DeltaNet, GatedDeltaNet
from recallmap.arch.mixers.mixer import MixerModule
from recallmap.arch.parts.heads import ScaledHeads

HEADS, KEY, VALUE, WIDTH = 2, 16, 24, 32
SPECS: list[DeltaNet | GatedDeltaNet] = [
    DeltaNet(heads=HEADS, key_dim=KEY, value_dim=VALUE, out_gate=False, scale="key_dim"),
    GatedDeltaNet(heads=HEADS, key_dim=KEY, value_dim=VALUE, scale="key_dim"),
]
of_both = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)


def module_of(spec: DeltaNet | GatedDeltaNet) -> MixerModule:
    torch.manual_seed(0)
    return spec.build(WIDTH).double()


def published(spec: DeltaNet | GatedDeltaNet, module: MixerModule, x: Tensor) -> Tensor:
    """The layer as flash-linear-attention has it, token by token, with the weights of `module`."""
    weights = module.get_parameter
    taps = weights("qkv.conv.weight")
    mapped = F.pad((x @ weights("qkv.linear.weight").T).mT, (taps.shape[1] - 1, 0))
    shaped = F.silu(F.conv1d(mapped, taps.flip(-1)[:, None], groups=len(taps))).mT
    q, k, v = (part.unflatten(-1, (HEADS, -1)) for part in shaped.split([HEADS * KEY, HEADS * KEY, HEADS * VALUE], -1))
    q, k = (part * (part.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for part in (q, k))
    q = q * KEY**-0.5
    beta, fade = torch.sigmoid(x @ weights("write.linear.weight").T), torch.ones(*x.shape[:2], HEADS).to(x)
    if isinstance(spec, GatedDeltaNet):
        step = F.softplus(x @ weights("decay.linear.weight").T + weights("decay.bias"))
        fade = torch.exp(-weights("decay.log_rate").exp() * step)
    memory, outputs = torch.zeros(x.shape[0], HEADS, KEY, VALUE).to(x), []
    for t in range(x.shape[1]):
        memory = fade[:, t, :, None, None] * memory
        stored = torch.einsum("bhk,bhkv->bhv", k[:, t], memory)
        memory = memory + torch.einsum("bhk,bhv->bhkv", k[:, t], beta[:, t, :, None] * (v[:, t] - stored))
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], memory))
    o = torch.stack(outputs, 1)
    o = o * (o.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weights("read.norm.weight")
    if spec.out_gate:
        o = o * F.silu(x @ weights("read.gate.weight").T).unflatten(-1, (HEADS, -1))
    return o.flatten(-2) @ weights("out.weight").T


@of_both
def test_the_whole_layer_is_the_published_one(spec: DeltaNet | GatedDeltaNet) -> None:
    module, x = module_of(spec), torch.randn(2, 40, WIDTH, dtype=torch.float64)
    assert_close(module(x)[0], published(spec, module, x), rtol=1e-12, atol=1e-12)


@of_both
def test_with_scale_one_it_is_another_layer_before_training(spec: DeltaNet | GatedDeltaNet) -> None:
    """The eps of the norm rules where outputs are small: it is no detail."""
    module, x = module_of(spec), torch.randn(2, 40, WIDTH, dtype=torch.float64)
    expected = published(spec, module, x)
    module.scale = 1.0  # type: ignore[assignment]
    assert (module(x)[0] - expected).norm() > 0.02 * expected.norm()


@of_both
def test_the_default_is_scale_one_as_records_that_say_none_have_it(spec: DeltaNet | GatedDeltaNet) -> None:
    assert isinstance(spec, ScaledHeads)
    assert type(spec)().read_scale(WIDTH) == 1.0
    assert spec.read_scale(WIDTH) == KEY**-0.5


@of_both
def test_the_memory_that_is_probed_has_no_scale(spec: DeltaNet | GatedDeltaNet) -> None:
    """A norm stands behind every read of a model and none behind the probe's, which compares with the values themselves."""
    k = F.normalize(torch.randn(1, 1, HEADS, KEY, dtype=torch.float64), dim=-1)
    v = torch.randn(1, 1, HEADS, VALUE, dtype=torch.float64)
    assert_close(spec.memory(WIDTH).answer(k, k, v, torch.ones(1, 1, HEADS, dtype=torch.float64)), v)
