"""Preconditioned Gated DeltaNet and KDA: write keys whose channels count the less, the more was written under them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch.mixers import KDA, GatedDeltaNet
from recallmap.arch.mixers.mixer import MixerModule
from recallmap.arch.parts import preconditioner
from recallmap.search import codec

SPECS: list[GatedDeltaNet | KDA] = [
    GatedDeltaNet(heads=2, preconditioned=True),
    KDA(scale="one", heads=2, preconditioned=True),
    KDA(scale="one", heads=2, preconditioned=True, decay="signed"),
]
of_each = pytest.mark.parametrize("spec", SPECS, ids=["gated_deltanet", "kda", "kda signed"])


def made(spec: GatedDeltaNet | KDA) -> tuple[MixerModule, Tensor]:
    torch.manual_seed(0)
    return spec.build(16).double(), torch.randn(2, 21, 16, dtype=torch.float64)


@of_each
def test_it_is_the_published_recurrence(spec: GatedDeltaNet | KDA) -> None:
    module, x = made(spec)
    part = module.get_submodule
    q, k, v, _ = part("qkv")(x, None)
    decay = part("decay")(x)
    if isinstance(decay, tuple):
        fade = decay[0].exp() * (1 if decay[1] is None else decay[1])
    else:
        fade = decay.exp()[..., None].expand_as(k)
    beta, kept, entering = part("write")(x), part("precondition.decay")(x).exp(), part("precondition.write")(x)
    memory, outputs = torch.zeros(2, 2, 8, 8, dtype=torch.float64), []
    moments = torch.zeros(2, 2, 8, dtype=torch.float64)
    for t in range(21):
        moments = kept[:, t, :, None] * moments + entering[:, t, :, None] * k[:, t] ** 2
        r = torch.log(moments + 1e-6) - module.get_parameter("precondition.centre")
        written = 1.5 ** (-r / (1 + r.abs())) * k[:, t]
        memory = fade[:, t, :, :, None] * memory
        error = v[:, t, :, None] - k[:, t, :, None] @ memory
        memory = memory + written[..., None] * beta[:, t, :, None, None] * error
        outputs.append((q[:, t, :, None] @ memory).squeeze(-2))
    y, state = module(x, return_state=True)
    assert_close(y, part("out")(part("read")(torch.stack(outputs, 1), x)))
    assert_close(state.memory, memory)
    assert_close(state.moments, moments)


@of_each
def test_a_gain_of_one_is_the_mixer_without_it(spec: GatedDeltaNet | KDA, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = made(spec)
    options = {"decay": spec.decay} if isinstance(spec, KDA) else {}
    plain = type(spec)(heads=2, scale=spec.scale, **options).build(16).double()  # type: ignore[arg-type]
    plain.load_state_dict({name: p for name, p in module.state_dict().items() if not name.startswith("precondition")})
    assert (module(x)[0] - plain(x)[0]).abs().max() > 1e-3
    monkeypatch.setattr(preconditioner, "MOST", 1.0)
    assert_close(module(x)[0], plain(x)[0])


def test_a_channel_counts_between_two_thirds_and_one_and_a_half() -> None:
    module, x = made(SPECS[0])
    part = module.get_submodule("precondition")
    for size in (1e-9, 1.0, 1e9):
        key = torch.full((2, 21, 2, 8), size, dtype=torch.float64)
        gain = part(key, x, None, implementation="auto")[0] / key
        assert 1 / 1.5 < gain.min() <= gain.max() < 1.5
        assert (gain.max() > 1) if size == 1e-9 else (gain.min() < 1)


def test_its_size_is_that_of_the_table() -> None:
    d, h, k, v = 64, 3, 16, 32
    gated = GatedDeltaNet(heads=h, key_dim=k, value_dim=v, preconditioned=True)
    kda = KDA(scale="one", heads=h, key_dim=k, value_dim=v, preconditioned=True)
    assert sum(p.numel() for p in gated.build(d).parameters()) == 26159
    assert sum(p.numel() for p in kda.build(d).parameters()) == 28668
    for spec, plain in (
        (gated, GatedDeltaNet(heads=h, key_dim=k, value_dim=v)),
        (kda, KDA(scale="one", heads=h, key_dim=k, value_dim=v)),
    ):
        assert spec.state_size(d, 9).fixed - plain.state_size(d, 9).fixed == h * k
        assert spec.flops(d, 9) - plain.flops(d, 9) == h * (4 * d + 4 * k)


def test_what_does_not_ask_for_it_keeps_the_key_of_its_records() -> None:
    expected = "1cf32d43c5ae936db161992963f72ff23a61175d1f040720534f942c1760c22d"
    assert codec.key(codec.read_arch("gated_deltanet")) == expected


@pytest.mark.parametrize("kind", [GatedDeltaNet, KDA])
def test_a_write_strength_up_to_two_is_refused(kind: type[GatedDeltaNet | KDA]) -> None:
    with pytest.raises(ValueError, match="preconditioned needs beta_max 1"):
        kind(preconditioned=True, beta_max=2)
