"""Mamba-3: the published recurrence, and what it is when parts of it are left out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.mixers.mamba3 import Mamba3
from recallmap.arch.mixers.mixer import MixerModule, StateSize
from recallmap.arch.parts.rotary import turn

SMALL = Mamba3(heads=2, key_dim=8, value_dim=5)


def built(spec: Mamba3, **set_to: float) -> MixerModule:
    """A module all of whose parameters take part, or with some at a value."""
    torch.manual_seed(0)
    module: MixerModule = spec.build(16).double()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
            if name in set_to:
                parameter.fill_(set_to[name])
    return module


def tokens(length: int = 19) -> Tensor:
    return torch.randn(2, length, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def parts(module: MixerModule, spec: Mamba3, x: Tensor) -> dict[str, Tensor]:
    """What the one map gives, activated as published: keys and queries [B, T, H, R, K] not turned yet."""
    names = ("z", "v", "k", "q", "step", "rate", "share", "angle")
    raw = dict(zip(names, (x @ module.get_parameter("linear.weight").T).split(spec.columns(16), -1), strict=True))

    def keyed(name: str) -> Tensor:
        k = raw[name].unflatten(-1, (spec.rank, spec.key_dim))
        normed = k / (k.square().mean(-1, keepdim=True) + 1e-5).sqrt() * module.get_parameter(f"{name}_norm.weight")
        return normed[:, :, None] + module.get_parameter(f"{name}_bias")

    step = F.softplus(raw["step"] + module.get_parameter("step_bias"))
    return {
        "z": raw["z"].unflatten(-1, (spec.heads, -1)),
        "v": raw["v"].unflatten(-1, (spec.heads, -1)),
        "k": keyed("k"),
        "q": keyed("q"),
        "step": step,
        "fade": torch.exp(-step * F.softplus(raw["rate"]).clamp(min=1e-4)),
        "share": torch.sigmoid(raw["share"]),
        "angle": (step[..., None] * math.pi * torch.tanh(raw["angle"])[:, :, None]).cumsum(1),
    }


def recurrence(k: Tensor, q: Tensor, v: Tensor, p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The published equation of one key a token, token by token: k, q [B, T, H, K] turned or complex, v [B, T, H, V]."""
    state, outputs = torch.zeros_like(k[:, 0, :, :, None] * v[:, 0, :, None]), []
    for t in range(k.shape[1]):
        fade, step, share = (p[name][:, t, :, None, None] for name in ("fade", "step", "share"))
        state = fade * state + share * step * k[:, t, :, :, None] * v[:, t, :, None]
        if t:
            state = state + (1 - share) * step * fade * k[:, t - 1, :, :, None] * v[:, t - 1, :, None]
        outputs.append((q[:, t, :, None] @ state.to(q.dtype)).squeeze(-2))
    return torch.stack(outputs, 1), state


def test_it_is_the_published_recurrence() -> None:
    """11.5: writes of two tokens, at once or in turn."""
    module, x = built(SMALL), tokens()
    p = parts(module, SMALL, x)
    k, q = (turn(p[name].squeeze(-2), p["angle"]) for name in ("k", "q"))
    o, last = recurrence(k, q, p["v"], p)
    y = (o + module.get_parameter("skip")[:, None] * p["v"]) * F.silu(p["z"])
    found, state = module(x, return_state=True)
    assert_close(found, module.get_submodule("out")(y.flatten(-2)))
    assert_close(state.memory, last)


def test_turned_keys_are_a_state_of_complex_numbers() -> None:
    """11.5: rows that turn while they fade, read by their real part."""
    spec = replace(SMALL, rope_fraction=1.0)
    module, x = built(spec), tokens()
    p = parts(module, spec, x)
    k, q = (turn(p[name].squeeze(-2), p["angle"]) for name in ("k", "q"))
    k_, q_ = (torch.view_as_complex(p[name].squeeze(-2).unflatten(-1, (4, 2)).contiguous()) for name in ("k", "q"))
    state, before = torch.zeros(2, 2, 4, 5, dtype=torch.complex128), torch.zeros(2, 2, 4, 5, dtype=torch.complex128)
    outputs, last = [], torch.zeros_like(p["angle"][:, 0])
    for t in range(x.shape[1]):
        spin = torch.exp(-1j * (p["angle"][:, t] - last))[..., None]
        fade, step, share = (p[name][:, t, :, None, None] for name in ("fade", "step", "share"))
        write = k_[:, t, :, :, None] * p["v"][:, t, :, None]
        state = fade * spin * (state + (1 - share) * step * before) + share * step * write
        outputs.append((q_[:, t, :, None].conj() @ state).squeeze(-2).real)
        before, last = write, p["angle"][:, t]
    assert_close(torch.stack(outputs, 1), recurrence(k, q, p["v"], p)[0])


def test_without_angles_and_trapezoid_it_is_mamba2s_recurrence() -> None:
    """11.5"""
    spec = replace(SMALL, rope_fraction=0.0, trapezoid="none")
    module, x = built(spec), tokens()
    p = parts(module, spec, x)
    o, _ = kernels.gated_linear(
        p["q"].squeeze(-2), p["k"].squeeze(-2), p["v"], log_decay=p["fade"].log(), beta=p["step"]
    )
    y = (o + module.get_parameter("skip")[:, None] * p["v"]) * F.silu(p["z"])
    assert_close(module(x)[0], module.get_submodule("out")(y.flatten(-2)))


def test_four_keys_a_token_are_sixteen_heads_that_share_what_they_know() -> None:
    """11.5: MIMO = the sum of R^2 SISO."""
    spec = replace(SMALL, rank=4)
    module, x = built(spec), tokens()
    p = parts(module, spec, x)
    up, down, gates = (module.get_parameter(name) for name in ("up", "down", "gates"))
    y: Any = 0
    for r in range(4):
        q = turn(p["q"][:, :, :, r], p["angle"])
        o: Any = module.get_parameter("skip")[:, None] * p["v"] * up[:, r]
        for other in range(4):
            o = o + recurrence(turn(p["k"][:, :, :, other], p["angle"]), q, p["v"] * up[:, other], p)[0]
        y = y + down[:, r] * o * F.silu(p["z"] * gates[:, r])
    assert_close(module(x)[0], module.get_submodule("out")(y.flatten(-2)))


def test_sums_modulo_five_are_counted_by_angle() -> None:
    """By hand: a turn of 2 pi x / 5 a token, one write and no decay; the memory then answers at every residue."""
    steps = torch.tensor([3, 1, 4, 2, 2, 4, 0, 3])
    angle = 2 * math.pi * steps.double().cumsum(0)[:, None] / 5
    start = torch.tensor([1.0, 0.0]).double()
    residues = 2 * math.pi * torch.arange(5.0).double()[:, None] / 5
    scores = turn(start.expand(8, 2), angle) @ turn(start.expand(5, 2), residues).T
    assert torch.equal(scores.argmax(-1), steps.cumsum(0) % 5)
    assert_close(turn(turn(start, angle), -angle), start.expand(8, 2))


def test_it_begins_with_wide_keys_and_slow_steps() -> None:
    torch.manual_seed(0)
    module: Any = Mamba3(heads=8).build(64)
    assert (module.k_bias == 1).all()
    assert (module.skip == 1).all()
    assert 1e-3 <= F.softplus(module.step_bias).min() <= F.softplus(module.step_bias).max() <= 1e-1


def test_it_has_the_published_size() -> None:
    spec = Mamba3(heads=8, key_dim=16)
    assert spec.parameters(64) == 28720
    assert replace(spec, rank=4).parameters(64) == 37168
    assert spec.state_size(64, 1000) == StateSize(8 * (16 * 16 + 16 + 16 + 4))
    assert replace(spec, rank=4).state_size(64, 1000) == StateSize(8 * (16 * 16 + 4 * 16 + 16 + 4))


def test_a_fraction_beyond_all_channels_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rope_fraction must lie between 0 and 1, got 1\.5"):
        Mamba3(rope_fraction=1.5)
