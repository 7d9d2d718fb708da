"""What the parts of mixers compute, by their definitions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from recallmap.arch.mlp import Mlp2, SwiGLU
from recallmap.arch.parts import gates
from recallmap.arch.parts.feature_map import SIGNED, FeatureMap, count_features, features
from recallmap.arch.parts.gates import (
    LEAST_LOG_DECAY,
    RETENTION,
    LowRankDecay,
    SigmoidDecay,
    SignedDecay,
    SoftplusDecay,
    WriteStrength,
    gates_of,
)
from recallmap.arch.parts.norm import RMSNorm, build_norm, l2_norm
from recallmap.arch.parts.rotary import rotate
from recallmap.arch.parts.short_conv import ShortConv


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("taps", [1, 2, 4])
def test_a_short_convolution_is_a_causal_depthwise_convolution(taps: int) -> None:
    conv, x = ShortConv(6, taps, bias=True), torch.randn(2, 9, 6)
    assert conv.bias is not None
    padded = F.pad(x.mT, (taps - 1, 0))
    expected = F.conv1d(padded, conv.weight.flip(-1)[:, None], conv.bias, groups=6).mT
    assert_close(conv(x)[0], expected)


def test_a_short_convolution_carries_its_last_inputs() -> None:
    conv, x = ShortConv(6, 4), torch.randn(2, 9, 6)
    _, cache = conv(x[:, :2])  # fewer tokens than taps
    assert_close(cache, torch.cat([torch.zeros(2, 1, 6), x[:, :2]], dim=1))
    assert_close(conv(x[:, 2:], cache)[0], conv(x)[0][:, 2:])


def test_rms_norm_gives_a_mean_square_of_one() -> None:
    x = 3 * torch.randn(2, 5, 4, 8)
    assert_close(RMSNorm(8, eps=0.0)(x).square().mean(-1), torch.ones(2, 5, 4))
    per_head = RMSNorm(4, 8)
    assert per_head.weight.shape == (4, 8)
    assert_close(per_head(x), RMSNorm(8)(x))


def test_norms_are_built_by_name() -> None:
    assert isinstance(build_norm("rms", 4), RMSNorm)
    assert isinstance(build_norm("layer", 4), torch.nn.LayerNorm)


def test_statistics_are_not_taken_in_16_bits() -> None:
    x = torch.full((1, 300), 256.0, dtype=torch.float16)  # the sum of squares overflows float16
    assert_close(RMSNorm(300).half()(x), torch.ones_like(x))
    assert_close(l2_norm(x), torch.full_like(x, 300**-0.5))


def test_l2_norm_of_nothing_is_nothing() -> None:
    x = torch.zeros(3, 4, requires_grad=True)
    l2_norm(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_rotated_scores_know_only_the_distance() -> None:
    q, k = torch.randn(1, 5, 2, 8), torch.randn(1, 5, 2, 8)
    here, there = torch.arange(5), torch.arange(5) + 1000
    scores = torch.einsum("bqhk,bshk->bhqs", rotate(q, here), rotate(k, here))
    moved = torch.einsum("bqhk,bshk->bhqs", rotate(q, there), rotate(k, there))
    assert_close(scores, moved)
    assert_close(rotate(q, here).norm(dim=-1), q.norm(dim=-1))


def test_members_turn_by_positions_of_their_own() -> None:
    x, position = torch.randn(3, 1, 5, 2, 4), torch.arange(15).view(3, 5)
    alone = torch.stack([rotate(x[m], position[m]) for m in range(3)])
    assert_close(torch.vmap(rotate)(x, position), alone)


def test_a_rotation_turns_channel_i_with_channel_i_plus_half() -> None:
    x = torch.zeros(1, 1, 1, 8)
    x[..., 1] = 1.0
    angle = torch.tensor(3 * 10_000.0 ** (-1 / 4))
    turned = rotate(x, torch.tensor([3]))[0, 0, 0]
    assert_close(turned[1], angle.cos())
    assert_close(turned[5], angle.sin())


@pytest.mark.parametrize("name", ["identity", "elu_plus_one", "relu", "square", "taylor"])
def test_features_are_as_many_as_told_and_as_positive_as_needed(name: FeatureMap) -> None:
    q, k = features(name, torch.randn(50, 4)), features(name, torch.randn(50, 4))
    assert q.shape[-1] == count_features(name, 4)
    assert bool(((q @ k.mT) >= 0).all()) == (name not in SIGNED)


def test_taylor_features_are_the_second_order_exponential() -> None:
    q, k = torch.randn(5), torch.randn(5)
    score = q @ k / 5**0.5
    assert_close(features("taylor", q) @ features("taylor", k), 1 + score + score**2 / 2)


def test_write_strength_lies_below_its_most() -> None:
    x = 100 * torch.randn(50, 3, 4)
    beta = WriteStrength(4, 2, bias=True, most=2.0)(x)
    assert beta.min() >= 0
    assert 1.9 < beta.max() <= 2


def test_memory_is_kept_before_training() -> None:
    assert_close(SigmoidDecay(4, 2)(torch.zeros(1, 1, 4)).exp(), torch.full((1, 1, 2), RETENTION))


def test_decays_are_at_most_one_and_never_absorb_what_follows() -> None:
    x = 1e4 * torch.randn(200, 1, 4)
    for gate in (SigmoidDecay(4, 6), LowRankDecay(4, 6, rank=2), SoftplusDecay(4, 6, rates=(1.0, 16.0))):
        log_decay = gate(x)
        assert log_decay.shape == (200, 1, 6)
        assert log_decay.max() <= 0
        assert log_decay.min() == LEAST_LOG_DECAY


def test_a_signed_decay_is_its_size_and_its_sign() -> None:
    gate, x = SignedDecay(4, 6), torch.randn(50, 3, 4)
    torch.nn.init.zeros_(gate.linear.bias)
    log_size, sign = gate(x)
    assert_close(sign * log_size.exp(), torch.tanh(gate.linear(x) / 2))
    assert set(sign.unique().tolist()) == {-1.0, 1.0}
    log_size, _ = gate(torch.zeros(1, 1, 4))
    log_size.sum().backward()
    assert gate.linear.bias.grad is not None
    assert gate.linear.bias.grad.isfinite().all()


def test_softplus_decay_starts_with_steps_of_a_thousandth_to_a_tenth() -> None:
    gate = SoftplusDecay(4, 1000, rates=(1.0, 16.0))
    step = gate.step(torch.zeros(1, 1, 4))
    assert 1e-3 <= step.min() < 2e-3
    assert 5e-2 < step.max() <= 0.1
    assert_close(gate(torch.zeros(1, 1, 4)), -gate.log_rate.exp() * step)


def test_gates_are_float32_where_inputs_are_bfloat16() -> None:
    x = torch.randn(2, 3, 4, dtype=torch.bfloat16)
    for gate in (SigmoidDecay(4, 6), LowRankDecay(4, 6), SoftplusDecay(4, 6, rates=(1.0, 16.0))):
        assert gate.bfloat16()(x).dtype == torch.float32


def test_gates_that_a_gpu_reads_by_one_product_are_what_they_are_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    several = (WriteStrength(4, 6, bias=True, most=2), SoftplusDecay(4, 3, rates=(1.0, 16.0)), SigmoidDecay(4, 2))
    x = torch.randn(2, 5, 4, requires_grad=True)
    leaves = [x, *(parameter for gate in several for parameter in gate.parameters())]

    def found() -> list[torch.Tensor]:
        results = gates_of(x, *several)
        return [*results, *torch.autograd.grad(sum(result.sin().sum() for result in results), leaves)]

    alone = found()
    monkeypatch.setattr(gates, "fuses", lambda x: True)
    assert_close(found(), alone)


@pytest.mark.parametrize("spec", [SwiGLU(expand=0.01), Mlp2(expand=0.01)], ids=lambda s: s.kind)
def test_a_narrow_mlp_has_a_channel(spec: SwiGLU | Mlp2) -> None:
    y = spec.build(16)(torch.ones(1, 2, 16))
    assert y.isfinite().all()
    assert spec.flops(16) > 0
