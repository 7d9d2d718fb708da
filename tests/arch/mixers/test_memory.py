"""The presets of the memory that learns at test time: what each is, how large, and that no default can blow up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch.kernels.test_time.learning_rule import DOT, HUBER, KL, LP, LQ, HuberLoss, Rule
from recallmap.arch.mixers.memory import (
    Atlas,
    AtlasPp,
    Dla,
    Memora,
    Moneta,
    OmegaNet,
    Swla,
    Titans,
    TitansMinus,
    TttLinear,
    TttMlp,
    Yaad,
)
from recallmap.arch.mixers.mixer import MixerSpec, StateSize
from recallmap.arch.mixers.polysketch import PolySketchFormer
from recallmap.arch.mixers.rwkv7 import Rwkv7
from recallmap.arch.parts.memory_heads import RETENTION, stable_rate
from recallmap.arch.parts.poly import PolyFeatures

PRESETS = [TttLinear, TttMlp, Titans, TitansMinus, Moneta, Yaad, Memora, Dla, Swla, OmegaNet, Atlas, AtlasPp]


def plain(**dials: Any) -> Rule:
    return Rule(chunk=16, residual=True, **dials)


@pytest.mark.parametrize(
    ("spec", "rule", "depth", "degree", "forget", "normed"),
    [
        (TttLinear(), plain(bias=True), 1, 1, False, True),
        (TttMlp(), plain(bias=True), 2, 1, False, True),
        (Titans(), plain(momentum="inside"), 2, 1, True, False),
        (TitansMinus(), plain(), 2, 1, True, False),
        (Moneta(), plain(loss=LP, retention=LQ), 2, 1, True, False),
        (Yaad(), plain(loss=HUBER), 2, 1, True, False),
        (Memora(), plain(retention=KL), 2, 1, True, True),
        (Dla(), plain(loss=DOT), 2, 2, True, False),
        (Swla(), plain(loss=DOT, window=4), 2, 2, True, False),
        (OmegaNet(), plain(window=4), 2, 2, True, False),
        (Atlas(), plain(window=4, momentum="outside", newton_schulz=5), 2, 2, True, False),
        (AtlasPp(), plain(window=4, momentum="outside", newton_schulz=5, gated=True), 2, 2, True, False),
    ],
    ids=lambda x: getattr(x, "kind", ""),
)
def test_every_system_is_data_over_one_recurrence(
    spec: Titans, rule: Rule, depth: int, degree: int, forget: bool, normed: bool
) -> None:
    assert spec.rule == rule
    assert (spec.depth, spec.degree, spec.forget, spec.inner_norm) == (depth, degree, forget, normed)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_dial_can_be_turned_on_every_system(preset: type[Titans]) -> None:
    torch.manual_seed(0)
    spec = preset(heads=2, window=3, chunk=2, degree=2, depth=3, expansion=2, momentum="outside", newton_schulz=2)
    x = torch.randn(1, 5, 8)
    assert spec.build(8)(x)[0].isfinite().all()
    linear = replace(spec, depth=1, gated=False, residual=False, key_dim=3, value_dim=5, bias=True, forget=False)
    assert linear.build(8)(x)[0].isfinite().all()


def test_titans_follows_its_equations() -> None:
    torch.manual_seed(0)
    spec = Titans(heads=2, chunk=2, expansion=1)
    module, x = spec.build(8).double(), 20 * torch.randn(1, 5, 8, dtype=torch.float64)
    q, k, v, _ = module.get_submodule("inputs.qkv")(x, None)

    def gate(name: str) -> Tensor:
        """[T, H, 1, 1]"""
        linear = module.get_submodule(name)(x)[0]
        return torch.sigmoid(linear)[..., None, None]

    alpha, theta = gate("inputs.retention"), gate("theta.linear")
    length = (v - k)[0].norm(dim=-1)[..., None, None]
    assert length.min() < 2 < length.max()
    eta = stable_rate(1, 2) * gate("inputs.rate.linear") * (1 - theta) / length.clamp(min=2)
    weights = [w.detach() for w in module.get_submodule("weights").parameters()]
    momentum = [torch.zeros_like(w) for w in weights]
    outputs = []
    for t in range(5):
        if t % 2 == 0:
            frozen = [w.clone().requires_grad_() for w in weights]
        key, value, query = (z[0, t, :, None] for z in (k, v, q))
        answer = key + torch.nn.functional.gelu(key @ frozen[0]) @ frozen[1]
        surprise = torch.autograd.grad((answer - value).square().sum() / 2, frozen)
        momentum = [theta[t] * p + eta[t] * u for p, u in zip(momentum, surprise, strict=True)]
        weights = [alpha[t] * w - p for w, p in zip(weights, momentum, strict=True)]
        outputs.append(query + torch.nn.functional.gelu(query @ weights[0]) @ weights[1])
    o = torch.stack(outputs).squeeze(-2)[None]
    expected = module.get_submodule("out")(module.get_submodule("output")(o, x))
    assert_close(module(x)[0], expected)


@pytest.mark.parametrize(("delta_max", "most"), [(None, 4.0), (1.0, 1.0)])
def test_a_threshold_is_at_most_as_long_as_what_a_layer_norm_answers_unless_told_otherwise(
    delta_max: float | None, most: float
) -> None:
    spec = Yaad(heads=2, loss=HuberLoss(beyond="norm", delta_max=delta_max), inner_norm=True)
    torch.manual_seed(0)
    module, x = spec.build(32), 100 * torch.randn(1, 50, 32)
    thresholds = module.get_submodule("delta")(x)
    assert 0 <= thresholds.min() < 0.1 * most < 0.9 * most < thresholds.max() <= most


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("chunk", [1, 2, 3, 16, 64])
@pytest.mark.parametrize("degree", [1, 2])
def test_no_linear_memory_can_blow_up_at_the_rate_it_has_unless_told_otherwise(
    window: int, chunk: int, degree: int
) -> None:
    """The law eta b sum(gamma) kappa(k, k) < 2, with every gate wide open on keys that repeat."""
    spec = OmegaNet(heads=2, window=window, chunk=chunk, degree=degree, depth=1, residual=False, out_norm="none")
    torch.manual_seed(0)
    module = spec.build(8)
    for name in ("inputs.rate.linear", "inputs.retention", *(["inputs.window.linear"] if window > 1 else [])):
        torch.nn.init.constant_(module.get_parameter(f"{name}.bias"), 20.0)
    time = 40 * max(window, chunk)
    x = torch.randn(1, 1, 8).expand(1, time, 8)
    features = module.get_submodule("features") if degree > 1 else None
    given, _ = module.get_submodule("inputs")(x, None, features.energy() if isinstance(features, PolyFeatures) else 1.0)
    energy = features(given.k).square().sum(-1) if features else 1.0
    total = given.gamma.sum(-1) if window > 1 else 1.0
    assert (given.eta * total * chunk * energy <= 2.0 + 1e-5).all()
    y = module(x)[0][0]
    assert y[time // 2 :].abs().max() <= 4 * y[: time // 4].abs().max()


@pytest.mark.parametrize("preset", [Titans, TitansMinus, OmegaNet])
def test_a_deep_memory_takes_smaller_steps_or_what_repeats_drives_it_to_infinity(preset: type[Titans]) -> None:
    """Of large values, every gate wide open. Blanks of selective copying did it within a hundred steps of training."""

    @torch.no_grad()
    def largest(**dials: Any) -> float:
        torch.manual_seed(0)
        module = preset(heads=8, **dials).build(128)
        for name in ("inputs.rate.linear", *(["inputs.window.linear"] if preset is OmegaNet else [])):
            torch.nn.init.constant_(module.get_parameter(f"{name}.bias"), 20.0)
        x = 3 * torch.nn.functional.rms_norm(torch.randn(4, 1, 128), (128,)).expand(4, 256, 128)
        _, state = module(x, return_state=True)
        return max(float(w.abs().nan_to_num(torch.inf).max()) for w in state.memory.weights)

    assert largest() < 2
    assert largest(eta_over="key", safety=4) < 2 < 1e9 < largest(eta_over="key", safety=1)


@pytest.mark.parametrize("preset", [Titans, TitansMinus, OmegaNet])
def test_a_deep_memory_bears_long_values_where_its_rate_is_over_their_length(preset: type[Titans]) -> None:
    """They are as long as training makes them. Multi-query recall made them 5 long, and Titans infinite within 300 steps."""

    @torch.no_grad()
    def largest(factor: float, **dials: Any) -> float:
        torch.manual_seed(0)
        module = preset(heads=8, **dials).build(64)
        for name in ("inputs.rate.linear", *(["inputs.window.linear"] if preset is OmegaNet else [])):
            torch.nn.init.constant_(module.get_parameter(f"{name}.bias"), 20.0)
        module.get_parameter("inputs.qkv.linear.weight")[-64:] *= factor
        _, state = module(torch.nn.functional.rms_norm(torch.randn(4, 256, 64), (64,)), return_state=True)
        return max(float(w.abs().nan_to_num(torch.inf).max()) for w in state.memory.weights)

    assert largest(100, eta_over="key", safety=4) == torch.inf
    assert largest(30) < 5 < largest(30, eta_over="key", safety=4)
    assert largest(100, inner_norm=True) < 12 * largest(10, inner_norm=True) < 900


@pytest.mark.parametrize("preset", PRESETS)
def test_a_default_starts_at_half_its_rate_and_keeps_nearly_all(preset: type[Titans]) -> None:
    spec = preset(heads=2)
    module = spec.build(8)
    given, _ = module.get_submodule("inputs")(torch.zeros(1, 3, 8), None, 1.0)
    assert_close(given.eta, torch.full((1, 3, 2), spec.rate / 2))
    assert spec.rate * spec.chunk * spec.window <= 2
    if spec.forget:
        assert_close(given.alpha, torch.full((1, 3, 2), RETENTION))


def test_its_size_is_that_of_the_table() -> None:
    d, h, k, v = 64, 4, 16, 16

    def around(gates: int) -> int:
        """Gated DeltaNet's projections, convolutions and output, with other gates."""
        return 2 * d * h * (k + v) + d * h * v + 4 * h * (2 * k + v) + v + gates * (d * h + h)

    def count(spec: MixerSpec) -> int:
        return sum(p.numel() for p in spec.build(d).parameters())

    conv, deep = 3 * h * (2 * k + v), k * 4 * k + 4 * k * v
    assert count(TitansMinus()) == around(2) + h * deep
    assert TitansMinus().state_size(d, 1000) == StateSize(h * deep * 2 + conv)
    assert TitansMinus(chunk=1).state_size(d, 1000) == StateSize(h * deep + conv)
    assert Titans().state_size(d, 1000) == StateSize(h * deep * 3 + conv)
    assert TttLinear().state_size(d, 1000) == StateSize(h * (k + 1) * v * 2 + conv)
    features = 153
    atlas = features * 4 * k + 4 * k * v
    assert count(Atlas()) == around(3 + 4) + h * atlas + 3
    assert Atlas().state_size(d, 1000) == StateSize(h * (atlas * 3 + 3 * (k + v)) + conv)
    assert AtlasPp().state_size(d, 1000) == StateSize(h * ((atlas + features * 4 * k) * 3 + 3 * (k + v)) + conv)
    assert Dla(depth=1).state_size(d, 1000) == StateSize(h * features * v + conv)


def test_its_operations_are_those_of_the_table() -> None:
    d, h, k, v = 64, 4, 16, 16
    hidden = 4 * k
    around = 2 * d * h * (2 * k + 3 * v) + 8 * h * (2 * k + v) + 2 * (d * h * 2)
    spec = TitansMinus(chunk=1)
    assert spec.flops(d, 100) == around + h * (9 * k * hidden + 11 * hidden * v)
    windowed = replace(spec, window=3)
    gradient = 4 * (k * hidden + hidden * v) + 2 * hidden * v
    assert windowed.flops(d, 100) == spec.flops(d, 100) + 2 * d * h * 3 + h * gradient * 2
    muon = replace(spec, newton_schulz=5)
    sizes = ((k, hidden), (v, hidden))
    assert muon.flops(d, 100) == spec.flops(d, 100) + h * sum(5 * (4 * m * m * n + 2 * m**3) for m, n in sizes)


@pytest.mark.parametrize("spec", [OmegaNet(heads=2), Yaad(heads=2, window=2, bias=True)], ids=lambda s: s.kind)
def test_what_a_window_pads_with_has_no_gradient(spec: OmegaNet) -> None:
    """Its threshold is 0, and its answer none where an empty memory answers something."""
    torch.manual_seed(0)
    module = replace(spec, loss=HuberLoss(beyond="norm")).build(16)
    module(torch.randn(2, 32, 16))[0].square().sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    "spec", [TttLinear(), Titans(inner_norm=True), PolySketchFormer(), Rwkv7()], ids=lambda s: s.kind
)
def test_a_norm_of_one_channel_is_refused(spec: MixerSpec) -> None:
    with pytest.raises(ValueError, match="leaves nothing of a single channel: take fewer heads"):
        replace(spec, heads=8).check(8)


@pytest.mark.parametrize(
    ("preset", "dials", "message"),
    [
        (Titans, {"window": 0}, "window must be at least 1"),
        (Titans, {"chunk": 0}, "chunk must be at least 1"),
        (Titans, {"depth": 0}, "depth must be at least 1"),
        (Titans, {"degree": 0}, "degree must be at least 1"),
        (Titans, {"expansion": 0.0}, "expansion must be positive"),
        (Titans, {"eta_max": 0.0}, "eta_max must be positive or null"),
        (Titans, {"safety": 0.5}, "safety must be at least 1"),
        (Titans, {"newton_schulz": 5}, "set momentum to 'outside'"),
        (AtlasPp, {"depth": 1}, "a gated memory needs hidden units"),
    ],
)
def test_dials_that_make_no_sense_are_refused(preset: type[Titans], dials: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        preset(**dials)


def test_a_residual_needs_keys_as_wide_as_values() -> None:
    with pytest.raises(ValueError, match="set residual to false"):
        Titans(heads=2, key_dim=3).check(8)
    Titans(heads=2, key_dim=3, residual=False).check(8)
