"""PaTH: attention whose keys later tokens reflect, and the op beneath it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.kernels.benchmark import timing
from recallmap.arch.mixers.mixer import MixerModule, StateSize
from recallmap.arch.mixers.path import Path

IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["recurrent", "chunked"])


def built(spec: Path) -> MixerModule:
    torch.manual_seed(0)
    module: MixerModule = spec.build(16).double()
    return module


def tokens(length: int = 11) -> Tensor:
    return torch.randn(2, length, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def example(variant: str, time: int = 40) -> dict[str, Tensor]:
    return timing.example("path", variant, timing.Shape(batch=2, time=time, heads=2, key_width=6, value_width=3))


def test_it_is_the_published_equation() -> None:
    """Products of reflections between every two tokens, each by itself."""
    module, x = built(Path(heads=2, rank=4, forget=True)), tokens()
    q, k, v = module.get_submodule("qkv")(x).unflatten(-1, (3, 2, 8)).unbind(2)
    raw = F.pad(module.get_submodule("up")(module.get_submodule("down")(x)), (0, 0, 2, 0))
    taps = module.get_parameter("conv.weight")
    w = F.silu(sum(taps[:, i] * raw[:, 2 - i : 13 - i] for i in range(3))).unflatten(-1, (2, 8))
    w = w / (w.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    beta = 2 * torch.sigmoid(module.get_submodule("strength.linear")(x))
    gate = F.logsigmoid(module.get_submodule("decay.linear")(x))
    mirrors = torch.eye(8).double() - beta[..., None, None] * w[..., :, None] * w[..., None, :]
    outputs = []
    for t in range(11):
        scores = []
        for j in range(t + 1):
            key = k[:, j, :, None]
            for r in range(j + 1, t + 1):
                key = key @ mirrors[:, r]
            scores.append((key.squeeze(-2) * q[:, t]).sum(-1) / 8**0.5 + gate[:, j + 1 : t + 1].sum(1))
        outputs.append(torch.einsum("sbh,bshv->bhv", torch.stack(scores).softmax(0), v[:, : t + 1]))
    assert_close(module(x)[0], module.get_submodule("out")(torch.stack(outputs, 1).flatten(-2)))


@IMPLEMENTATIONS
def test_without_reflections_it_is_attention_with_gates(implementation: str) -> None:
    """11.10: beta = 0 is FoX."""
    inputs = example("fading") | {"beta": torch.zeros(2, 40, 2, dtype=torch.float64)}
    expected, _ = kernels.attention(*(inputs[name] for name in "qkv"), log_decay=inputs["log_decay"])
    assert_close(kernels.path(**inputs, implementation=implementation)[0], expected)


@IMPLEMENTATIONS
def test_a_mirror_twice_is_none(implementation: str) -> None:
    """With beta = 2, and the same w at every second pair of tokens: keys come back after each pair."""
    inputs = example("plain", 20)
    inputs["w"] = inputs["w"][:, torch.arange(20) // 2 * 2]
    inputs["beta"] = torch.full((2, 20, 2), 2.0, dtype=torch.float64)
    _, state = kernels.path(**inputs, return_state=True, implementation=implementation)
    assert state is not None
    assert_close(state.keys[:, 1::2], inputs["k"][:, 1::2])  # what the later one of a pair wrote
    assert not torch.allclose(state.keys[:, :20:2], inputs["k"][:, ::2])


def test_it_has_the_published_size() -> None:
    assert Path(heads=4).parameters(64) == 4 * 64**2 + 64 * 64 + 3 * 64 + 64 * 4 + 4 == 20932
    assert Path(heads=4, forget=True).parameters(64) == 20932 + 64 * 4 + 4
    assert Path(heads=4).state_size(64, 100) == StateSize(2 * 64, growing=100 * 2 * 64)
    assert Path(heads=4, forget=True).state_size(64, 100) == StateSize(2 * 64, growing=100 * (2 * 64 + 4))


def test_it_says_that_its_gate_is_foxs() -> None:
    assert Path().differs() == ()
    assert "not divided by sqrt(K)" in Path(forget=True).differs()[0]


def test_a_state_with_gates_is_none_without() -> None:
    inputs = example("fading", 5)
    _, state = kernels.path(**inputs, return_state=True)
    del inputs["log_decay"]
    with pytest.raises(ValueError, match="the state has fades, must be of a call without log_decay"):
        kernels.path(**inputs, initial_state=state)
